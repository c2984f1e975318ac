"""Errors of the local stack."""

from __future__ import annotations

from pathlib import Path

from tasks.errors import TailtowerError

_TAIL_LINES = 12


class StackError(TailtowerError):
    """A service of the local stack did not start, did not answer or refused a call."""

    exit_code = 21


def log_tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log file, indented for use in a message."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return "    (no log)"
    last = text.rstrip().splitlines()[-lines:]
    return "\n".join(f"    {line}" for line in last) or "    (the log is empty)"
