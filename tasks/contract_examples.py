"""Checks the training examples that the pipeline writes against their own contract."""

from __future__ import annotations

from datetime import date

from data_contracts.broken_rules import broken_rules, render
from data_contracts.data_files import DataFile, DataFiles
from data_contracts.footer_checks import FooterReport, check_footers
from tasks.config import DataSettings
from tasks.contract_files import contract_of, files_in
from tasks.errors import ContractError
from tasks.lake import Lake
from tasks.progress import console, log

DATASET = "examples"
#: Rows whose values are read. Shards are shuffled over the whole log: any is a fair sample.
SAMPLE_ROWS = 200_000


def check_examples(lake: Lake, folder: str, settings: DataSettings, day: date) -> None:
    """Checks shards before they are published: the footers of all, the values of some.

    Args:
        lake: The lake.
        folder: Folder of the shards `*.parquet`.
        settings: Where the contract is, and whether anything is checked.
        day: Day of the run.

    Raises:
        ContractError: A blocking rule is broken; the message is the table of broken rules.
        ConfigError: The contract is missing or not understood.
    """
    if settings.validation == "off":
        return
    from data_contracts.check import DayOfData, check_days

    contract = contract_of(DATASET, settings)
    data = files_in(lake, folder)
    report = check_footers(contract, data)
    # Shards are not events: rules about the day do not apply.
    (result,) = check_days(contract, [DayOfData(None, DataFiles(data.fs, _sample(report)))])
    rules = {(rule.rule, rule.file, rule.column): rule for rule in report.broken}
    rules |= {(rule.rule, rule.file, rule.column): rule for rule in result.rules}
    whole = result.model_copy(update={"rules": tuple(rules.values()), "day": day})
    table = render(broken_rules([whole]), rest="only the worst are shown")
    if whole.blocked and settings.validation == "block":
        raise ContractError(
            f"the examples break their contract\n\n{table}\n",
            where=f"{lake.url}/{folder}",
            fix=f"look at the input of day {day}; if it is right, please report this",
        )
    if whole.broken:
        console.print(table, markup=False, highlight=False, soft_wrap=True)
    log("examples checked", rows=report.rows, rows_read=result.rows, broken_rules=len(whole.broken))


def _sample(report: FooterReport) -> tuple[DataFile, ...]:
    """The first shards, of as many rows as are read."""
    chosen: list[DataFile] = []
    rows = 0
    for footer in report.footers:
        if rows < SAMPLE_ROWS:
            chosen.append(footer.file)
            rows += footer.rows
    return tuple(chosen)
