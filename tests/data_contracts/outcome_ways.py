"""The ways that data meets its contract: the library, the command, and the steps of a run."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from data_contracts.check import DayOfData
from data_contracts.data_files import DataFile, DataFiles
from data_contracts.result import ContractResult
from tasks.cli import main
from tasks.config import PipelineConfig
from tasks.contract_files import files_in
from tasks.contract_report import RESULT
from tasks.errors import ContractError, DataError, PartitionMissingError
from tasks.lake import Lake
from tasks.run_spec import RunSpec
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


@dataclass(frozen=True)
class Said:
    """What a command ended with and wrote."""

    status: int
    out: str
    err: str


def tailtower(*arguments: str) -> Said:
    """Runs the command line in this process, errors and exit status included."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    return Said(status, out.getvalue(), err.getvalue())


def by_command(entry: Input, lake: Path, contracts: Path) -> tuple[ContractResult | None, Said]:
    """`tailtower contract check` on the data set's folder: the day's result and what is said."""
    path = str(lake / "raw" / entry.dataset)
    options = ["--contracts", str(contracts), "--contract", entry.dataset, "--json"]
    said = tailtower("contract", "check", path, *options)
    results = [ContractResult.model_validate_json(line) for line in said.out.splitlines()]
    return next((result for result in results if result.day == DAY), None), said


def run_spec(entry: Input, lake: Path, contracts: Path) -> RunSpec:
    """A resolved run whose test day is the input's day."""
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
    spec = RunSpec(
        run_id="r",
        day=DAY,
        train_days=tuple(trailing_days(lake / "raw" / "interactions" / f"dt={DAY}")),
        test_days=(DAY,),
        config=config,
        code_version="test",
    )
    spec.save()
    return spec


def by_run(spec: RunSpec) -> Said:
    """`tailtower step` for the first steps of a run, as a scheduler starts them."""
    for step in ("await_partition", "validate"):
        said = tailtower("step", step, "--run-spec", spec.uri)
        if said.status != 0:
            break
    return said


def published_result(entry: Input, lake: Path, day: date = DAY) -> ContractResult | None:
    """What the validate step left about the input's day."""
    found = sorted((lake / "validation" / entry.dataset / f"dt={day}").rglob(RESULT))
    return ContractResult.model_validate_json(found[-1].read_text()) if found else None


def is_shown(rule: Broken, text: str) -> bool:
    """Whether a table of broken rules has a line about this one; names may be cut into lines."""
    name, _, severity, _ = rule
    return any(line.split()[:2] == [severity, name.split()[0]] for line in text.splitlines())


def assert_outcome(entry: Input, lake: Path, status: int, said: str) -> None:
    """A run's exit status, its message and what it published are those of the list."""
    result = published_result(entry, lake)
    if entry.waits or entry.refused:
        kind, words = entry.refused or (PartitionMissingError, "have not arrived")
        assert status == kind.exit_code
        assert words in said
    elif result is not None:
        assert status == (ContractError.exit_code if entry.blocked else 0), said
        assert broken_of(result) == sorted(entry.broken)
        assert all(is_shown(rule, said) for rule in entry.broken), said
        refused = [*(lake / "quarantine" / entry.dataset / f"dt={DAY}").glob("*.json")]
        assert len(refused) == entry.blocked
    else:  # found while the files' digests were taken, before there was a manifest
        assert entry.blocked
        assert status in (DataError.exit_code, ContractError.exit_code), said
        assert {rule for rule, *_ in entry.broken} <= {"readable", "files"}


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
