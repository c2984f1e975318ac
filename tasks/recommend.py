"""Recommendations for a person to look at: items with titles, and how each ID is embedded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasks.config import PipelineConfig
from tasks.errors import ConfigError
from tasks.evaluation.stored_runs import find_model
from tasks.lake import Lake
from tasks.promotion import POINTER, read_pointer
from tasks.serving.bundles import bundle_folder, champion_folder, served_bundle, trained_model
from tasks.serving.by_id import RecommenderById
from tasks.serving.described import DescribedRecommender, Recommendations

_ORIGINS = {
    "user": "from what this user took before",
    "history": "from the given history",
    "popularity": "from popularity",
}


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
        model = DescribedRecommender(RecommenderById(folder), name)
        # Whatever is read from the folder is read inside this block.
        return model.recommend(user, k, history=history or None, exclude_seen=exclude_seen)


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
            f"The model does not know: {escape(', '.join(map(str, found.unknown_history)))}",
            highlight=False,
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
    folder = bundle_folder(lake, served_bundle(lake, pointer))
    yield folder, f"champion, version {pointer['version']} of {pointer['day']}"
