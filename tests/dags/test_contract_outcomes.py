"""Every input of the contracts' list has its stated outcome through Airflow's operators.

Protects the promise that bad data fails at once and odd data goes on, on the way that a scheduled
run takes: the real operators, the real steps in processes of their own. A few inputs are run every
time, all of them with the slow tests.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from dags.operators.step import AwaitPartitionSensor, ValidateOperator
from tasks.run_spec import RunSpec
from tasks.version import PROJECT_ROOT
from tests.data_contracts.outcome_ways import (
    assert_outcome,
    empty_lakes,
    folder_of,
    run_spec,
    written,
)
from tests.data_contracts.outcome_writers import contracts_for_tests
from tests.data_contracts.outcomes import INPUTS, Input

EVERY_TIME = ("one null in an int64 ID column above 2⁵³", "a column more", "an empty folder")
pytestmark = [pytest.mark.faults, pytest.mark.integration]


class Airflow:
    """The part of a task runner that the operators touch."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.logged: list[str] = []

    def run(self) -> tuple[int, str]:
        """Runs both tasks; the exit status of the one that ended the run, and its log."""
        sensor = AwaitPartitionSensor(
            task_id="await_partition", step="await_partition", run_spec=self.spec.uri
        )
        operator = ValidateOperator(task_id="validate", step="validate", run_spec=self.spec.uri)
        # Of all errors that a task may end with, Airflow takes only this one for final.
        with contextlib.suppress(AirflowFailException):
            if self._go(sensor, sensor.poke).is_done:
                # Without the safeguard that wants a task runner.
                execute: Any = ValidateOperator.execute
                self._go(operator, partial(execute.__wrapped__, operator))
        return self._status, self._log

    def _go(self, operator: Any, function: Any) -> Any:
        run_process = operator.run_process
        lines: list[str] = []

        def remember(*arguments: Any) -> Any:
            ended = run_process(*arguments)
            self._status, self._log = ended.status, "\n".join(lines)
            return ended

        log_line = operator._log_line

        def keep_line(context: Any, line: str) -> None:
            lines.append(line)
            log_line(context, line)

        operator.run_process, operator._log_line = remember, keep_line
        return function({"ti": SimpleNamespace(xcom_push=lambda **_: None)})


@pytest.fixture(scope="module")
def contracts() -> Iterator[Path]:
    with empty_lakes(["contracts"]) as found:
        found["contracts"].mkdir()
        yield contracts_for_tests(found["contracts"])


def _cases() -> list[Any]:
    return [
        pytest.param(
            entry, id=entry.name, marks=[] if entry.name in EVERY_TIME else pytest.mark.slow
        )
        for entry in INPUTS
    ]


def test_the_chosen_inputs_are_in_the_list() -> None:
    assert set(EVERY_TIME) <= {entry.name for entry in INPUTS}


@pytest.mark.parametrize("entry", _cases())
def test_through_the_operators(
    entry: Input, contracts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with empty_lakes([entry.name]) as lakes:
        lake = lakes[entry.name]
        monkeypatch.setenv("TAILTOWER_PYTHON", sys.executable)
        if entry.before is not None:
            entry.before(folder_of(entry, lake))
            status, _ = Airflow(run_spec(entry, lake, contracts)).run()
            assert status == 0
        written(entry, lake)
        spec = run_spec(entry, lake, contracts)
        if entry.during or entry.denied:
            _spoil_while_reading(entry, lake, tmp_path, monkeypatch)
        assert_outcome(entry, lake, *Airflow(spec).run())


def _spoil_while_reading(
    entry: Input, lake: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Puts a program between that spoils the input when the step is running."""
    python = folder / "python"
    module = shlex.join([sys.executable, "-m", "tests.data_contracts.outcome_step"])
    python.write_text(f'#!/bin/sh\nexec {module} "$@"\n')
    python.chmod(0o755)
    for name, value in (
        ("TAILTOWER_PYTHON", python),
        ("OUTCOME_INPUT", entry.name),
        ("OUTCOME_LAKE", lake),
        ("PYTHONPATH", PROJECT_ROOT),
    ):
        monkeypatch.setenv(name, str(value))
