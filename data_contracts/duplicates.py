"""Rows whose key an earlier row of the day has already, counted exactly over all its files.

Grouping all keys would hold all of them. Instead the 64-bit hashes of the keys are sorted, part by
part: most days have no hash twice, and only rows whose hash occurs twice are grouped by their keys.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_contracts import database
from data_contracts.contract import Contract
from data_contracts.data_files import BATCH_ROWS, DataFiles
from data_contracts.footer_checks import FooterReport
from data_contracts.rules import shown
from data_contracts.tally import SAMPLES, Tally

#: Hashes that are sorted at once: 16 MiB.
PART_ROWS = 1 << 21
_Hashes = npt.NDArray[np.uint64]


def duplicates(
    contract: Contract, data: DataFiles, report: FooterReport, key: tuple[str, ...]
) -> Tally:
    """Counts the rows beyond the first of each key.

    Keys with a null are left to the rules about nulls.

    Args:
        contract: Says which columns are personal.
        data: The files of the day.
        report: Their footers.
        key: Columns of the key.
    """
    keys = _Keys(data, report, key)
    suspects = keys.repeated_hashes()
    count, samples = keys.count(suspects) if suspects.size else (0, [])
    personal = [contract.is_personal((name,)) for name in key]
    return Tally(
        count=count,
        of=report.rows,
        samples=[
            "/".join(shown(value, personal=personal[n]) for n, value in enumerate(values))
            for values in samples
        ],
    )


@dataclass
class _Keys:
    """The keys of a day."""

    data: DataFiles
    report: FooterReport
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        self._filled = [footer for footer in self.report.footers if footer.rows]
        types = self.data.types(self._filled[0].file, self.names)
        self._schema = pa.schema({name: database.storable(types[name]) for name in self.names})
        self._quoted = [database.quoted(name) for name in self.names]
        self._hash = f"hash({', '.join(self._quoted)})"
        self._present = " AND ".join(f"{name} IS NOT NULL" for name in self._quoted)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for footer in self._filled:
            for batch in self.data.batches(footer.file, self.names):
                yield batch.select(self.names).cast(self._schema)

    def _hashes(self) -> Iterator[_Hashes]:
        """DuckDB's hashes: keys that it takes for equal have the same one."""
        with database.tables(rows=(self._schema, self._batches())) as connection:
            query = f"SELECT {self._hash} AS h FROM rows WHERE {self._present}"
            for batch in connection.sql(query).to_arrow_reader(BATCH_ROWS):
                yield batch.column(0).to_numpy()

    def repeated_hashes(self) -> _Hashes:
        """Hashes that more than one row has."""
        parts = -(-self.report.rows // PART_ROWS)
        if parts == 1:
            return _repeated(np.concatenate([np.empty(0, np.uint64), *self._hashes()]))
        with ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(parts)]
            for hashes in self._hashes():
                # The upper half of a hash picks its part.
                part = (hashes >> np.uint64(32)) * np.uint64(parts) >> np.uint64(32)
                for number, file in enumerate(files):
                    file.write(hashes[part == number].tobytes())
            return np.concatenate([_repeated(_read(file)) for file in files])

    def count(self, suspects: _Hashes) -> tuple[int, list[tuple[object, ...]]]:
        """Repeated rows among those with a suspicious hash, and the keys repeated most."""
        names = ", ".join(self._quoted)
        copies = "copies" + "_" * max(map(len, self.names))  # longer than any column of the key
        schema = pa.schema({"h": pa.uint64()})
        found = iter([pa.record_batch([pa.array(suspects)], schema=schema)])
        streams = {"rows": (self._schema, self._batches()), "suspects": (schema, found)}
        with database.tables(**streams) as connection:
            connection.execute(
                f"CREATE OR REPLACE TEMP TABLE repeated AS SELECT {names}, count(*) AS {copies} "
                f"FROM rows WHERE {self._present} AND {self._hash} IN (SELECT h FROM suspects) "
                f"GROUP BY ALL HAVING count(*) > 1"
            )
            extra = connection.execute(
                f"SELECT coalesce(sum({copies} - 1), 0) FROM repeated"
            ).fetchone()
            samples = connection.execute(
                f"SELECT {names} FROM repeated ORDER BY {copies} DESC, {names} LIMIT {SAMPLES}"
            ).fetchall()
        return int(extra[0]) if extra else 0, samples


def _read(file: IO[bytes]) -> _Hashes:
    file.seek(0)
    return np.frombuffer(file.read(), np.uint64)


def _repeated(hashes: _Hashes) -> _Hashes:
    """Values that occur more than once, each once."""
    ordered = np.sort(hashes)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
