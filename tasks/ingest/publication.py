"""Publishes days of raw data: whole or not at all, and never one log over another by accident."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Literal

from tasks.errors import DataError
from tasks.lake import Lake, Output, Published, partition_name

#: What to do with a day that already holds data of another source.
Existing = Literal["refuse", "replace", "append"]
#: What was done with a day.
Action = Literal["published", "unchanged", "replaced", "appended"]

_SOURCES = "sources"


@dataclass(frozen=True)
class PublishedDay:
    """A raw day after publication."""

    published: Published
    action: Action


def decide(
    lake: Lake, dataset: str, day: date, *, source: str, existing: Existing
) -> tuple[Action, Published | None]:
    """What publishing ``source`` into a day would do, and the day's present content.

    Raises:
        DataError: The day holds other data and ``existing`` is ``refuse``.
    """
    present = lake.partition(dataset, day)
    if present is None:
        return "published", None
    sources = sources_of(present)
    if sources == [source] or (existing == "append" and source in sources):
        return "unchanged", present
    if existing == "replace":
        return "replaced", present
    if existing == "append":
        return "appended", present
    raise DataError(
        f"{dataset} already holds data of another source for {day}",
        where=f"{lake.url}/{present.path}",
        fix="use --append to add to it, --replace to overwrite it, or another lake",
    )


def publish_day(
    lake: Lake,
    dataset: str,
    day: date,
    write: Callable[[Output, Published | None], None],
    *,
    source: str,
    existing: Existing = "refuse",
) -> PublishedDay:
    """Publishes a raw day unless it holds this source already.

    Args:
        lake: The lake.
        dataset: For example ``raw/interactions``.
        day: UTC day of the partition.
        write: Writes the day's files. Its second argument is the content to append to, if any.
        source: Digest of what the data is made from; the same again is no work.
        existing: What to do with a day that holds another source's data.

    Raises:
        DataError: The day holds other data and ``existing`` is ``refuse``.
    """
    action, present = decide(lake, dataset, day, source=source, existing=existing)
    if action == "unchanged" and present is not None:
        return PublishedDay(present, action)
    base = present if action == "appended" else None
    published = lake.publish(
        f"{dataset}/{partition_name(day)}",
        lambda output: write(output, base),
        dataset=dataset,
        day=day,
        settings={_SOURCES: [*(sources_of(base) if base else []), source]},
    )
    if present is not None:
        _remove_superseded(lake, present, published)
    return PublishedDay(published, action)


def sources_of(published: Published) -> list[str]:
    """Digests of the sources that a raw day was made from; for foreign data, its own digest."""
    recorded = published.manifest.settings.get(_SOURCES)
    if isinstance(recorded, list):
        return [str(source) for source in recorded]
    return [published.digest]


def _remove_superseded(lake: Lake, old: Published, new: Published) -> None:
    # The new manifest is in place, so nothing points at these files any more.
    keep = set(new.files())
    for path in old.files():
        if path not in keep and lake.exists(path):
            lake.fs.delete_file(lake.abspath(path))
    for name in {entry.path.split("/")[0] for entry in old.manifest.files if "/" in entry.path}:
        folder = f"{old.path}/{name}"
        if lake.exists(folder) and not lake.list_files(folder) and not lake.list_folders(folder):
            lake.delete(folder)
