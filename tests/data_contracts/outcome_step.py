"""Plays `python -m tasks` for inputs that are spoilt while a step reads them.

OUTCOME_INPUT names the input of the list and OUTCOME_LAKE its lake.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tasks.cli import main
from tests.data_contracts.outcome_ways import reading
from tests.data_contracts.outcomes import INPUTS


def run(arguments: list[str]) -> int:
    """Runs a step in the state that the input is about."""
    (entry,) = [entry for entry in INPUTS if entry.name == os.environ["OUTCOME_INPUT"]]
    lake = Path(os.environ["OUTCOME_LAKE"])
    with pytest.MonkeyPatch.context() as patch, reading(entry, lake, patch):
        return main(["step", *arguments])


if __name__ == "__main__":
    assert sys.argv[1:3] == ["-m", "tasks"], sys.argv
    sys.exit(run(sys.argv[3:]))
