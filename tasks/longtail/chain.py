"""The chain of daily vocabularies: each continues the one before it, from the first day of data.

A day's key holds the digest of the day before, so running three days at once or one by one finds
or makes the same vocabularies, and a late file re-makes exactly those that follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING

from tasks.config import TableSettings
from tasks.lake import Lake, Output, Published, day_range
from tasks.progress import log

if TYPE_CHECKING:
    from tasks.longtail.cluster import Runner
    from tasks.longtail.vocabulary_table import Vocabulary
    from tasks.longtail.window import WeightedDay

HEALTH = "health.json"
"""File of a vocabulary's health: facts, rank-frequency curve, load of each bucket."""
_FORMAT = 1
"""Changes when vocabularies change for the same input."""


class Chain:
    """Vocabularies of one table.

    Args:
        lake: The lake.
        name: Name of the table.
        table: Its settings.
        window_days: Length of the window of a table that counts interactions.
        counts: Path and digest of each day's counts.
        runner: Opens the place where windows are merged; called only when one has to be.
    """

    def __init__(
        self,
        lake: Lake,
        name: str,
        table: TableSettings,
        window_days: int,
        counts: Mapping[date, tuple[str, str]],
        runner: Callable[[], Runner],
    ) -> None:
        self._lake = lake
        self._name = name
        self._table = table
        self._counts = counts
        self._opened: dict[date, Published] = {}
        self._runner = runner
        self._rolling = table.dataset == "interactions"
        self._window_days = window_days if self._rolling else None
        self.built = 0

    def until(self, last: date) -> Published:
        """The vocabulary of a day, made from the counts of the days before it.

        A table that counts a side table changes only after a delivery; its vocabulary is that
        of the day after the newest delivery before `last`.
        """
        published = None
        previous = _Previous(self._lake)
        yesterday = None
        for day in self._days(last):
            published = self._build(day, published, previous, yesterday)
            yesterday = day
        assert published is not None
        return published

    def _days(self, last: date) -> list[date]:
        known = [day for day in sorted(self._counts) if day < last]
        if not known:
            return [last]
        if self._rolling:
            return day_range(known[0] + timedelta(days=1), last)
        return [day + timedelta(days=1) for day in known]

    def _window(self, day: date) -> list[date]:
        known = [counted for counted in sorted(self._counts) if counted < day]
        if self._window_days is None:
            return known
        oldest = day - timedelta(days=self._window_days)
        return [counted for counted in known if counted >= oldest]

    def _build(
        self, day: date, before: Published | None, previous: _Previous, yesterday: date | None
    ) -> Published:
        window = self._window(day)
        inputs = {f"counts/{counted}": self._counts[counted][1] for counted in window}
        if before is not None:
            inputs["previous"] = before.digest
        policy = self._table.vocabulary
        settings = {
            "policy": policy.model_dump(mode="json"),
            "window_days": self._window_days,
            "source": self._table.source,
            "format": _FORMAT,
        }

        def write(output: Output) -> None:
            # Polars is imported only when there is something to make.
            from tasks.longtail.admission import next_vocabulary
            from tasks.longtail.health import measure
            from tasks.longtail.vocabulary_table import FILE
            from tasks.longtail.window_merge import WindowMerge

            applied = policy if self._rolling else policy.model_copy(update={"decay": 1.0})
            merge = WindowMerge(self._lake, self._runner(), self._name, applied)
            summary = merge.summarize(
                day,
                self._weighed(window, day, applied.decay),
                None
                if yesterday is None
                else (yesterday, self._weighed(self._window(yesterday), yesterday, applied.decay)),
                None if before is None else before.file(FILE),
            )
            vocabulary = next_vocabulary(
                previous.read(before),
                summary.candidates,
                policy,
                day,
                summary.sums.units,
                only_changes=summary.only_changes,
            )
            health = measure(vocabulary, summary)
            vocabulary.write(output)
            output.write_bytes(HEALTH, health.to_json())
            output.meta["health"] = health.facts
            previous.remember(vocabulary)
            self.built += 1

        published = self._lake.build(
            f"vocabulary/{self._name}", day, write, inputs=inputs, settings=settings
        )
        if published.reused:
            previous.forget()
        else:
            log("vocabulary", table=self._name, day=day, **_headline(published))
        return published

    def _weighed(self, days: Sequence[date], today: date, decay: float) -> list[WeightedDay]:
        from tasks.longtail.window import weigh

        return [weigh(self._open_counts(day), day, today=today, decay=decay) for day in days]

    def _open_counts(self, day: date) -> Published:
        """A day's counts; neighbouring windows share nearly all their days."""
        if day not in self._opened:
            self._opened[day] = self._lake.open_published(self._counts[day][0])
        return self._opened[day]


class _Previous:
    """The vocabulary made last, kept so that a chain does not read back what it just wrote."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._made: Vocabulary | None = None

    def remember(self, vocabulary: Vocabulary) -> None:
        self._made = vocabulary

    def forget(self) -> None:
        self._made = None

    def read(self, published: Published | None) -> Vocabulary | None:
        from tasks.longtail.vocabulary_table import read_vocabulary

        if published is None or self._made is not None:
            return self._made
        return read_vocabulary(self._lake, published)


def _headline(published: Published) -> dict[str, object]:
    health = published.manifest.meta["health"]
    return {name: health[name] for name in ("rows", "covered_share", "promoted", "demoted")}
