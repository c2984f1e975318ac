"""The three ways that data meets its contract: the library, the command, and a run's steps."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from data_contracts.check import DayOfData
from data_contracts.data_files import DataFile, DataFiles
from data_contracts.result import ContractResult
from tasks import await_partition, validate
from tasks.config import PipelineConfig
from tasks.contract_commands import app
from tasks.contract_files import files_in
from tasks.errors import TailtowerError
from tasks.lake import Lake
from tasks.run_spec import RunSpec, StepResult
from tests.data_contracts.days_of_data import DAY, events
from tests.data_contracts.outcome_writers import deliver, trailing_days
from tests.data_contracts.outcomes import Broken, Input

_NOBODY = 65534


def folder_of(entry: Input, lake: Path) -> Path:
    """Folder of the day that an input is about."""
    return lake / "raw" / entry.dataset / f"dt={DAY}"


def written(entry: Input, lake: Path) -> Path:
    """Writes an input into an empty lake, beside good interactions; the lake."""
    if entry.dataset != "interactions":
        deliver(lake / "raw" / "interactions" / f"dt={DAY}", events())
    entry.write(folder_of(entry, lake))
    return lake


def broken_of(result: ContractResult) -> list[Broken]:
    """What broke, as the list of inputs states it."""
    return sorted((r.rule, r.column, r.severity, r.rows) for r in result.broken)


def day_of_data(entry: Input, lake: Path) -> DayOfData:
    """What the library is given."""
    folder = folder_of(entry, lake)
    opened = Lake(str(lake))
    rows = {
        day: sum(
            pq.read_metadata(path).num_rows
            for path in (folder.parent / f"dt={day}").glob("*.parquet")
        )
        for day in trailing_days(folder)
    }
    return DayOfData(DAY, files_in(opened, f"raw/{entry.dataset}/{folder.name}"), trailing=rows)


def by_command(
    entry: Input, lake: Path, contracts: Path
) -> tuple[ContractResult | None, TailtowerError | None]:
    """`tailtower contract check` on the data set's folder: the day's result and the error."""
    out = io.StringIO()
    error = None
    arguments = ["check", str(lake / "raw" / entry.dataset), "--contracts", str(contracts)]
    with contextlib.redirect_stdout(out):
        try:
            app([*arguments, "--contract", entry.dataset, "--json"], standalone_mode=False)
        except TailtowerError as raised:
            error = raised
    results = [ContractResult.model_validate_json(line) for line in out.getvalue().splitlines()]
    return next((result for result in results if result.day == DAY), None), error


def run_spec(entry: Input, lake: Path, contracts: Path) -> RunSpec:
    """A run whose test day is the input's day."""
    ids = {name: {"source": f"interactions.{name}_id"} for name in ("user", "item")}
    towers = {name: {"features": [{"name": f"{name}_code", "table": name}]} for name in ids}
    config = PipelineConfig.model_validate(
        {
            "name": "test",
            "lake": str(lake),
            "tables": ids,
            "model": towers,
            "data": {"contracts": str(contracts)},
        }
    )
    return RunSpec(
        run_id="r",
        day=DAY,
        train_days=tuple(trailing_days(lake / "raw" / "interactions" / f"dt={DAY}")),
        test_days=(DAY,),
        config=config,
        code_version="test",
    )


def by_run(spec: RunSpec) -> StepResult:
    """The first steps of a run, as a scheduler starts them."""
    await_partition.run(spec)
    return validate.run(spec)


def published_result(entry: Input, lake: Path, day: date = DAY) -> ContractResult | None:
    """What the validate step left about the input's day."""
    found = sorted((lake / "validation" / entry.dataset / f"dt={day}").rglob(validate.RESULT))
    return ContractResult.model_validate_json(found[-1].read_text()) if found else None


@contextmanager
def reading(entry: Input, lake: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The state that an input is checked in: changed while it is read, or not readable."""
    folder = folder_of(entry, lake)
    if entry.during is not None:
        verify = DataFiles.verify

        def change_and_verify(data: DataFiles, file: DataFile) -> None:
            if str(folder) in file.path and entry.during is not None:
                entry.during(folder)
            verify(data, file)

        monkeypatch.setattr(DataFiles, "verify", change_and_verify)
    user = os.geteuid()
    if entry.denied:
        (folder / "1.parquet").chmod(0)
    try:
        if entry.denied and user == 0:  # to whom nothing is denied
            for path in (lake, *lake.rglob("*")):
                os.chown(path, _NOBODY, -1)
            os.seteuid(_NOBODY)
        yield
    finally:
        os.seteuid(user)


@contextmanager
def empty_lakes(names: Sequence[str]) -> Iterator[dict[str, Path]]:
    """A lake for each name, in a place that another user may read; its path has odd letters."""
    root = Path(tempfile.mkdtemp(prefix="tailtower outcomes é "))
    try:
        root.chmod(0o755)
        yield {name: root / str(n) for n, name in enumerate(names)}
    finally:
        shutil.rmtree(root)
