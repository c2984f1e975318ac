"""Recommendations for a person to look at: items with titles, and how each ID is embedded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pyarrow as pa
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from models.config import Settings
from tasks.config import PipelineConfig
from tasks.errors import ConfigError
from tasks.evaluation.stored_runs import find_model
from tasks.lake import Lake
from tasks.promotion import POINTER, read_pointer
from tasks.serving.bundles import bundle_folder, champion_folder, trained_model
from tasks.serving.by_id import ITEM_SOURCE, USER_SOURCE, RecommenderById

Embedding = Literal["own row", "shared bucket", "not used"]
_ORIGINS = {
    "user": "from what this user took before",
    "history": "from the given history",
    "popularity": "from popularity",
}


class RecommendedItem(Settings):
    """One recommendation."""

    item_id: str | int
    """Raw ID."""
    title: str | None
    """Title, where the items table has one."""
    score: float
    """Inner product of the towers; the train count where the answer is from popularity."""
    train_count: int
    """Interactions that the model was trained on."""
    embedding: Embedding
    """Whether the ID owns a row of the embedding table."""


class Recommendations(Settings):
    """Recommendations for one user."""

    model: str
    """Which model answered."""
    user_id: str | None
    """The user."""
    known_user: bool
    """Whether the user was in the training data."""
    embedding: Embedding
    """Whether the user's ID owns a row of the embedding table."""
    origin: str
    """`user`, `history` or `popularity`."""
    unknown_history: tuple[str, ...] = ()
    """Items of the given history that the model does not know."""
    items: tuple[RecommendedItem, ...]
    """Best first."""


def recommend(
    config: PipelineConfig,
    *,
    user: str | None,
    history: Sequence[str] | None = None,
    k: int = 10,
    run: str | None = None,
    exclude_seen: bool = True,
) -> Recommendations:
    """What a model recommends.

    Args:
        config: The pipeline.
        user: ID of the user.
        history: The user's last items, oldest first, in place of what the model knows.
        k: Items wanted.
        run: A run's model (see `find_model`) instead of the champion.
        exclude_seen: Whether items that the user has taken are left out.

    Raises:
        ConfigError: Neither user nor history is given, or there is no champion yet.
    """
    if user is None and not history:
        raise ConfigError("nobody to recommend to", fix="give --user ID, or --history ITEM")
    with _model(config, run) as (folder, name):
        model = RecommenderById(folder)
        # Whatever is read from the folder is read inside this block.
        return _answer(model, name, user, list(history or ()), k, exclude_seen)


def _answer(
    model: RecommenderById,
    name: str,
    user: str | None,
    history: list[str],
    k: int,
    exclude_seen: bool,
) -> Recommendations:
    answer = model.answer(user, k, history=history or None, exclude_seen=exclude_seen)
    indices = model.items_of(answer.items)
    corpus = model.recommender.corpus
    counts = corpus.column("train_count").to_pylist()
    titles = (
        corpus.column("title").to_pylist()
        if "title" in corpus.column_names
        else [None] * corpus.num_rows
    )
    own = model.owns_row(ITEM_SOURCE, pa.array(answer.items, model.item_ids.type))
    known = user is not None and model.row_of(user) is not None
    user_owns = None if user is None else model.owns_row(USER_SOURCE, pa.array([user]))
    return Recommendations(
        model=name,
        user_id=user,
        known_user=known,
        embedding=_embedding(user_owns, 0),
        origin=answer.origin,
        unknown_history=tuple(
            item for item, n in zip(history, model.items_of(history), strict=True) if n < 0
        ),
        items=tuple(
            RecommendedItem(
                item_id=item,
                title=titles[index],
                score=score,
                train_count=counts[index],
                embedding=_embedding(own, place),
            )
            for place, (item, index, score) in enumerate(
                zip(answer.items, indices, answer.scores, strict=True)
            )
        ),
    )


def show(found: Recommendations, console: Console | None = None) -> None:
    """Prints recommendations as a table."""
    out = console or Console()
    who = f"user {found.user_id}" if found.user_id is not None else "this history"
    notes = [found.model, _ORIGINS[found.origin]]
    if found.user_id is not None:
        notes.append("known user" if found.known_user else "unknown user")
        if found.embedding != "not used":
            notes.append(f"user ID: {found.embedding}")
    table = Table(
        title=f"For {escape(who)}", caption=escape(", ".join(notes)), title_justify="left"
    )
    table.add_column("", justify="right")
    table.add_column("item", no_wrap=True)
    table.add_column("title")
    table.add_column("score", justify="right")
    table.add_column("trained on", justify="right")
    table.add_column("item ID")
    for place, item in enumerate(found.items, start=1):
        table.add_row(
            str(place),
            escape(str(item.item_id)),
            escape(item.title or ""),
            f"{item.score:.4f}" if found.origin != "popularity" else f"{item.score:,.0f}",
            f"{item.train_count:,}",
            item.embedding,
        )
    out.print(table)
    if found.unknown_history:
        out.print(
            f"The model does not know: {escape(', '.join(found.unknown_history))}", highlight=False
        )


@contextmanager
def _model(config: PipelineConfig, run: str | None) -> Iterator[tuple[Path, str]]:
    """Folder and name of the champion's bundle, or of a run's."""
    if run is not None:
        named = find_model(config, run)
        spec = named.spec
        if named.role == "champion" and spec.champion is not None:
            with champion_folder(spec, spec.champion) as folder:
                yield folder, named.label
        else:
            yield bundle_folder(spec.lake(), trained_model(spec, named.role)), named.label
        return
    lake = Lake(config.lake)
    pointer = read_pointer(lake)
    if pointer is None:
        raise ConfigError(
            "there is no champion yet",
            where=f"{lake.url}/{POINTER}",
            fix="train one with `tailtower run`, or name a run with --run",
        )
    folder = bundle_folder(lake, lake.open_published(pointer["output"]))
    yield folder, f"champion, version {pointer['version']} of {pointer['day']}"


def _embedding(owns: list[bool] | None, place: int) -> Embedding:
    if owns is None:
        return "not used"
    return "own row" if owns[place] else "shared bucket"
