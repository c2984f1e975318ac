"""From IDs to codes: the rows of an embedding table whose sum is the ID's vector."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl

from tasks.errors import DataError, LakeError
from tasks.lake import Lake
from tasks.longtail.hash_index import HashIndex
from tasks.longtail.id_hash import tail_buckets
from tasks.longtail.lists import ListColumn
from tasks.longtail.vocabulary_table import Vocabulary, read_vocabulary


class Encoder:
    """Encodes IDs with one vocabulary, by a hash index that is built once.

    The map is total: an ID that owns no row, seen or not, gets its bucket rows; a null gets the
    padding row.

    Args:
        vocabulary: The vocabulary.
        name: Name of the table, for messages.
    """

    def __init__(self, vocabulary: Vocabulary, name: str) -> None:
        self.vocabulary = vocabulary
        self._name = name
        table = vocabulary.table
        self._own_rows = HashIndex(table["id"], table["row"].to_numpy())

    @property
    def hashes(self) -> int:
        """Codes for each ID."""
        return self.vocabulary.policy.hashes

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
        policy = self.vocabulary.policy
        if ids.null_count() == len(ids):
            return np.zeros((len(ids), policy.hashes), dtype=np.int32)
        self._check_type(ids)
        own = self._own_rows.values(ids)
        in_tail = np.flatnonzero(own < 0)
        codes = own.reshape(-1, 1)
        if policy.hashes > 1:
            codes = np.zeros((len(ids), policy.hashes), dtype=np.int32)
            codes[:, 0] = own
        if in_tail.size:
            placed = tail_buckets(
                ids[in_tail], buckets=policy.tail_buckets, hashes=policy.hashes, seed=policy.seed
            )
            for number, bucket in enumerate(placed):
                codes[in_tail, number] = bucket.fill_null(0).to_numpy()
        if not (codes.min() >= 0 and codes.max() < self.vocabulary.rows):
            raise LakeError(
                f"a code of table '{self._name}' lies outside its {self.vocabulary.rows} rows",
                fix="remove the vocabulary's folder and run the step again",
            )
        return codes

    def owns_row(self, ids: pl.Series) -> npt.NDArray[np.bool_]:
        """Which of some IDs have a row of their own, `[N]`."""
        if ids.null_count() == len(ids):
            return np.zeros(len(ids), dtype=np.bool_)
        self._check_type(ids)
        return self._own_rows.values(ids) >= 0

    def _check_type(self, ids: pl.Series) -> None:
        known = self._own_rows.dtype
        if not self.vocabulary.table.is_empty() and ids.dtype != known:
            raise DataError(
                f"the IDs of table '{self._name}' are {ids.dtype}, its vocabulary has {known}",
                fix="deliver all days with one type",
            )

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
