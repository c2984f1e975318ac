"""Which code a run was made with."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PROJECT_ROOT = Path(__file__).resolve().parent.parent


@cache
def code_version() -> str:
    """Version of the distribution, with the git revision where there is a checkout."""
    try:
        released = version("tailtower")
    except PackageNotFoundError:
        released = "0"
    git = ["git", "-C", str(PROJECT_ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        answer = subprocess.run(git, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return released
    revision = answer.stdout.strip()
    return f"{released}+{revision}" if answer.returncode == 0 and revision else released
