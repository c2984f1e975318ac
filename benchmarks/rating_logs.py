"""The public data sets of the quality benchmarks, read from `../shared/data`, with their splits.

Each becomes one table of interactions: `user_id`, `item_id`, `timestamp` and `split`, which is
`train` or `test`. The protocols are those of the data sets' PROVENANCE files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from tasks.demo_data import DemoSettings, generate_day

DATA = Path(__file__).parents[2] / "shared" / "data"
_NO_TIME = datetime(2020, 1, 1, tzinfo=UTC)
_TRAIN, _TEST = 0.8, 0.9
_FIRST_DAY = date(2026, 1, 1)


@dataclass(frozen=True)
class RatingLog:
    """A data set.

    Attributes:
        events: `user_id`, `item_id`, `timestamp` (UTC, microseconds), `split`.
        items: `item_id`, `title` and attributes, or None.
        attributes: Kind of each attribute that the item tower may read: `id` or `list`.
        timed: Whether the times mean anything.
    """

    events: pl.DataFrame
    items: pl.DataFrame | None
    timed: bool
    attributes: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.events.height

    def held_out(self, share: float, seed: int) -> RatingLog:
        """The train rows alone, a part of them as the new test rows.

        With times these are the last ones, and as many before them are left out, as in the
        protocol of the test rows; otherwise they are a random part.

        Args:
            share: Part of the train rows.
            seed: Seed of the random part.
        """
        train = self.events.filter(pl.col("split") == "train")
        if self.timed:
            return replace(self, events=_cut_in_time(train, 1 - 2 * share, 1 - share))
        test = np.random.default_rng(seed).random(train.height) < share
        split = pl.Series("split", np.where(test, "test", "train"))
        return replace(self, events=train.with_columns(split))

    def of_users(self, count: int | None, seed: int = 0) -> RatingLog:
        """The rows of so many random users, for a quick look; None for all."""
        if count is None:
            return self
        users = self.events["user_id"].unique().sort()
        chosen = np.random.default_rng(seed).permutation(len(users))[:count]
        kept = self.events.filter(pl.col("user_id").is_in(users[chosen].implode()))
        return replace(self, events=kept)


def data_folder() -> Path:
    """The folder of the data sets; `TAILTOWER_SHARED_DATA` names another one.

    Raises:
        SystemExit: It is not there.
    """
    folder = Path(os.environ.get("TAILTOWER_SHARED_DATA", DATA))
    if not folder.is_dir():
        raise SystemExit(f"no data in {folder}: set TAILTOWER_SHARED_DATA")
    return folder


def gowalla() -> RatingLog:
    """Gowalla check-ins with the published random split; pairs without times."""
    frames = []
    for split in ("train", "test"):
        pairs = [
            (int(words[0]), [int(word) for word in words[1:]])
            for line in (data_folder() / "gowalla" / f"{split}.txt").read_text().splitlines()
            if len(words := line.split()) > 1
        ]
        frame = pl.DataFrame(pairs, schema=["user_id", "item_id"], orient="row")
        frame = frame.explode("item_id", empty_as_null=False)
        frames.append(frame.with_columns(split=pl.lit(split)))
    events = pl.concat(frames).with_columns(
        timestamp=pl.lit(_NO_TIME).cast(pl.Datetime("us", "UTC"))
    )
    return RatingLog(events, None, timed=False)


def movietweetings() -> RatingLog:
    """MovieTweetings 100K, cut in time; genres and the decade of a film as attributes."""
    folder = data_folder() / "movietweetings" / "100K"
    rows = [line.split("::") for line in (folder / "ratings.dat").read_text().splitlines()]
    events = pl.DataFrame(
        {
            "user_id": [int(row[0]) for row in rows],
            "item_id": [row[1] for row in rows],
            "timestamp": [int(row[3]) for row in rows],
        }
    ).with_columns(pl.from_epoch("timestamp", time_unit="s").dt.cast_time_unit("us"))
    films = [line.split("::") for line in (folder / "movies.dat").read_text().splitlines()]
    items = pl.DataFrame(
        {
            "item_id": [film[0] for film in films],
            "title": [film[1] for film in films],
            "year": [film[1][-5:-1] if film[1].endswith(")") else None for film in films],
            "genres": [[g for g in film[2].split("|") if g] for film in films],
        }
    )
    return RatingLog(_cut_in_time(events), items, True, {"genres": "list", "year": "id"})


def online_retail() -> RatingLog:
    """Purchases of a web shop, cut in time; the words of a product's text as attributes."""
    invoices = pl.read_parquet(data_folder() / "online-retail" / "onlineretail.parquet")
    bought = invoices.filter(
        pl.col("CustomerID").is_not_null()
        & (pl.col("Quantity") > 0)
        & ~pl.col("InvoiceNo").str.starts_with("C")
        & pl.col("StockCode").str.contains("^[0-9]")
    )
    events = bought.select(
        user_id=pl.col("CustomerID").cast(pl.Int64), item_id="StockCode", timestamp="InvoiceDate"
    )
    items = bought.group_by("StockCode", maintain_order=True).agg(pl.col("Description").first())
    items = items.select(
        item_id="StockCode",
        title="Description",
        words=pl.col("Description").str.to_lowercase().str.extract_all("[a-z]{3,}"),
    )
    return RatingLog(_cut_in_time(events), items, True, {"words": "list"})


def synthetic() -> RatingLog:
    """Ten days of the demonstration's log, most of whose IDs are rare; the last one is tested."""
    days = [_FIRST_DAY + timedelta(days=number) for number in range(10)]
    frames = []
    for day in days:
        events = pl.DataFrame(generate_day(DemoSettings(), day).interactions)
        split = "test" if day == days[-1] else "train"
        frames.append(
            events.select("user_id", "item_id", "timestamp").with_columns(split=pl.lit(split))
        )
    return RatingLog(pl.concat(frames), None, timed=True)


def _cut_in_time(events: pl.DataFrame, until: float = _TRAIN, since: float = _TEST) -> pl.DataFrame:
    """The first rows to train on, the last ones to test on; what is between them is left out."""
    events = events.with_columns(pl.col("timestamp").dt.replace_time_zone("UTC"))
    events = events.sort("timestamp", maintain_order=True)
    train, test = round(events.height * until), round(events.height * since)
    return pl.concat(
        [
            events[:train].with_columns(split=pl.lit("train")),
            events[test:].with_columns(split=pl.lit("test")),
        ]
    )


LOGS: Mapping[str, Callable[[], RatingLog]] = {
    "gowalla": gowalla,
    "movietweetings": movietweetings,
    "online_retail": online_retail,
    "synthetic": synthetic,
}
