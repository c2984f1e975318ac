"""Recommendations by raw IDs: what a bundle's model says about a user or a history.

Known users are read from the bundle. Everybody else is encoded by the bundle's own vocabularies,
exactly as the examples were; a user about whom nothing is known gets the most popular items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from models.bundle import Bundle, Recommender
from models.config import FeatureSettings
from models.corpus import FULL_USER_TABLE
from tasks.config import VocabularySettings
from tasks.longtail.columns import from_arrow
from tasks.longtail.encoding import Encoder
from tasks.longtail.vocabulary_table import Vocabulary
from tasks.serving.fallback import top_k

USER_SOURCE = "interactions.user_id"
ITEM_SOURCE = "interactions.item_id"

Origin = Literal["user", "history", "popularity"]
RawId = str | int


@dataclass(frozen=True)
class Answer:
    """Recommendations for one user.

    Attributes:
        items: Raw item IDs, best first.
        scores: Score of each item: the towers' inner product, or the train count when the answer
            comes from popularity.
        origin: What the answer was made from: the user's own data, the given history, or
            popularity.
    """

    items: list[RawId]
    scores: list[float]
    origin: Origin


class RecommenderById:
    """Recommends by raw IDs with the model of a bundle.

    Args:
        folder: Local folder of the bundle.
        verify: Whether every file's digest is checked.

    Raises:
        BundleError: The bundle is incomplete, damaged or mixed from several models.
    """

    def __init__(self, folder: str | Path, *, verify: bool = True) -> None:
        self.recommender = Recommender.load(folder, verify=verify)
        self._folder = Path(folder)
        policies = self.recommender.bundle.policies
        self._sources = {name: str(policy.get("source", "")) for name, policy in policies.items()}
        self._encoders: dict[str, Encoder] = {}

    @cached_property
    def item_ids(self) -> pa.Array:
        """Raw IDs of the corpus, by index."""
        return _flat(self.recommender.corpus.column("item_id"))

    @cached_property
    def user_ids(self) -> pa.Array:
        """Raw IDs of the users that the bundle knows, by row; empty when it has none."""
        users = self.recommender.users
        return pa.array([], pa.string()) if users is None else _flat(users.column("user_id"))

    def read_all(self) -> None:
        """Reads what is read on demand otherwise, so that the folder may go away."""
        _ = self.item_ids, self.user_ids
        for table in self.recommender.bundle.policies:
            self._encoder(table)

    def answer(
        self,
        user_id: RawId | None = None,
        k: int = 10,
        *,
        history: Sequence[RawId] | None = None,
        attributes: Mapping[str, RawId | Sequence[RawId] | None] | None = None,
        exclude_seen: bool = True,
    ) -> Answer:
        """The best items for a user.

        Args:
            user_id: The user, if there is one.
            k: Items wanted.
            history: The user's last items, oldest first; replaces what the bundle knows.
            attributes: Attributes of the user by feature; replace what the bundle knows.
            exclude_seen: Whether items that the user has taken are left out.
        """
        row = None if user_id is None else self.row_of(user_id)
        known = None if history is None else [n for n in self.items_of(history) if n >= 0]
        seen = set(known or ())
        if row is not None:
            seen |= set(self._users.column("seen")[row].as_py())
        table = self.encode(
            pa.array([user_id], self.user_ids.type if user_id is None else None),
            history=None if known is None else [known],
            seen=[sorted(seen)],
            attributes={name: pa.array([value]) for name, value in (attributes or {}).items()},
        )
        inputs = self.recommender.inputs(table)
        indices, scores, popular = top_k(self.recommender, inputs, k, exclude_seen=exclude_seen)
        found = indices[0] >= 0
        return Answer(
            self.item_ids.take(pa.array(indices[0][found].numpy())).to_pylist(),
            scores[0][found].tolist(),
            "popularity" if bool(popular[0]) else "user" if history is None else "history",
        )

    def encode(
        self,
        user_ids: pa.Array,
        *,
        history: Sequence[Sequence[int]] | pa.Array | None = None,
        seen: Sequence[Sequence[int]] | pa.Array | None = None,
        attributes: Mapping[str, pa.Array] | None = None,
    ) -> pa.Table:
        """Users as a table that `Recommender.inputs` reads.

        Args:
            user_ids: Raw IDs `[U]`; null for nobody in particular.
            history: Indices in this bundle's corpus of each user's last items, oldest first; by
                default what the bundle knows.
            seen: Indices to leave out; by default what the bundle knows.
            attributes: Raw values of user attributes by feature, where the caller has newer or
                other ones than the bundle.
        """
        rows = self._rows_of(user_ids)
        columns: dict[str, pa.Array] = {
            "user": self._taken("user", rows, pa.scalar(-1, pa.int64()))
            if self.recommender.users is not None
            else pa.array(np.full(len(rows), -1)),
            "history": self._indices("history", rows, history),
            "seen": self._indices("seen", rows, seen),
        }
        trained = self.recommender.bundle.trained
        for f in trained.model.user.features if trained is not None else ():
            if f.kind != "history":
                of_feature = self._numbers if f.kind == "numeric" else self._codes
                columns[f.name] = of_feature(f, user_ids, rows, attributes or {})
        return pa.table(columns)

    def row_of(self, user_id: RawId) -> int | None:
        """Row of a user in the bundle's table of users, if it is there."""
        row = int(self._rows_of(pa.array([user_id]))[0])
        return None if row < 0 else row

    def items_of(self, items: Sequence[RawId]) -> list[int]:
        """Corpus index of each item, -1 for items that the corpus does not have."""
        if not items:
            return []
        return _positions(pa.array(list(items)), self.item_ids).tolist()

    def owns_row(self, source: str, ids: pa.Array) -> list[bool] | None:
        """Whether each ID owns a row of the table with this source; None without such a table."""
        names = [name for name, of_table in self._sources.items() if of_table == source]
        if not names:
            return None
        found = _positions(ids, _owners(self._encoder(names[0])))
        return (found >= 0).tolist()

    @property
    def _users(self) -> pa.Table:
        users = self.recommender.users
        assert users is not None  # a row was found in it
        return users

    def _rows_of(self, user_ids: pa.Array) -> npt.NDArray[np.int64]:
        return _positions(user_ids, self.user_ids)

    def _indices(
        self,
        name: str,
        rows: npt.NDArray[np.int64],
        given: Sequence[Sequence[int]] | pa.Array | None,
    ) -> pa.Array:
        if given is not None:
            return given if isinstance(given, pa.Array) else pa.array(given, pa.list_(pa.int32()))
        if self.recommender.users is None:
            return pa.array([[]] * len(rows), pa.list_(pa.int32()))
        return self._taken(name, rows, pa.scalar([], pa.list_(pa.int32())))

    def _taken(self, name: str, rows: npt.NDArray[np.int64], missing: pa.Scalar) -> pa.Array:
        """Values of a column of the bundle's users; the rest gets the value for missing ones."""
        column = _flat(self._users.column(name))
        column = pa.concat_arrays([column, pa.array([missing.as_py()], column.type)])
        return column.take(pa.array(np.where(rows < 0, len(column) - 1, rows)))

    def _codes(
        self,
        f: FeatureSettings,
        user_ids: pa.Array,
        rows: npt.NDArray[np.int64],
        attributes: Mapping[str, pa.Array],
    ) -> pa.Array:
        if f.table == FULL_USER_TABLE:  # read from `user`; the column only has to be there
            return pa.array([[0]] * len(rows), pa.list_(pa.int32()))
        if self._sources.get(f.table) == USER_SOURCE:
            return self._encoded(f.table, user_ids)
        if f.name in attributes:
            return self._encoded(f.table, attributes[f.name])
        empty = self._encoded(f.table, pa.array([[]], pa.list_(pa.string())))
        if self.recommender.users is None:
            return empty.take(pa.array(np.zeros(len(rows), dtype=np.int64)))
        return self._taken(f.name, rows, empty[0])

    def _numbers(
        self,
        f: FeatureSettings,
        user_ids: pa.Array,
        rows: npt.NDArray[np.int64],
        attributes: Mapping[str, pa.Array],
    ) -> pa.Array:
        """Raw numbers; the model normalises them as it did in training."""
        if f.name in attributes:
            return attributes[f.name].cast(pa.float64())
        if self.recommender.users is None:
            return pa.nulls(len(user_ids), pa.float64())
        return self._taken(f.name, rows, pa.scalar(None, pa.float64()))

    def _encoded(self, table: str, values: pa.Array) -> pa.Array:
        """Codes of IDs, or of lists of IDs, by the bundle's vocabulary of a table."""
        encoder = self._encoder(table)
        known = _owners(encoder).type
        listed = pa.types.is_list(values.type)
        wanted = pa.list_(known) if listed else known
        if values.type != wanted:
            values = values.cast(wanted) if listed else _cast(values, wanted)
        ids = pl.Series(pl.from_arrow(values))
        return encoder.code_lists(ids, listed=listed).to_arrow()

    def _encoder(self, table: str) -> Encoder:
        if table not in self._encoders:
            policy = self.recommender.bundle.policies[table]["policy"]
            rows = pq.ParquetFile(self._folder / "vocabulary" / f"{table}.parquet").read()
            vocabulary = Vocabulary(VocabularySettings.model_validate(policy), from_arrow(rows))
            self._encoders[table] = Encoder(vocabulary, table)
        return self._encoders[table]


def attributes_of(bundle: Bundle) -> dict[str, FeatureSettings]:
    """Features of a bundle's user tower that are attributes of the users, by name."""
    features = bundle.trained.model.user.features if bundle.trained is not None else ()
    return {
        f.name: f
        for f in features
        if f.kind == "numeric"
        or (
            f.kind != "history"
            and str(bundle.policies.get(f.table, {}).get("source", "")).startswith("users.")
        )
    }


def _owners(encoder: Encoder) -> pa.Array:
    """IDs that own a row."""
    return encoder.vocabulary.table["id"].to_arrow(compat_level=pl.CompatLevel.oldest())


def _positions(ids: pa.Array, known: pa.Array) -> npt.NDArray[np.int64]:
    """Position of each ID among the known ones, -1 where it is not; int64 `[N]`.

    An ID typed by hand or sent as JSON may be text where the lake has integers: whatever cannot
    be one of the known IDs is simply not found.
    """
    if pa.types.is_null(ids.type) or len(known) == 0:
        return np.full(len(ids), -1, dtype=np.int64)
    if ids.type != known.type:
        ids = _cast(ids, known.type)
    found = pc.index_in(ids, value_set=known, skip_nulls=True)
    return np.asarray(found.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _cast(ids: pa.Array, wanted: pa.DataType) -> pa.Array:
    try:
        return ids.cast(wanted)
    except pa.ArrowInvalid:
        return pa.array([_cast_one(value, wanted) for value in ids], wanted)


def _cast_one(value: pa.Scalar, wanted: pa.DataType) -> RawId | None:
    try:
        found: RawId | None = value.cast(wanted).as_py()
    except pa.ArrowInvalid:
        return None
    return found


def _flat(column: pa.ChunkedArray) -> pa.Array:
    """One array out of a column; dictionaries are decoded."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
