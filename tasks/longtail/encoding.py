"""From IDs to codes: the rows of an embedding table whose sum is the ID's vector."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl

from tasks.errors import DataError, LakeError
from tasks.lake import Lake
from tasks.longtail.id_hash import tail_buckets
from tasks.longtail.lists import ListColumn
from tasks.longtail.vocabulary_table import Vocabulary, read_vocabulary


class Encoder:
    """Encodes IDs with one vocabulary, by a vectorised hash join.

    The map is total: an ID that owns no row, seen or not, gets its bucket rows; a null gets the
    padding row.

    Args:
        vocabulary: The vocabulary.
        name: Name of the table, for messages.
    """

    def __init__(self, vocabulary: Vocabulary, name: str) -> None:
        self._vocabulary = vocabulary
        self._name = name
        self._rows = vocabulary.table.select("id", "row")

    @property
    def hashes(self) -> int:
        """Codes for each ID."""
        return self._vocabulary.policy.hashes

    def codes(self, ids: pl.Series) -> npt.NDArray[np.int32]:
        """Codes of IDs.

        Args:
            ids: The IDs, `[N]`.

        Returns:
            Int32 `[N, hashes]`; the row of an owner is followed by zeros.

        Raises:
            DataError: The IDs are of another type than the vocabulary's.
            LakeError: A code lies outside the table.
        """
        policy = self._vocabulary.policy
        codes = np.zeros((len(ids), policy.hashes), dtype=np.int32)
        frame = pl.DataFrame({"id": ids}).with_columns(self._own_rows(ids))
        own = frame["row"].to_numpy(allow_copy=True)
        owns = frame["row"].is_not_null().to_numpy()
        codes[owns, 0] = own[owns]
        tail = frame["row"].is_null() & frame["id"].is_not_null()
        placed = tail_buckets(
            frame["id"].filter(tail),
            buckets=policy.tail_buckets,
            hashes=policy.hashes,
            seed=policy.seed,
        )
        in_tail = tail.to_numpy()
        for number, bucket in enumerate(placed):
            codes[in_tail, number] = bucket.to_numpy()
        if codes.size and not (codes.min() >= 0 and codes.max() < self._vocabulary.rows):
            raise LakeError(
                f"a code of table '{self._name}' lies outside its {self._vocabulary.rows} rows",
                fix="remove the vocabulary's folder and run the step again",
            )
        return codes

    def code_lists(self, ids: pl.Series, *, listed: bool) -> ListColumn:
        """Codes of each row, flat, element after element.

        Args:
            ids: IDs, or lists of IDs; a null list and nulls in a list have no codes, a null that
                is not in a list has the padding row.
            listed: Whether `ids` holds lists.
        """
        if not listed:
            codes = self.codes(ids)
            lengths = np.full(len(ids), self.hashes, dtype=np.int64)
            return ListColumn.of_lengths(lengths, codes.reshape(-1))
        lists = ids.list.drop_nulls()
        lengths = lists.list.len().fill_null(0).to_numpy().astype(np.int64)
        flat = lists.drop_nulls().explode(empty_as_null=False)
        return ListColumn.of_lengths(lengths * self.hashes, self.codes(flat).reshape(-1))

    def _own_rows(self, ids: pl.Series) -> pl.Series:
        if self._rows.is_empty() or ids.null_count() == len(ids):
            return pl.Series("row", [None], dtype=pl.Int32).new_from_index(0, len(ids))
        known = self._rows.schema["id"]
        if ids.dtype != known:
            raise DataError(
                f"the IDs of table '{self._name}' are {ids.dtype}, its vocabulary has {known}",
                fix="deliver all days with one type",
            )
        keys = pl.DataFrame({"id": ids})
        joined = keys.join(self._rows, on="id", how="left", maintain_order="left")
        return joined["row"]


@lru_cache(maxsize=16)
def encoder_of(url: str, path: str, name: str) -> Encoder:
    """The encoder of a published vocabulary; made once in each process.

    Args:
        url: The lake.
        path: Lake path of the vocabulary.
        name: Name of the table.
    """
    lake = Lake(url)
    return Encoder(read_vocabulary(lake, lake.open_published(path)), name)
