"""Runs benchmarks one after another: `python -m benchmarks [NAME …]`, by default all of them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def scripts() -> dict[str, str]:
    """Names of the benchmarks and the first line of what each measures.

    A benchmark is a module with a `main()`; the others are parts of one.
    """
    found = {}
    for path in sorted(HERE.glob("[a-z]*.py")):
        text = path.read_text(encoding="utf-8")
        if "\ndef main(" in text:
            found[path.stem] = text.lstrip('"').split("\n", 1)[0].rstrip('"')
    return found


def run_all(argv: list[str] | None = None) -> int:
    """Runs the chosen benchmarks.

    Returns:
        Number of benchmarks that failed.
    """
    known = scripts()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.names) - set(known))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)} (there are: {', '.join(known)})")
    failed = 0
    for name in options.names or known:
        print(f"{name}: {known[name]}", flush=True)
        if not options.list:
            done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False)
            failed += done.returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(min(run_all(), 1))
