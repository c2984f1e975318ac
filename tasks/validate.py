"""Checks the run's days against their data contracts; bad data never reaches training.

A day is checked once for each content and contract: its result is published under
`validation/<data set>/` and found again by every later run. Great Expectations is imported only
when there is a day to check.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import data_contracts
from data_contracts.contract import Contract, load_contract
from data_contracts.data_files import DataFile, DataFiles
from data_contracts.errors import ContractFileError
from data_contracts.footer_checks import check_footers
from data_contracts.result import ContractResult, RuleResult, render_rules
from tasks.config import DataSettings
from tasks.errors import ConfigError, ContractError, DataError
from tasks.lake import Lake, Output, Published, partition_name
from tasks.progress import console, log, progress
from tasks.run_spec import RunSpec, StepResult

if TYPE_CHECKING:
    from data_contracts.check import DayOfData

RESULT = "contract_result.json"
SIDE_TABLES = ("items", "users")


def run(spec: RunSpec) -> StepResult:
    """Checks every day of the run that was not checked before.

    Raises:
        ContractError: A blocking rule is broken; the message is the table of broken rules.
        ConfigError: A contract is missing or not understood.
    """
    if spec.config.data.validation == "off":
        log("validation is off", setting="data.validation")
        return StepResult.of("validate", {}, validation="off")
    started = time.monotonic()
    lake = spec.lake()
    outputs: dict[str, Published] = {}
    results: list[ContractResult] = []
    drift: list[tuple[str, RuleResult]] = []
    versions = {}
    for dataset, days in _datasets(spec, lake).items():
        contract = contract_of(dataset, spec.config.data)
        versions[dataset] = contract.version
        checked = _check(lake, contract, days)
        for day, (published, result) in checked.items():
            outputs[f"{dataset}/{day}"] = published
            results.append(result)
        types = {day: result.types for day, (_, result) in checked.items()}
        drift += _drift(contract, types)
    broken = [(r.title, rule) for r in results for rule in r.broken] + drift
    new = sum(not published.reused for published in outputs.values())
    facts = {
        "validation": spec.config.data.validation,
        "contract_versions": versions,
        "days": len(outputs),
        "days_checked_now": new,
        "rows": sum(result.rows for result in results),
        "warnings": sum(rule.severity == "warn" for _, rule in broken),
        "blocking": sum(rule.severity == "block" for _, rule in broken),
        "broken_rules": sorted({_label(title, rule) for title, rule in broken})[:20],
        "seconds": round(time.monotonic() - started, 2),
    }
    if broken:
        _report(spec, broken)
    log("validated", **facts)
    return StepResult.of("validate", outputs, **facts)


def contract_of(dataset: str, settings: DataSettings) -> Contract:
    """The contract of a data set.

    Raises:
        ConfigError: There is none, or it is not understood.
    """
    folder = contracts_folder(settings)
    path = folder / f"{dataset}.odcs.yaml"
    if not path.is_file():
        raise ConfigError(
            f"the data set {dataset} has no contract",
            where=str(path),
            fix="write one, or name the folder that holds it in data.contracts",
        )
    return read_contract(path)


def read_contract(path: Path) -> Contract:
    """Reads a contract; what is wrong with it is an error of the configuration."""
    try:
        return load_contract(path)
    except ContractFileError as error:
        raise ConfigError(error.what, where=error.where, fix=error.fix) from error


def contracts_folder(settings: DataSettings) -> Path:
    """Folder of the contracts: as set, or those that come with the product.

    The shipped ones serve the default setting when the working folder is not the repository.
    """
    folder = Path(settings.contracts)
    is_default = settings.contracts == DataSettings.model_fields["contracts"].default
    if is_default and not folder.is_dir():
        return Path(data_contracts.__file__).parent
    return folder


def files_of(lake: Lake, published: Published) -> DataFiles:
    """The Parquet files that a partition's manifest names."""
    entries = [entry for entry in published.manifest.files if entry.path.endswith(".parquet")]
    files = tuple(
        DataFile(
            name=f"{published.path.rsplit('/', 1)[-1]}/{entry.path}",
            path=lake.abspath(f"{published.path}/{entry.path}"),
            bytes=entry.bytes,
            digest=entry.digest,
        )
        for entry in entries
    )
    return DataFiles(lake.fs, files)


def _datasets(spec: RunSpec, lake: Lake) -> dict[str, list[date]]:
    """Days of each data set that the run reads."""
    datasets = {"interactions": [*spec.train_days, *spec.test_days]}
    for name in SIDE_TABLES:
        days = [day for day in lake.days(f"raw/{name}") if day <= spec.day]
        if days:
            datasets[name] = days
    return datasets


@dataclass(frozen=True)
class _Pending:
    """A day without a result under the present contract."""

    partition: Published
    inputs: dict[str, str]
    settings: dict[str, object]
    work: DayOfData


def _check(
    lake: Lake, contract: Contract, days: list[date]
) -> dict[date, tuple[Published, ContractResult]]:
    """The published result of every day that has a complete partition."""
    found: dict[date, Published] = {}
    pending: dict[date, _Pending] = {}
    partitions = _Partitions(lake, contract)
    for day in days:
        partition = partitions.get(day)
        if partition is None:
            continue
        inputs = {f"raw/{contract.dataset}": partition.digest}
        trailing = partitions.rows_before(day, _trailing_days(contract))
        settings: dict[str, object] = {
            "contract": contract.digest,
            "rows_before": {str(d): count for d, count in trailing.items()},
        }
        output = _finished(lake, contract.dataset, day, inputs, settings)
        if output is not None:
            found[day] = output
        else:
            from data_contracts.check import DayOfData

            work = DayOfData(day, files_of(lake, partition), partition.digest, trailing)
            pending[day] = _Pending(partition, inputs, settings, work)
    for day, result in _checked_now(contract, pending).items():
        waiting = pending[day]

        def write(output: Output, result: ContractResult = result) -> None:
            output.write_bytes(RESULT, result.model_dump_json(indent=1).encode())
            output.meta.update(blocked=result.blocked, warnings=result.warnings)

        found[day] = lake.build(
            f"validation/{contract.dataset}",
            day,
            write,
            inputs=waiting.inputs,
            settings=waiting.settings,
        )
    return {
        day: (
            found[day],
            ContractResult.model_validate_json(lake.read_text(found[day].file(RESULT))),
        )
        for day in days
        if day in found
    }


def _checked_now(
    contract: Contract, pending: Mapping[date, _Pending]
) -> dict[date, ContractResult]:
    if not pending:
        return {}
    from data_contracts.check import check_days

    results = {}
    with progress(f"validate {contract.dataset}", len(pending)) as ticker:
        days = list(pending)
        for day, result in zip(
            days, check_days(contract, [pending[day].work for day in days]), strict=True
        ):
            results[day] = result
            ticker.advance()
    return results


class _Unfinished(Exception):
    """There is no published result yet."""


def _finished(
    lake: Lake, dataset: str, day: date, inputs: dict[str, str], settings: dict[str, object]
) -> Published | None:
    """The published result of a day, looked up without starting the work."""

    def nothing_yet(_: Output) -> None:
        raise _Unfinished

    try:
        return lake.build(
            f"validation/{dataset}", day, nothing_yet, inputs=inputs, settings=settings
        )
    except _Unfinished:
        return None


class _Partitions:
    """Complete partitions of one raw data set, each looked up once.

    A partition that has only a marker is read whole to compute its manifest.
    """

    def __init__(self, lake: Lake, contract: Contract) -> None:
        self._lake = lake
        self._contract = contract
        self._dataset = f"raw/{contract.dataset}"
        self._there = set(lake.days(self._dataset))
        self._found: dict[date, Published | None] = {}

    def get(self, day: date) -> Published | None:
        """A day's partition, None while it is not complete.

        Raises:
            ContractError: Its files are not Parquet; the message is the table of their faults.
        """
        if day not in self._found:
            self._found[day] = self._look_up(day) if day in self._there else None
        return self._found[day]

    def rows_before(self, day: date, days: int) -> dict[date, int]:
        """Rows by day, oldest first, of those of the days before that are complete."""
        counts = {}
        for n in range(days, 0, -1):
            earlier = day - timedelta(days=n)
            partition = self.get(earlier)
            if partition is not None:
                counts[earlier] = partition.manifest.rows
        return counts

    def _look_up(self, day: date) -> Published | None:
        lake = self._lake
        try:
            return lake.partition(self._dataset, day)
        except DataError as error:
            # Without a manifest of its own, a partition has none until its files can be read.
            folder = f"{self._dataset}/{partition_name(day)}"
            names = [info.base_name for info in lake.list_files(folder)]
            files = tuple(
                DataFile(f"{partition_name(day)}/{name}", lake.abspath(f"{folder}/{name}"))
                for name in names
                if name.endswith(".parquet") and not name.startswith((".", "_"))
            )
            broken = check_footers(self._contract, DataFiles(lake.fs, files)).broken
            title = f"{self._contract.dataset} {day}"
            if not any(rule.severity == "block" for rule in broken):
                raise
            raise _contract_error(lake, [(title, rule) for rule in broken]) from error


def _trailing_days(contract: Contract) -> int:
    return max(
        (rule.settings["days"] for rule in contract.rules if rule.measure == "trailing"), default=0
    )


def _drift(contract: Contract, types: dict[date, dict[str, str]]) -> list[tuple[str, RuleResult]]:
    from data_contracts.type_drift import types_between_days

    return [(contract.dataset, rule) for rule in types_between_days(contract, types)]


def _report(spec: RunSpec, broken: list[tuple[str, RuleResult]]) -> None:
    """Stops the run, or shows what it goes on with."""
    lake = spec.lake()
    blocks = any(rule.severity == "block" for _, rule in broken)
    if blocks and spec.config.data.validation == "block":
        raise _contract_error(lake, broken)
    console.print(_headline(broken) + "\n" + render_rules(broken), markup=False, highlight=False)


def _contract_error(lake: Lake, broken: list[tuple[str, RuleResult]]) -> ContractError:
    return ContractError(
        _headline(broken) + "\n" + render_rules(broken),
        where=f"{lake.url}/raw",
        fix="deliver the day again, or change the contract if the data is right "
        "(`data.validation: warn` lets it pass once)",
    )


def _headline(broken: list[tuple[str, RuleResult]]) -> str:
    blocking = sum(rule.severity == "block" for _, rule in broken)
    titles = sorted({title for title, _ in broken})
    shown = ", ".join(titles[:3]) + (f" and {len(titles) - 3} more" if len(titles) > 3 else "")
    return f"data contract broken: {blocking} blocking, {len(broken) - blocking} warning ({shown})"


def _label(title: str, rule: RuleResult) -> str:
    return f"{title}: {rule.rule} {rule.column}".strip()
