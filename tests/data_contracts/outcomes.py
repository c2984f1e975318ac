"""Bad and odd inputs, each with its one stated outcome under the contracts.

The list is what the tests inject, one after the other, into an otherwise good day, and what the
table in `docs/data_contracts.md` is made from.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tasks.errors import DataError, TailtowerError
from tests.data_contracts.days_of_data import BIG, DAY_MICROS, MIDNIGHT, ROWS, events
from tests.data_contracts.outcome_writers import (
    Writer,
    after_days,
    change_a_user,
    compact_name,
    damaged_page,
    deliver,
    even_times,
    extra_file,
    files,
    half_a_file,
    items,
    items_with_tags,
    last_at,
    lengthen,
    only_a_folder,
    second_file_of,
    texts,
    users,
    weights,
    with_manifest,
    with_type,
)

#: rule, column, severity, rows that break it
Broken = tuple[str, str, str, int]


@dataclass(frozen=True)
class Input:
    """One input and what must come of it.

    Attributes:
        group: Heading that it is listed under.
        name: What is wrong, or odd, about the day.
        write: Writes the day's folder, given its path.
        broken: The rules that break; none for a day that is good.
        dataset: Data set that the folder belongs to.
        remark: What the reader should know about it.
        before: Writes the delivery that was checked before this one.
        during: Changes the folder after the footers were read.
        refused: Error that stops the command and the run before the contract is looked at.
        waits: Whether a run waits for the day.
        denied: Whether a file may not be read.
    """

    group: str
    name: str
    write: Writer
    broken: tuple[Broken, ...] = ()
    dataset: str = "interactions"
    remark: str = ""
    before: Writer | None = None
    during: Writer | None = None
    refused: tuple[type[TailtowerError], str] | None = None
    waits: bool = False
    denied: bool = False

    @property
    def blocked(self) -> bool:
        """Whether a run stops."""
        return any(severity == "block" for _, _, severity, _ in self.broken)


_SPREAD = even_times(ROWS)
_NINE_HOURS = 9 * 3_600_000_000
_KEY = "user_id, item_id, timestamp"
_LOOKALIKE = "Two IDs that look alike stay two IDs: nothing is changed silently."


INPUTS = (
    Input("A good day", "two files of one day", files(events(), events(ROWS))),
    # Identifiers ------------------------------------------------------------------------------
    Input(
        "Identifiers",
        "one null in an int64 ID column above 2⁵³",
        files(events(users=users(7, None)), events(ROWS)),
        (("required", "user_id", "block", 1),),
        remark="The other IDs stay exact integers; they never become floats.",
    ),
    Input(
        "Identifiers",
        "nulls in one of two files only",
        files(events(), events(ROWS, items=pa.array([None] * ROWS, pa.string()))),
        (("required", "item_id", "block", ROWS),),
    ),
    Input(
        "Identifiers",
        '`[1, "1"]`: a number in one file, the same as text in the other',
        files(
            events(rows=1, users=pa.array([1])),
            events(1, rows=1, users=pa.array(["1"])),
        ),
        (("type differs between files", "user_id", "block", 1),),
        remark="One Parquet column cannot hold both; two files can.",
    ),
    Input(
        "Identifiers",
        "int64 in one file, string in another",
        files(events(), events(ROWS, users=pa.array([str(BIG + n) for n in range(ROWS)]))),
        (("type differs between files", "user_id", "block", ROWS),),
    ),
    Input(
        "Identifiers",
        "`007` beside `7`",
        files(events(items=texts("007", "7"))),
        remark="Text stays text: two IDs.",
    ),
    Input(
        "Identifiers",
        "an ID column of floats",
        files(events(users=pa.array([float(n) for n in range(ROWS)]))),
        (("type", "user_id", "block", ROWS),),
    ),
    Input(
        "Identifiers",
        "unsigned IDs beyond 2⁶³",
        files(events(users=pa.array([2**63 + n for n in range(ROWS)], pa.uint64()))),
        (("type", "user_id", "block", ROWS),),
    ),
    Input(
        "Identifiers",
        "negative IDs and the ID 0",
        files(events(users=pa.array([0, -1, *range(2, ROWS)]))),
        remark="Good IDs like any other.",
    ),
    Input(
        "Identifiers",
        "an empty ID",
        files(events(items=texts(""))),
        (("length", "item_id", "block", 1),),
    ),
    Input(
        "Identifiers",
        "an ID of a megabyte",
        files(events(items=texts("x" * 1_000_000))),
        (("length", "item_id", "block", 1),),
    ),
    Input(
        "Identifiers",
        "every user null",
        files(events(users=pa.array([None] * ROWS, pa.int64()))),
        (("required", "user_id", "block", ROWS),),
    ),
    Input(
        "Identifiers",
        "every user null, in a column without a type",
        files(events(users=pa.nulls(ROWS))),
        (("type", "user_id", "block", ROWS),),
    ),
    # Texts that look alike --------------------------------------------------------------------
    Input(
        "Texts that look alike",
        "`café` composed and decomposed",
        files(events(items=texts("caf\u00e9", "cafe\u0301"))),
        (("text form: unicode", "item_id", "warn", 1),),
        remark=_LOOKALIKE,
    ),
    Input(
        "Texts that look alike",
        "a space at the end",
        files(events(items=texts("item 1 "))),
        (("text form: whitespace", "item_id", "warn", 1),),
        remark=_LOOKALIKE,
    ),
    Input(
        "Texts that look alike",
        "a zero-width space",
        files(events(items=texts("item\u200b1"))),
        (("text form: invisible", "item_id", "warn", 1),),
        remark=_LOOKALIKE,
    ),
    Input(
        "Texts that look alike",
        "upper and lower case",
        files(events(items=texts("ITEM 1", "Item 1"))),
        remark="Two IDs; `case: lower` of the rule `textForm` makes it a finding.",
    ),
    # Columns ----------------------------------------------------------------------------------
    Input(
        "Columns",
        "a column more",
        files(events(price=pa.array([1.0] * ROWS))),
        (("unknown column", "price", "warn", ROWS),),
    ),
    Input(
        "Columns",
        "a column fewer",
        files(events().drop_columns(["item_id"])),
        (("missing column", "item_id", "block", ROWS),),
    ),
    Input(
        "Columns",
        "a column renamed",
        files(events().rename_columns(["user_id", "itemid", "timestamp"])),
        (("missing column", "item_id", "block", ROWS), ("unknown column", "itemid", "warn", ROWS)),
        remark="The finding names the likely new name.",
    ),
    Input(
        "Columns",
        "columns in another order",
        files(events(), events(ROWS).select(["timestamp", "item_id", "user_id"])),
        remark="Columns are found by name.",
    ),
    Input(
        "Columns",
        "an optional column in one of two files",
        files(events(weight=weights(1.0)), events(ROWS)),
        (("column in some files only", "weight", "block", ROWS),),
    ),
    # Files ------------------------------------------------------------------------------------
    Input(
        "Files",
        "a `_SUCCESS` of 0 bytes",
        files(events()),
        remark="The marker says that the day is complete; its content does not matter.",
    ),
    Input(
        "Files",
        "a `.tmp` file beside the others",
        extra_file("1.parquet.tmp"),
        (("file left out", "", "warn", 0),),
    ),
    Input(
        "Files",
        "a hidden file and one that starts with `_`",
        extra_file(".1.parquet.crc", "_part"),
        remark="Left out on purpose, by everybody's habit.",
    ),
    Input("Files", "half a Parquet file", half_a_file, (("readable", "", "block", 0),)),
    Input(
        "Files",
        "a CSV named `.parquet`",
        second_file_of(b"user_id,item_id,timestamp\n1,2,3\n"),
        (("readable", "", "block", 0),),
    ),
    Input("Files", "a file of 0 bytes", second_file_of(b""), (("readable", "", "block", 0),)),
    Input("Files", "a damaged page", damaged_page, (("readable", "", "block", ROWS),)),
    Input(
        "Files",
        "another size than the manifest says",
        with_manifest(lengthen),
        (("readable", "", "block", 0),),
    ),
    Input(
        "Files",
        "one flipped bit that makes a user another, after the manifest",
        with_manifest(change_a_user),
        (("readable", "", "block", ROWS),),
        remark="The file is good in itself; its XXH3 digest is not the manifest's.",
    ),
    Input(
        "Files",
        "an empty folder",
        only_a_folder,
        (("files", "", "block", 0),),
        waits=True,
        remark="Without a marker or manifest the day has not arrived.",
    ),
    Input("Files", "a marker without files", deliver, (("files", "", "block", 0),)),
    Input(
        "Files",
        "one of two files has 0 rows",
        files(events(), events().slice(0, 0)),
        (("empty file", "", "warn", 0),),
    ),
    Input(
        "Files",
        "no rows at all",
        files(events().slice(0, 0)),
        (("empty file", "", "warn", 0), ("row count", "", "block", 0)),
    ),
    Input(
        "Files",
        "a file that may not be read",
        files(events(), events(ROWS)),
        (("readable", "", "block", 0),),
        denied=True,
    ),
    Input(
        "Files",
        "a file written to while it is read",
        files(events()),
        (("unchanged while read", "", "block", ROWS),),
        during=lengthen,
        remark="Size and time of the last change are compared after everything was read.",
    ),
    Input(
        "Files",
        "a hive folder `dt=20260101`",
        compact_name,
        refused=(DataError, "another name than dt="),
    ),
    Input(
        "Files",
        "names with spaces and letters beyond ASCII",
        lambda folder: deliver(folder, events(), names=("données du 2 – été 数据.parquet",)),
    ),
    # Repetitions ------------------------------------------------------------------------------
    Input(
        "Repetitions",
        "one event twice in one file",
        files(pa.concat_tables([events(), events().slice(3, 1)])),
        (("duplicates", _KEY, "warn", 1),),
    ),
    Input(
        "Repetitions",
        "one event in two files",
        files(events(), events(ROWS), events().slice(3, 1)),
        (("duplicates", _KEY, "warn", 1),),
    ),
    Input(
        "Repetitions",
        "all events twice",
        files(events(), events().slice(1), events().slice(0, 1)),
        (("duplicates", _KEY, "block", ROWS), ("duplicates", _KEY, "warn", ROWS)),
    ),
    Input(
        "Repetitions",
        "one file under two names",
        files(events(), events()),
        (("same file twice", "", "block", ROWS),),
    ),
    Input(
        "Repetitions",
        "a day delivered again after training",
        files(events(), events(ROWS)),
        before=files(events()),
        remark="Another manifest digest: it is checked again, and all that read it is made anew.",
    ),
    # Times ------------------------------------------------------------------------------------
    Input(
        "Times",
        "an event in the day's last microsecond",
        files(events(micros=last_at(MIDNIGHT + DAY_MICROS - 1))),
    ),
    Input(
        "Times",
        "an event one second after the day's end",
        files(events(micros=last_at(MIDNIGHT + DAY_MICROS + 1_000_000))),
        (("clock skew", "timestamp", "warn", 1),),
        remark="Up to `clockSkewSeconds` a warning, beyond it a block.",
    ),
    Input(
        "Times",
        "an event of the day before",
        files(events(micros=last_at(MIDNIGHT - 3_600_000_000))),
        (("inside the day", "timestamp", "block", 1),),
    ),
    Input(
        "Times",
        "a day of another time zone, nine hours ahead",
        files(events(micros=[t + _NINE_HOURS for t in _SPREAD])),
        (("inside the day", "timestamp", "block", 14), ("clock skew", "timestamp", "warn", 1)),
    ),
    Input(
        "Times",
        "times labelled with another time zone",
        files(with_type(events(), "timestamp", pa.timestamp("us", tz="Asia/Tokyo"))),
        (("type", "timestamp", "block", ROWS),),
    ),
    Input(
        "Times",
        "times without a zone",
        files(with_type(events(), "timestamp", pa.timestamp("us"))),
        (("type", "timestamp", "block", ROWS),),
    ),
    Input(
        "Times",
        "epoch in seconds where milliseconds were meant",
        files(events(micros=[t // 1000 for t in _SPREAD])),
        (("inside the day", "timestamp", "block", ROWS),),
    ),
    Input(
        "Times",
        "epoch as a number",
        files(with_type(events(), "timestamp", pa.int64())),
        (("type", "timestamp", "block", ROWS),),
    ),
    # Numbers ----------------------------------------------------------------------------------
    Input(
        "Numbers",
        "NaN as a weight",
        files(events(weight=weights(float("nan")))),
        (("range", "weight", "block", 1), ("finite", "weight", "block", 1)),
    ),
    Input(
        "Numbers",
        "+inf as a weight",
        files(events(weight=weights(float("inf")))),
        (("finite", "weight", "block", 1),),
    ),
    Input(
        "Numbers",
        "-inf as a weight",
        files(events(weight=weights(-float("inf")))),
        (("range", "weight", "block", 1), ("finite", "weight", "block", 1)),
    ),
    Input(
        "Numbers",
        "NaN and ±inf in a numeric attribute",
        files(
            items(
                tags=pa.array([["a"]] * ROWS),
                price=pa.array([float("nan"), float("inf"), -float("inf"), *[1.0] * (ROWS - 3)]),
            )
        ),
        (("finite", "price", "block", 3),),
        dataset="items",
    ),
    Input(
        "Numbers",
        "no weight at all",
        files(events(weight=pa.nulls(ROWS, pa.float32()))),
        remark="The weight is not required; without one an event counts 1.",
    ),
    # Lists ------------------------------------------------------------------------------------
    Input(
        "Lists",
        "a null for a list",
        items_with_tags(None),
        (("required", "tags", "block", 1),),
        dataset="items",
    ),
    Input(
        "Lists",
        "an empty list",
        items_with_tags([]),
        (("list length", "tags", "block", 1),),
        dataset="items",
    ),
    Input(
        "Lists",
        "a list of 100,000 elements",
        items_with_tags(["red"] * 100_000),
        (("list length", "tags", "block", 1),),
        dataset="items",
    ),
    Input(
        "Lists",
        "a null inside a list",
        items_with_tags(["red", None]),
        (("required in lists", "tags", "block", 1),),
        dataset="items",
    ),
    # Size of the day --------------------------------------------------------------------------
    Input(
        "Size of the day",
        "a third of the usual rows",
        after_days(3, rows=3000, today=1000),
        (("rows against days before", "", "warn", 0),),
    ),
    Input(
        "Size of the day",
        "a tenth of the usual rows",
        after_days(3, rows=5000, today=500),
        (("rows against days before", "", "block", 0), ("rows against days before", "", "warn", 0)),
    ),
    Input(
        "Size of the day",
        "ten times the usual rows",
        after_days(3, rows=1000, today=10_000),
        (("rows against days before", "", "block", 0), ("rows against days before", "", "warn", 0)),
    ),
    Input(
        "Size of the day",
        "few rows after two days only",
        after_days(2, rows=5000, today=500),
        remark="Too few days to know what is usual.",
    ),
)
