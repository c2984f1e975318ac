"""`python -m tasks STEP …` runs one step; it is `tailtower step` for schedulers."""

import sys

from tasks.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["step", *sys.argv[1:]]))
