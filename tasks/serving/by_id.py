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
import pyarrow.parquet as pq

from models.bundle import Bundle, Recommender
from models.config import FeatureSettings
from models.corpus import FULL_USER_TABLE
from tasks.config import VocabularySettings
from tasks.longtail.columns import from_arrow
from tasks.longtail.encoding import Encoder
from tasks.longtail.vocabulary_table import Vocabulary
from tasks.serving.fallback import top_k
from tasks.serving.id_lookup import IdLookup, cast_ids
from tasks.serving.item_filter import RawId, Where, let_in

USER_SOURCE = "interactions.user_id"
ITEM_SOURCE = "interactions.item_id"

Origin = Literal["user", "history", "popularity"]


@dataclass(frozen=True)
class Answer:
    """Recommendations for one user.

    Attributes:
        items: Raw item IDs, best first.
        scores: Score of each item: the towers' inner product, or the train count when the answer
            comes from popularity.
        origin: What the answer was made from: the user's own data, the given history, or
            popularity.
        indices: Corpus index of each item.
        known_user: Whether the bundle knows the user.
        unknown_candidates: Candidates of the request that the corpus does not have.
    """

    items: list[RawId]
    scores: list[float]
    origin: Origin
    indices: list[int]
    known_user: bool
    unknown_candidates: int = 0


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
        self._id_types: dict[str, pa.DataType] = {}
        self._columns: dict[str, pa.Array] = {}

    @cached_property
    def item_ids(self) -> pa.Array:
        """Raw IDs of the corpus, by index."""
        return _flat(self.recommender.corpus.column("item_id"))

    @cached_property
    def user_ids(self) -> pa.Array:
        """Raw IDs of the users that the bundle knows, by row; empty when it has none."""
        users = self.recommender.users
        return pa.array([], pa.string()) if users is None else _flat(users.column("user_id"))

    @cached_property
    def _items(self) -> IdLookup:
        return IdLookup(self.item_ids)

    @cached_property
    def _known_users(self) -> IdLookup:
        return IdLookup(self.user_ids)

    def read_all(self) -> None:
        """Reads and indexes what is read on demand otherwise, so that no request has to wait."""
        _ = self._items, self._known_users, self.recommender.train_count
        if self.recommender.users is not None:
            for name in self._users.column_names:
                self._column(name)
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
        candidates: Sequence[RawId] | None = None,
        where: Where | None = None,
    ) -> Answer:
        """The best items for a user.

        Args:
            user_id: The user, if there is one.
            k: Items wanted.
            history: The user's last items, oldest first; replaces what the bundle knows.
            attributes: Attributes of the user by feature; replace what the bundle knows.
            exclude_seen: Whether items that the user has taken are left out.
            candidates: The items that may be answered; all by default.
            where: Values of the items' attributes that the answered ones must have.

        Raises:
            ValueError: The items have no such attribute, or it has no such value of its own.
        """
        row = None if user_id is None else self.row_of(user_id)
        known = None if history is None else [n for n in self.items_of(history) if n >= 0]
        seen = set(known or ())
        if row is not None:
            seen |= set(self._column("seen")[row].as_py())
        table = self.encode(
            pa.array([user_id], self.user_ids.type if user_id is None else None),
            history=None if known is None else [known],
            seen=[sorted(seen)],
            attributes={name: pa.array([value]) for name, value in (attributes or {}).items()},
        )
        inputs = self.recommender.inputs(table)
        some = let_in(self, candidates, where)
        indices, scores, popular = top_k(
            self.recommender,
            inputs,
            k,
            exclude_seen=exclude_seen,
            among=None if some is None else some.items,
        )
        found = indices[0] >= 0
        chosen = indices[0][found].numpy()
        return Answer(
            items=self.item_ids.take(pa.array(chosen)).to_pylist(),
            scores=scores[0][found].tolist(),
            origin="popularity" if bool(popular[0]) else "user" if history is None else "history",
            indices=chosen.tolist(),
            known_user=row is not None,
            unknown_candidates=0 if some is None else some.unknown,
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
        return self._items.positions(pa.array(list(items))).tolist()

    def owns_row(self, source: str, ids: pa.Array) -> list[bool] | None:
        """Whether each ID owns a row of the table with this source; None without such a table."""
        names = [name for name, of_table in self._sources.items() if of_table == source]
        if not names:
            return None
        return (self._own_rows(names[0], ids) >= 0).tolist()

    def row_of_id(self, table: str, value: RawId) -> int | None:
        """The row of a table that an ID owns, None for one that shares a bucket."""
        (row,) = self._own_rows(table, pa.array([value]))
        return None if row < 0 else int(row)

    def _own_rows(self, table: str, ids: pa.Array) -> npt.NDArray[np.int32]:
        """Row of each ID that owns one, -1 for the others."""
        encoder = self._encoder(table)
        ids = cast_ids(ids, self._id_types[table])
        rows = encoder.codes(pl.Series(pl.from_arrow(ids)))[:, 0]
        return np.where(rows >= encoder.vocabulary.first_own_row, rows, -1)

    @property
    def _users(self) -> pa.Table:
        users = self.recommender.users
        assert users is not None  # a row was found in it
        return users

    def _rows_of(self, user_ids: pa.Array) -> npt.NDArray[np.int64]:
        return self._known_users.positions(user_ids)

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
        column = self._column(name)
        found = column.take(pa.array(rows[rows >= 0]))
        if len(found) == len(rows):
            return found
        found = pa.concat_arrays([found, pa.array([missing.as_py()], column.type)])
        return found.take(pa.array(np.where(rows < 0, len(found) - 1, (rows >= 0).cumsum() - 1)))

    def _column(self, name: str) -> pa.Array:
        """A column of the bundle's users as one array."""
        if name not in self._columns:
            self._columns[name] = _flat(self._users.column(name))
        return self._columns[name]

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
        known = self._id_types[table]
        listed = pa.types.is_list(values.type)
        wanted = pa.list_(known) if listed else known
        if values.type != wanted:
            values = values.cast(wanted) if listed else cast_ids(values, wanted)
        ids = pl.Series(pl.from_arrow(values))
        return encoder.code_lists(ids, listed=listed).to_arrow()

    def _encoder(self, table: str) -> Encoder:
        if table not in self._encoders:
            policy = self.recommender.bundle.policies[table]["policy"]
            rows = pq.ParquetFile(self._folder / "vocabulary" / f"{table}.parquet").read()
            vocabulary = Vocabulary(VocabularySettings.model_validate(policy), from_arrow(rows))
            self._encoders[table] = Encoder(vocabulary, table)
            ids = vocabulary.table["id"].slice(0, 0)
            self._id_types[table] = ids.to_arrow(compat_level=pl.CompatLevel.oldest()).type
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


def _flat(column: pa.ChunkedArray) -> pa.Array:
    """One array out of a column; dictionaries are decoded."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
