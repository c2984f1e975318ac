"""The servable model: one folder with weights, corpus, users and vocabularies, and its reader.

A bundle is complete when `bundle.json`, written last, is in the folder. It names every other
file with its digest, so a folder put together from two models, or cut short by a failed copy,
is refused. Reading needs neither TorchRec nor a process group.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.fs as pafs
import torch
from pydantic import Field, ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor

from models import popularity, retrieval
from models.batch import UserInputs, integers
from models.config import Settings
from models.corpus import FULL_USER_TABLE, Corpus
from models.encoder import Encoder, TowerInputs
from models.errors import BundleError, ExamplesError
from models.jagged import Jagged
from models.prior import with_constant, with_prior
from models.search_index import SearchIndex
from models.serving_settings import Precision
from models.storage import locate, read_parquet
from models.stored_rows import StoredRows
from models.weights import (
    Part,
    TrainedModel,
    compute_item_vectors,
    load_tables,
    load_towers,
    part_of,
    read_weights_file,
    verify_parts,
)

BUNDLE = "bundle.json"
CORPUS = "corpus.parquet"
USERS = "users.parquet"
ITEM_VECTORS = "item_vectors.safetensors"
INDEX = "items.faiss"
_USER_BLOCK = 4096

Kind = Literal["two_tower", "traditional", "popularity"]


class ServedNumbers(Settings):
    """How a published bundle keeps its numbers, and what that costs."""

    tables: Precision
    """Numbers of the embedding tables."""
    item_vectors: Precision
    """Numbers of the item vectors."""
    probes: int | None
    """Lists of the index that a search looks into; None without an index."""
    users: int
    """Users on whom the rest was measured."""
    k: int
    """Items that were compared for each of them."""
    user_vector_error: float
    """Largest distance of a user's vector from that of full precision."""
    item_vector_error: float
    """The same of an item's."""
    overlap: float
    """Share of the best items by full precision that the exact search still finds."""
    recall: float | None
    """Share of the exact search's items that the index finds; None without an index."""


class Bundle(Settings):
    """Content of `bundle.json`."""

    kind: Kind
    """Which model it is."""
    trained: TrainedModel | None
    """Settings of the trained model; None for popularity."""
    num_items: int
    """Items in the corpus."""
    policies: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """How IDs without a row get codes, by table: rows, hashes, tail buckets, seed."""
    info: dict[str, Any] = Field(default_factory=dict)
    """Where the model comes from: day, run, versions."""
    served: ServedNumbers | None = None
    """How the numbers of a published bundle are kept; None for the trained ones."""
    parts: dict[str, Part]
    """Every other file of the bundle."""

    def parameters(self) -> int:
        """Number of trained parameters; 0 for popularity."""
        return 0 if self.trained is None else self.trained.parameters()


class Vocabulary(Settings):
    """Vocabulary of one table, as it goes into a bundle."""

    file: str
    """Parquet file of the IDs that own a row; a path or URL."""
    policy: dict[str, Any]
    """How all other IDs get codes: rows, hashes, tail buckets, seed."""


def write_bundle(
    folder: str | Path,
    *,
    kind: Kind,
    weights_dir: str | Path | None,
    corpus_file: str,
    users_file: str | None = None,
    vocabularies: Mapping[str, Vocabulary] | None = None,
    info: Mapping[str, Any] | None = None,
) -> Bundle:
    """Puts a bundle together.

    Args:
        folder: Local folder, new or empty.
        kind: Which model it is.
        weights_dir: Output of training; None for popularity.
        corpus_file: The corpus that was trained on.
        users_file: The train users, with features, history and seen items.
        vocabularies: Vocabulary of each table.
        info: JSON-like facts worth keeping: day, run, versions.

    Raises:
        BundleError: The folder is in use, or the weights are unfinished, damaged or of another
            kind or corpus.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise BundleError(f"{target} is not empty: give a new folder for the bundle")
    names = [CORPUS, ITEM_VECTORS]
    _copy(corpus_file, target / CORPUS)
    trained = None
    if weights_dir is not None:
        trained, part_names = _copy_weights(Path(weights_dir), target, kind)
        names += part_names
    elif kind != "popularity":
        raise BundleError(f"a {kind} model needs trained weights")
    if users_file is not None:
        names.append(USERS)
        _copy(users_file, target / USERS)
    for table, vocabulary in (vocabularies or {}).items():
        names.append(f"vocabulary/{table}.parquet")
        _copy(vocabulary.file, target / names[-1])
    vectors = _item_vectors(target, trained)
    save_file({"vectors": vectors.contiguous()}, target / ITEM_VECTORS)
    bundle = Bundle(
        kind=kind,
        trained=trained,
        num_items=len(vectors),
        policies={name: dict(v.policy) for name, v in (vocabularies or {}).items()},
        info=dict(info or {}),
        parts={name: part_of(target / name) for name in names},
    )
    write_marker(target, bundle)
    return bundle


def write_marker(folder: Path, bundle: Bundle) -> None:
    """Writes `bundle.json`, which makes a folder with all parts a bundle."""
    marker = folder / f"{BUNDLE}.partial"
    marker.write_text(bundle.model_dump_json(indent=1), encoding="utf-8")
    marker.replace(folder / BUNDLE)


def read_bundle(folder: str | Path, *, verify: bool = True) -> Bundle:
    """Reads `bundle.json` and checks the files that it names.

    Args:
        folder: Local folder of the bundle.
        verify: Whether every file's digest is checked; else its size.

    Raises:
        BundleError: The bundle is incomplete, damaged or mixed from several models.
    """
    path = Path(folder) / BUNDLE
    if not path.is_file():
        raise BundleError(f"{path} is missing: not a model bundle, or one that was not finished")
    try:
        bundle = Bundle.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        raise BundleError(f"{path} is damaged: {error}") from error
    # A memory map of a file that was cut short kills the process that reads its end.
    verify_parts(Path(folder), bundle.parts, digests=verify)
    return bundle


class Recommender:
    """Recommends items with the model of a bundle.

    Args:
        folder: Local folder of the bundle.
        bundle: Its content.
    """

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        self.folder = folder
        self.bundle = bundle
        self.vectors = _read_vectors(folder, bundle)
        """The item vectors, as they are stored."""
        self.index: SearchIndex | None = None
        """What proposes items instead of the search through all of them."""
        if bundle.trained is not None:
            self.towers = load_towers(folder, bundle.trained)
            self.tables = _read_tables(folder, bundle)
            _, self.encoder = _corpus_and_encoder(folder, bundle.trained)
        if bundle.served is not None and bundle.served.probes is not None:
            items, dim = self.vectors.shape
            self.index = SearchIndex.load(
                folder / INDEX, probes=bundle.served.probes, items=items, dim=dim
            )

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool = True) -> Recommender:
        """Opens a bundle.

        Args:
            folder: Local folder of the bundle.
            verify: Whether every file's digest is checked.

        Raises:
            BundleError: The bundle is incomplete, damaged or mixed from several models.
        """
        return cls(Path(folder), read_bundle(folder, verify=verify))

    @property
    def kind(self) -> Kind:
        """Which model it is."""
        return self.bundle.kind

    @property
    def num_items(self) -> int:
        """Items in the corpus."""
        return self.bundle.num_items

    @property
    def item_vectors(self) -> Tensor:
        """Vectors of all items, float32 `[I, D]`."""
        return self.vectors[:]

    @cached_property
    def corpus(self) -> pa.Table:
        """The corpus: `item_id`, `title`, `train_count` and codes; the row number is the index."""
        return read_parquet(str(self.folder / CORPUS))

    @cached_property
    def users(self) -> pa.Table | None:
        """The train users with their features, history and seen items, if the bundle has them."""
        path = self.folder / USERS
        return read_parquet(str(path)) if USERS in self.bundle.parts else None

    @cached_property
    def train_count(self) -> Tensor:
        """Train interactions of each item, int64 `[I]`."""
        return integers(self.corpus, "train_count")

    def inputs(self, table: pa.Table) -> UserInputs:
        """Users of a table with the columns of the `users` or `test` examples.

        Raises:
            ValueError: A column that this model needs is missing, has another type or nulls, or
                a code is outside its table.
        """
        if self.bundle.trained is None:
            return UserInputs.from_arrow(table, None)
        users = UserInputs.from_arrow(table, self.bundle.trained.model)
        self._check(users)
        return users

    @torch.no_grad()
    def user_vectors(self, users: UserInputs) -> Tensor:
        """Vectors of users, float32 `[U, D]`."""
        if self.bundle.trained is None:
            return popularity.user_vectors(len(users))
        blocks = []
        for first in range(0, len(users), _USER_BLOCK):
            block = users.slice(first, first + _USER_BLOCK)
            rows, codes = self._touched(self.encoder.user_codes(block))
            blocks.append(self.towers.user_vectors(rows, codes))
        if not blocks:
            return torch.zeros(0, self.vectors.shape[1])
        return with_constant(torch.cat(blocks), self.bundle.trained.model)

    def top_k(
        self,
        users: UserInputs,
        k: int,
        exclude_seen: bool = True,
        *,
        among: Tensor | None = None,
        exact: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The `k` best items of each user.

        Args:
            users: The users, U of them.
            k: Items wanted.
            exclude_seen: Whether `users.seen` is left out.
            among: Corpus indices, ascending, of the items that count, int64 `[N]`; all by
                default. They are always searched exactly.
            exact: Whether every item is scored where there is an index, too.

        Returns:
            Corpus indices int64 `[U, k]` and scores float32 `[U, k]`, best first; -1 and -inf
            where fewer than `k` items are left.
        """
        seen = users.seen if exclude_seen else None
        vectors = self.user_vectors(users)
        if among is not None:
            return retrieval.among(vectors, self.vectors, among, k, seen)
        if self.index is None or exact:
            return retrieval.top_k(vectors, self.vectors, k, seen)
        return retrieval.approximate_top_k(vectors, self.vectors, k, self.index, seen)

    def _touched(self, codes: TowerInputs) -> tuple[dict[str, Tensor], TowerInputs]:
        """Rows of the tables that some users' codes name, and the codes as places in them.

        A tower does work for each row that it is given; a user touches a few dozen.
        """
        assert self.bundle.trained is not None
        tables = {f.name: f.table for f in self.bundle.trained.model.user.coded}
        rows: dict[str, Tensor] = {}
        places: dict[str, Jagged] = {}
        for table in set(tables.values()):
            names = [name for name, of in tables.items() if of == table]
            values = torch.cat([codes[name].values for name in names])
            distinct, place = torch.unique(values, return_inverse=True)
            rows[table] = self.tables[table].select(distinct)
            for name, part in zip(
                names, place.split([codes[name].values.numel() for name in names]), strict=True
            ):
                places[name] = Jagged(part, codes[name].offsets)
        return rows, TowerInputs(places, codes.numbers)

    def _check(self, users: UserInputs) -> None:
        """Refuses codes and items that would silently read a wrong row."""
        trained = self.bundle.trained
        assert trained is not None
        limits = {
            f.name: trained.table_rows[f.table]
            for f in trained.model.user.coded
            if f.kind != "history" and f.table != FULL_USER_TABLE
        }
        columns = {name: codes.values for name, codes in users.features.items() if name in limits}
        columns |= {"history": users.history.values}
        limits["history"] = self.num_items
        if users.seen is not None:
            columns["seen"], limits["seen"] = users.seen.values, self.num_items
        for name, values in columns.items():
            if values.numel() and not (0 <= int(values.min()) <= int(values.max()) < limits[name]):
                raise ValueError(
                    f"column '{name}' has a value outside [0, {limits[name]}): the users were "
                    "encoded for another model"
                )
        if users.user.numel() and int(users.user.max()) >= trained.num_users:
            raise ValueError(f"column 'user' has a value of {trained.num_users} or more")


def _read_vectors(folder: Path, bundle: Bundle) -> StoredRows:
    path = folder / ITEM_VECTORS
    if bundle.served is not None:
        assert bundle.trained is not None
        dim = bundle.trained.model.dim + (bundle.trained.model.prior is not None)
        return StoredRows.load(path, bundle.served.item_vectors, bundle.num_items, dim)
    vectors = load_file(path)["vectors"]
    if len(vectors) != bundle.num_items:
        raise BundleError(f"{path} has {len(vectors)} vectors for {bundle.num_items} items")
    return StoredRows.of(vectors)


def _read_tables(folder: Path, bundle: Bundle) -> dict[str, StoredRows]:
    trained, served = bundle.trained, bundle.served
    assert trained is not None
    if served is None:
        tables = load_tables(folder, trained)
        return {name: StoredRows.of(table) for name, table in tables.items()}
    return {
        name: StoredRows.load(
            folder / table_file(name), served.tables, trained.table_rows[name], settings.dim
        )
        for name, settings in trained.tables.items()
    }


def table_file(name: str) -> str:
    """Where a bundle keeps an embedding table."""
    return f"tables/{name}.safetensors"


def _item_vectors(folder: Path, trained: TrainedModel | None) -> Tensor:
    if trained is None:
        counts = read_parquet(str(folder / CORPUS), ["train_count"])
        train_count = integers(counts, "train_count")
        return popularity.item_vectors(train_count)
    corpus, encoder = _corpus_and_encoder(folder, trained)
    towers = load_towers(folder, trained)
    vectors = compute_item_vectors(towers, load_tables(folder, trained), encoder, len(corpus))
    return with_prior(vectors, corpus, trained.model)


def _corpus_and_encoder(folder: Path, trained: TrainedModel) -> tuple[Corpus, Encoder]:
    try:
        corpus = Corpus.from_parquet(str(folder / CORPUS), trained.model, trained.table_rows)
        return corpus, Encoder(trained.model, corpus, trained.table_hashes, numeric=trained.numeric)
    except (ExamplesError, ValueError) as error:
        raise BundleError(f"corpus and weights do not fit: {error}") from error


def _copy_weights(source: Path, target: Path, kind: Kind) -> tuple[TrainedModel, list[str]]:
    weights = read_weights_file(source)
    if weights is None:
        raise BundleError(f"{source} holds no finished weights")
    if weights.trained.kind != kind:
        raise BundleError(f"{source} holds a {weights.trained.kind} model, not a {kind} model")
    verify_parts(source, weights.parts)
    for name in weights.parts:
        _copy(str(source / name), target / name)
    return weights.trained, [*weights.parts]


def _copy(location: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    filesystem, path = locate(location)
    try:
        pafs.copy_files(
            path, str(target), source_filesystem=filesystem, destination_filesystem=_LOCAL
        )
    except OSError as error:
        raise BundleError(f"{location} cannot be copied: {error}") from error


_LOCAL = pafs.LocalFileSystem()
