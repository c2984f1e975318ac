"""`tailtower ingest`: brings a user's own logs into the lake."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tasks.errors import ConfigError, LakeError
from tasks.ingest import ingest
from tasks.ingest.options import build_mapping, drop_rules, pairs
from tasks.ingest.publication import Existing
from tasks.ingest.report import render
from tasks.lake import Lake

_FILE = "The file"
_ROWS = "Rows"
_SIDE = "Items and users"


def ingest_command(
    source: Annotated[
        str,
        typer.Argument(
            help="File, folder, quoted glob or pyarrow.fs URL: CSV, TSV, Parquet or other "
            "delimited text, also compressed (.gz, .bz2, .zst, .lz4)."
        ),
    ],
    lake: Annotated[str, typer.Option(help="Lake to write to: a path or a pyarrow.fs URL.")],
    mapping: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with all of this, see conf/mappings/; options given here come on top."
        ),
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="LAKE=SOURCE",
            help="Column of the lake = column of the file: user_id, item_id, timestamp, optionally "
            "weight; any other name is carried along. Usual names are found without it.",
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(help="Between columns, such as ';' or '::'.", rich_help_panel=_FILE),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Names of all columns of a file without a header line: user,item,rating,time.",
            rich_help_panel=_FILE,
        ),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of text files.", rich_help_panel=_FILE)
    ] = None,
    files: Annotated[
        str | None,
        typer.Option(help="Which files of a folder, as a glob.", rich_help_panel=_FILE),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="'table', or 'adjacency' for lines 'user item item …' without times, which get "
            "synthetic ones.",
            rich_help_panel=_FILE,
        ),
    ] = None,
    time_format: Annotated[
        str | None,
        typer.Option(
            help="iso, s, ms, us, ns, or a pattern such as '%d/%m/%Y %H:%M'. By default ISO 8601 "
            "texts are read, and whole numbers are epoch s, ms, us or ns by their magnitude (from "
            "1e8, 1e11, 1e14, 1e17).",
            rich_help_panel=_ROWS,
        ),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(help="Zone of times that name none. [UTC]", rich_help_panel=_ROWS),
    ] = None,
    id_type: Annotated[
        str | None,
        typer.Option(
            help="string or int. By default IDs stay what they are: text keeps leading zeros.",
            rich_help_panel=_ROWS,
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="Rule that drops rows, 'name: column comparison value': 'cancelled: InvoiceNo "
            "starts_with C', 'returned: Quantity at_most 0'. Comparisons: less_than, at_most, "
            "greater_than, at_least, equals, not_equals, starts_with, matches, in, not_in, "
            "missing.",
            rich_help_panel=_ROWS,
        ),
    ] = None,
    drop_duplicates: Annotated[
        bool,
        typer.Option(
            "--drop-duplicates",
            help="Keep one of rows with equal user, item and timestamp.",
            rich_help_panel=_ROWS,
        ),
    ] = False,
    items: Annotated[
        str | None,
        typer.Option(
            help="Items table: a file; relative to the folder of SOURCE.", rich_help_panel=_SIDE
        ),
    ] = None,
    items_columns: Annotated[
        str | None,
        typer.Option(
            help="Names of all columns of the items table, if it has no header line.",
            rich_help_panel=_SIDE,
        ),
    ] = None,
    items_map: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAKE=SOURCE",
            help="item_id, title and attributes; by default all columns.",
            rich_help_panel=_SIDE,
        ),
    ] = None,
    items_list: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ATTRIBUTE=SEPARATOR",
            help="Attribute that holds a list, with its separator: 'genres=|'.",
            rich_help_panel=_SIDE,
        ),
    ] = None,
    users: Annotated[
        str | None,
        typer.Option(
            help="Users table: a file; relative to the folder of SOURCE.", rich_help_panel=_SIDE
        ),
    ] = None,
    users_columns: Annotated[
        str | None,
        typer.Option(
            help="Names of all columns of the users table, if it has no header line.",
            rich_help_panel=_SIDE,
        ),
    ] = None,
    users_map: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAKE=SOURCE",
            help="user_id and attributes; by default all columns.",
            rich_help_panel=_SIDE,
        ),
    ] = None,
    users_list: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ATTRIBUTE=SEPARATOR",
            help="Attribute that holds a list, with its separator.",
            rich_help_panel=_SIDE,
        ),
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Add to days that hold data of another source.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite days that hold data of another source.")
    ] = False,
    scratch: Annotated[
        str | None, typer.Option(help="Folder for working files. [the system's]")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Also write the report to this JSON file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Bring your own logs into the lake as daily partitions.

    The report says how many rows came in, how many went into the lake, and why each other row was
    dropped, with examples by file and line. The same command again does nothing; days that hold
    other data are left alone unless you say --append or --replace. Memory stays bounded whatever
    the size of the files, and a killed run leaves no half-written day.

    For example:

    tailtower ingest events.csv --lake var/lake --map user_id=customer --map item_id=sku

    tailtower ingest ml/ratings.dat --lake var/lake --delimiter :: --columns user,item,rating,time

    tailtower ingest shop.parquet --lake var/lake --mapping conf/mappings/online_retail.yaml
    """
    if append and replace:
        raise ConfigError(
            "--append and --replace exclude each other", where="command line", fix="give one"
        )
    existing: Existing = "append" if append else "replace" if replace else "refuse"
    settings = build_mapping(
        mapping,
        {
            "map": pairs(map_ or (), "--map"),
            "delimiter": delimiter,
            "columns": _names(columns),
            "encoding": encoding,
            "files": files,
            "kind": kind,
            "time_format": time_format,
            "timezone": timezone,
            "id_type": id_type,
            "filters": drop_rules(drop or ()),
            "drop_duplicates": drop_duplicates or None,
            "items": _side("items", items, items_columns, items_map, items_list, delimiter),
            "users": _side("users", users, users_columns, users_map, users_list, delimiter),
        },
    )
    done = ingest(source, Lake(lake), settings, existing=existing, scratch=scratch)
    text = done.model_dump_json(indent=1)
    if report is not None:
        try:
            report.write_text(text, encoding="utf-8")
        except OSError as error:
            raise LakeError(
                f"cannot write the report: {error.strerror}",
                where=str(report),
                fix="name a file in an existing folder; the data is in the lake",
            ) from error
    if as_json:
        typer.echo(text)
    else:
        Console().print(render(done))


def _side(
    name: str,
    source: str | None,
    columns: str | None,
    mapped: list[str] | None,
    lists: list[str] | None,
    delimiter: str | None,
) -> dict[str, object]:
    """Settings of a side table from its options; empty when none was given."""
    given: dict[str, object] = {
        "source": source,
        "columns": _names(columns),
        "map": pairs(mapped or (), f"--{name}-map"),
        "lists": pairs(lists or (), f"--{name}-list"),
    }
    given = {key: value for key, value in given.items() if value}
    if given and delimiter:
        # Files that come together are written alike.
        given["delimiter"] = delimiter
    return given


def _names(columns: str | None) -> tuple[str, ...] | None:
    return tuple(name.strip() for name in columns.split(",")) if columns else None
