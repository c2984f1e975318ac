"""Checks the run's days against their data contracts; bad data never reaches training.

A day is checked once for each content and contract: its result is published under
`validation/<data set>/` and found again by every later run. Great Expectations is imported only
when there is a day to check.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from data_contracts.broken_rules import BrokenRule, broken_rules, render
from data_contracts.contract import Contract
from data_contracts.footer_checks import check_footers
from data_contracts.result import ContractResult
from data_contracts.type_drift import types_between_days
from tasks.contract_counts import COUNTS, earlier_counts
from tasks.contract_examples import DATASET as EXAMPLES
from tasks.contract_files import contract_of, files_in, files_of
from tasks.contract_quarantine import quarantine
from tasks.contract_report import (
    DATA_DOCS,
    LINK,
    RESULT,
    count,
    publish_report,
    show_in_mlflow,
)
from tasks.errors import ContractError, DataError
from tasks.lake import Lake, Output, Published, partition_name
from tasks.progress import console, log
from tasks.run_spec import RunSpec, StepResult

SIDE_TABLES = ("items", "users")


def run(spec: RunSpec) -> StepResult:
    """Checks every day of the run that was not checked before.

    Returns:
        The result of each day, named `DATA SET/DAY`, and the `report`: Data Docs and a summary;
        facts: numbers of days, rows and broken rules.

    Raises:
        ContractError: A blocking rule is broken; the message is the table of broken rules.
        ConfigError: A contract is missing or not understood.
        TrackingError: MLflow cannot be reached; the results are in the lake already.
    """
    if spec.config.data.validation == "off":
        log("validation is off", setting="data.validation")
        show_in_mlflow(spec, [], [], None)
        return StepResult.of("validate", {}, validation="off")
    started = time.monotonic()
    lake = spec.lake()
    plans = [
        _plan(lake, contract_of(dataset, spec.config.data), days)
        for dataset, days in _datasets(spec, lake).items()
    ]
    # The contract of the examples is for a later step; if it is wrong, better to know now.
    contracts = [*(plan.contract for plan in plans), contract_of(EXAMPLES, spec.config.data)]
    new = sum(len(plan.pending) for plan in plans)
    if new:
        _check(spec, plans)
    outputs: dict[str, Published] = {}
    checked: list[tuple[Contract, ContractResult]] = []
    drift: list[BrokenRule] = []
    refused: list[str] = []
    for plan in plans:
        types = {}
        for day, published in sorted(plan.found.items()):
            outputs[f"{plan.contract.dataset}/{day}"] = published
            result = read_result(lake, published)
            checked.append((plan.contract, result))
            types[day] = result.types
            if result.blocked and spec.config.data.validation == "block":
                refused.append(quarantine(lake, result, plan.partitions[day]))
        drift += types_between_days(plan.contract, types)
    broken = broken_rules([result for _, result in checked], drift)
    results = dict(outputs)
    if checked:
        outputs["report"] = publish_report(spec, results, checked, broken)
    links = show_in_mlflow(spec, contracts, broken, outputs.get("report"))
    if links:
        # A step that fails has no result: the scheduler takes the address from here.
        log("links", **links)
    docs = outputs["report"].file(DATA_DOCS) if checked else None
    if broken:
        _report(spec, broken, docs, refused)
    facts = {
        "validation": spec.config.data.validation,
        "contract_versions": {contract.dataset: contract.version for contract in contracts},
        "days": len(results),
        "days_checked_now": new,
        "rows": sum(result.rows for _, result in checked),
        "warnings": count(broken, "warn"),
        "blocking": count(broken, "block"),
        "broken_rules": [str(entry) for entry in broken[:20]],
        LINK: docs,
        "seconds": round(time.monotonic() - started, 2),
    }
    log("validated", **facts)
    return StepResult.of("validate", outputs, links=links, **facts)


def read_result(lake: Lake, published: Published) -> ContractResult:
    """The result that a day's check published."""
    return ContractResult.model_validate_json(lake.read_text(published.file(RESULT)))


def _datasets(spec: RunSpec, lake: Lake) -> dict[str, list[date]]:
    """Days of each data set that the run reads."""
    datasets = {"interactions": list(dict.fromkeys((*spec.train_days, *spec.test_days)))}
    for name in SIDE_TABLES:
        days = [day for day in lake.days(f"raw/{name}") if day <= spec.day]
        if days:
            datasets[name] = days
    return datasets


@dataclass(frozen=True)
class _PendingDay:
    """A day without a result under the present contract, and what its result depends on."""

    partition: Published
    rows_before: dict[date, int]
    inputs: dict[str, str]
    settings: dict[str, object]


@dataclass
class _Plan:
    """What is known about a data set's days, and what is left to check."""

    contract: Contract
    partitions: dict[date, Published] = field(default_factory=dict)
    found: dict[date, Published] = field(default_factory=dict)
    pending: dict[date, _PendingDay] = field(default_factory=dict)

    @property
    def output(self) -> str:
        """Data set that the results are published in."""
        return f"validation/{self.contract.dataset}"


def _plan(lake: Lake, contract: Contract, days: Sequence[date]) -> _Plan:
    plan = _Plan(contract)
    partitions = _Partitions(lake, contract)
    trailing = [r.settings["days"] for r in contract.rules if r.measure == "trailing"]
    for day in days:
        partition = partitions.get(day)
        if partition is None:
            continue
        plan.partitions[day] = partition
        rows_before = partitions.rows_before(day, max(trailing, default=0))
        waiting = _PendingDay(
            partition,
            rows_before,
            inputs={f"raw/{contract.dataset}": partition.digest},
            settings={
                "contract": contract.digest,
                "rows_before": {str(d): rows for d, rows in rows_before.items()},
            },
        )
        found = _finished(lake, plan.output, day, waiting)
        if found is None:
            plan.pending[day] = waiting
        else:
            plan.found[day] = found
    return plan


class _UnfinishedError(Exception):
    """There is no published result yet."""


def _finished(lake: Lake, output: str, day: date, waiting: _PendingDay) -> Published | None:
    """The published result of a day, looked up without starting the work."""

    def nothing_yet(_: Output) -> None:
        raise _UnfinishedError

    try:
        return lake.build(
            output, day, nothing_yet, inputs=waiting.inputs, settings=waiting.settings
        )
    except _UnfinishedError:
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
            files = files_in(lake, folder)
            report = check_footers(self._contract, files)
            if not report.blocked:
                raise
            result = ContractResult(
                dataset=self._contract.dataset,
                day=day,
                contract_version=self._contract.version,
                contract_digest=self._contract.digest,
                files=len(files.files),
                rows=report.rows,
                complete=False,
                rules=tuple(report.broken),
            )
            raise _contract_error(lake, broken_rules([result])) from error


def _check(spec: RunSpec, plans: Sequence[_Plan]) -> None:
    """Checks all pending days, on the cluster when there is much to read, and publishes them."""
    from tasks.longtail.cluster import open_runner

    entries = [e for p in plans for day in p.pending.values() for e in day.partition.manifest.files]
    log(
        "checking data",
        days=sum(len(plan.pending) for plan in plans),
        files=len(entries),
        rows=sum(entry.rows or 0 for entry in entries),
    )
    size = sum(entry.bytes for entry in entries)
    with open_runner(spec.config.dask, size, spec.lake()) as runner:
        for plan in plans:

            def on_runner(
                function: Callable[[Any], Any], items: Iterable[Any], plan: _Plan = plan
            ) -> list[Any]:
                return runner.map(f"validate {plan.contract.dataset}", function, list(items))

            if plan.pending:
                _check_plan(spec.lake(), plan, on_runner)


def _check_plan(lake: Lake, plan: _Plan, mapper: Callable[..., list[Any]]) -> None:
    from data_contracts.check import DayOfData, check_days, counts_of

    days = [
        DayOfData(
            day,
            files_of(lake, pending.partition),
            pending.partition.digest,
            pending.rows_before,
            earlier_counts(lake, plan.output, plan.contract, day, pending.rows_before),
        )
        for day, pending in plan.pending.items()
    ]
    with tempfile.TemporaryDirectory(prefix="tailtower-counts-") as folder:
        counts = Path(folder)
        for result in check_days(plan.contract, days, mapper=mapper, counts_folder=counts):
            day = result.day
            assert day is not None

            def write(output: Output, result: ContractResult = result, day: date = day) -> None:
                output.write_bytes(RESULT, result.model_dump_json(indent=1).encode())
                for path in counts_of(counts, day).values():
                    with output.open(f"{COUNTS}/{path.name}") as stream, path.open("rb") as source:
                        shutil.copyfileobj(source, stream)
                output.meta.update(blocked=result.blocked, warnings=result.warnings)

            pending = plan.pending[day]
            plan.found[day] = lake.build(
                plan.output, day, write, inputs=pending.inputs, settings=pending.settings
            )


def _report(
    spec: RunSpec, broken: list[BrokenRule], docs: str | None, refused: Sequence[str]
) -> None:
    """Stops the run, or shows what it goes on with.

    Raises:
        ContractError: A blocking rule is broken and blocks.
    """
    if count(broken, "block") and spec.config.data.validation == "block":
        raise _contract_error(spec.lake(), broken, [docs] if docs else [], refused)
    console.print(_message(broken), markup=False, highlight=False, soft_wrap=True)


def _contract_error(
    lake: Lake,
    broken: list[BrokenRule],
    docs: Sequence[str] = (),
    refused: Sequence[str] = (),
) -> ContractError:
    lines = [_message(broken)]
    lines += [f"  data docs: {lake.url}/{path}" for path in docs]
    lines += [f"  on record: {lake.url}/{path}" for path in refused[:3]]
    return ContractError(
        "\n".join(lines),
        where=f"{lake.url}/raw",
        fix="deliver the data again, or change the contract if the data is right; "
        "`data.validation: warn` lets a run pass",
    )


def _message(broken: list[BrokenRule]) -> str:
    places = list(dict.fromkeys(entry.where for entry in broken))
    shown = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
    blocking, warning = count(broken, "block"), count(broken, "warn")
    headline = f"data contract broken: {blocking} blocking, {warning} warning; {shown}"
    table = render(broken, rest=f"{RESULT} of each day lists all")
    return f"{headline}\n\n{table}\n"
