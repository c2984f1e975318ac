"""Runs a step's command in this process group, and kills the group when its parent dies.

Standard input is a pipe that the parent holds open and never writes to. A parent that is killed
outright cannot clean up, but the kernel closes its end, and this process sees that. The group is
killed, not asked: a step that is asked to stop may stop what it started elsewhere, while a
training that merely lost its task goes on and is found by the next attempt.

Run by path with `python -I -S`, so that it costs next to nothing; it imports the standard library
only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import FrameType

CANNOT_START = 127
"""Exit status when the command cannot be started, as in a shell."""


def main(command: list[str]) -> int:
    """Runs the command; returns its exit status, 128 + n when signal n ended it."""
    # A handler, not SIG_IGN, which the command would inherit: a signal to the group is meant
    # for the command, whose exit status is still to be reported.
    signal.signal(signal.SIGTERM, _stay)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return CANNOT_START
    threading.Thread(target=_kill_group_with_parent, daemon=True).start()
    status = child.wait()
    return 128 - status if status < 0 else status


def _stay(number: int, frame: FrameType | None) -> None:
    """Outlives a signal to the group."""


def _kill_group_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
