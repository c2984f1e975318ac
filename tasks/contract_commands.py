"""`tailtower contract`: checks files before they are in the lake, drafts and compares contracts."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tasks.errors import ConfigError, ContractError, DataError
from tasks.progress import console

if TYPE_CHECKING:
    from data_contracts.check import DayOfData
    from data_contracts.contract import Contract
    from data_contracts.data_files import DataFiles
    from tasks.lake import Lake

app = typer.Typer(help="Check data against contracts; draft them.", no_args_is_help=True)

_DAY = re.compile(r"(?:^|/)dt=(\d{4}-\d{2}-\d{2})(?:/|$)")


@app.callback()
def _contract() -> None:
    """Check data against contracts, draft contracts from data, and compare contracts."""


@app.command("check")
def check_command(
    path: Annotated[
        str,
        typer.Argument(
            help="A Parquet file, a folder of them, or a folder of dt=YYYY-MM-DD folders; a path "
            "or a pyarrow.fs URL."
        ),
    ],
    contract: Annotated[
        str | None,
        typer.Option(
            help="ODCS file, or the name of a contract in --contracts; by default the part of the "
            "path that is such a name."
        ),
    ] = None,
    contracts: Annotated[str, typer.Option(help="Folder of the contracts.")] = "data_contracts",
    day: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            help="Day of the events, when the path has no dt=…; without one, rules about the day "
            "are left out.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Check files against a contract; exit status 13 when a blocking rule is broken."""
    from data_contracts.broken_rules import broken_rules, render
    from data_contracts.check import check_days

    chosen = _contract_for(path, contract, contracts)
    days = _days(path, chosen, day.date() if day else None)
    with console.status(f"checking {path}"):
        results = check_days(chosen, days)
    if json:
        for result in results:
            print(result.model_dump_json())
    broken = broken_rules(results)
    table = render(broken, rest="--json lists all")
    counts = (
        f"{sum(result.rows for result in results):,} rows in "
        f"{sum(result.files for result in results):,} files, contract {chosen.dataset} "
        f"{chosen.version}"
    )
    if any(result.blocked for result in results):
        raise ContractError(
            f"data contract broken ({counts})\n\n{table}\n",
            where=path,
            fix=f"correct the data, or change {chosen.path} if the data is right",
        )
    if broken:
        console.print(table, markup=False, highlight=False, soft_wrap=True)
    left_out = "" if any(d.day for d in days) else "; rules about the day were left out (--day)"
    console.print(
        f"contract kept, {len(broken)} warnings: {counts}{left_out}",
        highlight=False,
        soft_wrap=True,
    )


@app.command("infer")
def infer_command(
    path: Annotated[
        str, typer.Argument(help="A Parquet file, or a folder of them; a path or a pyarrow.fs URL.")
    ],
    name: Annotated[
        str | None,
        typer.Option(help="Name of the data set; by default that of the path."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="File to write; by default the terminal.")
    ] = None,
) -> None:
    """Draft a contract from data: types, nulls, ranges, categories, keys."""
    from data_contracts.data_files import UnreadableFileError
    from data_contracts.draft import draft

    if output is not None and output.exists():
        raise ConfigError("the file is there already", where=str(output), fix="name another one")
    with console.status(f"reading {path}"):
        try:
            text = draft(name or _name_of(path), _files(path))
        except (UnreadableFileError, ValueError) as error:
            raise DataError(
                f"no contract can be drafted: {error}",
                where=path,
                fix="give whole Parquet files",
            ) from error
    if output is None:
        print(text, end="")
        return
    output.write_text(text, encoding="utf-8")
    console.print(
        f"drafted {output}: read and correct it, then "
        f"tailtower contract check {path} --contract {output}",
        highlight=False,
        soft_wrap=True,
    )


@app.command("diff")
def diff_command(
    old: Annotated[Path, typer.Argument(help="The contract as it was.")],
    new: Annotated[Path, typer.Argument(help="The contract as it shall be.")],
    strict: Annotated[
        bool, typer.Option("--strict", help="End with exit status 13 when a change breaks.")
    ] = False,
) -> None:
    """List what differs between two contracts, and whom each change breaks."""
    from data_contracts.difference import differences
    from tasks.contract_files import read_contract

    before, after = read_contract(old), read_contract(new)
    changes = differences(before, after)
    for change in changes:
        sign = " " if change.breaks == "nobody" else "!"
        said = " → ".join(text or "nothing" for text in (change.old, change.new))
        hurt = "" if change.breaks == "nobody" else f"  (breaks {_HURT[change.breaks]})"
        print(f"{sign} {change.what}: {said}{hurt}")
    breaking = sum(change.breaks != "nobody" for change in changes)
    print(f"{len(changes)} changes, {breaking} breaking: {before.version} → {after.version}")
    if not breaking:
        return
    if before.version.partition(".")[0] == after.version.partition(".")[0]:
        print("a breaking change asks for another first number of the version")
    if strict:
        raise ContractError(
            f"{breaking} changes break somebody",
            where=str(new),
            fix="agree on them with those who deliver and read the data, and give a new version",
        )


_HURT = {
    "deliveries": "deliveries: good ones may now stop a run",
    "readers": "readers: they may meet what was ruled out",
    "both": "deliveries and readers",
}


def _name_of(path: str) -> str:
    """Name of the data set that a path is about: its last folder or file that names no day."""
    parts = [part for part in path.rstrip("/").split("/") if part and not part.startswith("dt=")]
    name = parts[-1] if parts else "data"
    return re.sub(r"\W+", "_", name.removesuffix(".parquet")) or "data"


def _files(path: str) -> DataFiles:
    """All files of a path, of every day below it."""
    from data_contracts.data_files import DataFile, DataFiles
    from tasks.contract_files import files_in
    from tasks.lake import Lake, partition_name

    path = path.rstrip("/")
    if path.endswith(".parquet"):
        folder, _, name = path.rpartition("/")
        lake = Lake(folder or ".")
        _must_exist(lake, name, path)
        return DataFiles(lake.fs, (DataFile(name, lake.abspath(name)),))
    lake = Lake(path)
    _must_exist(lake, "", path)
    folders = [partition_name(day) for day in lake.days("")] or [""]
    return DataFiles(lake.fs, tuple(f for folder in folders for f in files_in(lake, folder).files))


def _contract_for(path: str, given: str | None, folder: str) -> Contract:
    """The contract that is named, or that the path names."""
    from tasks.config import DataSettings
    from tasks.contract_files import SUFFIX, contract_of, contracts_folder, read_contract

    settings = DataSettings(contracts=folder)
    if given is not None and (given.endswith((".yaml", ".yml")) or "/" in given):
        return read_contract(Path(given))
    names = [
        file.name.removesuffix(SUFFIX) for file in contracts_folder(settings).glob(f"*{SUFFIX}")
    ]
    found = [part for part in path.split("/") if part in names]
    if given is None and not found:
        raise ConfigError(
            "which contract these files must keep is not known",
            where=path,
            fix=f"give --contract: a file, or one of {', '.join(sorted(names)) or '(none found)'}",
        )
    return contract_of(given or found[-1], settings)


def _days(path: str, contract: Contract, day: date | None) -> list[DayOfData]:
    """The files, by day."""
    from data_contracts.check import DayOfData
    from data_contracts.footer_checks import check_footers
    from tasks.contract_files import files_in
    from tasks.lake import Lake, partition_name

    path = path.rstrip("/")
    day = day or _day_of(path)
    if path.endswith(".parquet"):
        return [DayOfData(day, _files(path))]
    lake = Lake(path)
    _must_exist(lake, "", path)
    if not any(name.startswith("dt=") for name in lake.list_folders("")):
        return [DayOfData(day, _files(path))]
    data = {moment: files_in(lake, partition_name(moment)) for moment in lake.days("")}
    rows = {moment: check_footers(contract, files).rows for moment, files in data.items()}
    days_before = [r.settings["days"] for r in contract.rules if r.measure == "trailing"]
    first = timedelta(days=max(days_before, default=0))
    return [
        DayOfData(
            moment,
            files,
            trailing={d: rows[d] for d in rows if moment - first <= d < moment},
        )
        for moment, files in data.items()
    ]


def _must_exist(lake: Lake, name: str, path: str) -> None:
    if not lake.exists(name):
        raise ConfigError("nothing is there", where=path, fix="give an existing file or folder")


def _day_of(path: str) -> date | None:
    """Day that a path's `dt=…` names."""
    found = _DAY.search(path)
    if found is None:
        return None
    try:
        return date.fromisoformat(found.group(1))
    except ValueError as error:
        raise ConfigError(
            f"'{found.group(1)}' is no day of the calendar", where=path, fix="rename the folder"
        ) from error
