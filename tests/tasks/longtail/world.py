"""A lake of four days with side tables, long tails, ties in time, nulls and missing rows."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa

from tasks.lake import Lake
from tests.tasks.longtail.examples_reference import Codes
from tests.tasks.longtail.raw_lake import at, events, spec_of, write_partition

RICH_TABLES = {
    "user": {
        "source": "interactions.user_id",
        "vocabulary": {"min_count": 5, "tail_buckets": 4, "hashes": 2},
    },
    "item": {"source": "interactions.item_id", "vocabulary": {"min_count": 4, "tail_buckets": 5}},
    "tag": {"source": "items.tags", "vocabulary": {"min_count": 2, "tail_buckets": 2}},
    "colour": {"source": "items.colour", "vocabulary": {"min_count": 1}},
    "country": {"source": "users.country", "vocabulary": {"min_count": 1}},
    "device": {"source": "interactions.device", "vocabulary": {"min_count": 2}},
}
RICH_MODEL = {
    "user": {
        "features": [
            {"name": "uid", "table": "user"},
            {"name": "country", "table": "country"},
            {"name": "device", "table": "device"},
            {"name": "history", "table": "item", "kind": "history", "max_length": 4},
        ]
    },
    "item": {
        "features": [
            {"name": "iid", "table": "item"},
            {"name": "tags", "table": "tag", "kind": "list"},
            {"name": "colour", "table": "colour"},
        ]
    },
}


def random_rows(number, rows, rng):
    """Users and items with long tails, and few instants, so that times tie."""
    return [
        (
            f"u{int(rng.paretovariate(0.8)) % 40}",
            int(rng.paretovariate(0.7)) % 60,
            at(number, rng.randrange(30)),
        )
        for _ in range(rows)
    ]


def items_table(ids, shift=0):
    return pa.table(
        {
            "item_id": pa.array(ids, pa.int64()),
            "title": [f"Item {i}.{shift}" if i % 3 else None for i in ids],
            "tags": pa.array(
                [[f"t{(i + shift) % 5}", "t9"] if i % 4 else (None if i % 8 else []) for i in ids],
                pa.list_(pa.string()),
            ),
            "colour": [f"c{(i + shift) % 7}" if i % 5 else None for i in ids],
        }
    )


def users_table(ids, shift=0):
    return pa.table({"user_id": ids, "country": [f"k{(len(i) + shift) % 3}" for i in ids]})


class World:
    """A lake of four days and the log that it holds."""

    def __init__(self, lake, seed=0, rows=150, files=2):
        rng = random.Random(seed)
        self.lake = lake
        self.days = {n: random_rows(n, rows, rng) for n in (1, 2, 3, 4)}
        self.device = {}
        for number, day in self.days.items():
            kinds = [rng.choice(["web", "app", None]) for _ in day]
            weights = np.array([1.0 + n % 3 for n in range(len(day))], dtype=np.float32)
            self.device[number] = kinds
            self.write(number, day, kinds, weights, files)
        write_partition(lake, "items", 1, items_table([*range(50), 100]))
        write_partition(lake, "items", 3, items_table([3, 4, 5], shift=1))
        write_partition(lake, "items", 4, items_table([4, 101], shift=2))
        names = [f"u{n}" for n in range(30)]
        write_partition(lake, "users", 1, users_table(names))
        write_partition(lake, "users", 4, users_table(["u1", "u39"], shift=1))

    def write(self, number, day, kinds, weights, files):
        parts = {}
        for n in range(files):
            rows = day[n::files]
            parts[f"{n}.parquet"] = events(
                rows, device=pa.array(kinds[n::files]), weight=pa.array(weights[n::files])
            )
        write_partition(self.lake, "interactions", number, parts)

    @property
    def train(self):
        return [row for number in (1, 2, 3) for row in self.days[number]]

    @property
    def test(self):
        return self.days[4]

    def spec(self, **settings):
        return spec_of(self.lake, 4, tables=RICH_TABLES, model=RICH_MODEL, **settings)


def outputs(spec):
    """The tables of the examples by folder."""
    lake = Lake(spec.config.lake)
    published = spec.output("examples", "examples")
    found: dict[str, pa.Table] = {}
    for path in published.files():
        folder, name = path.split("/")[-2:]
        table = lake.read_table(path)
        key = folder if folder != "negatives" else name.removesuffix(".parquet")
        found[key] = pa.concat_tables([found[key], table]) if key in found else table
    return found


def digests(spec):
    manifest = spec.output("examples", "examples").manifest
    return {entry.path.split("/", 1)[1]: entry.digest for entry in manifest.files}


def codes_of(spec, table):
    lake = Lake(spec.config.lake)
    published = spec.output("vocabulary", table)
    rows = lake.read_table(published.file("part-0.parquet")).to_pydict()
    meta = published.manifest.meta
    return Codes(
        dict(zip(rows["id"], rows["row"], strict=True)), meta["tail_buckets"], meta["hashes"]
    )


def by_user_id(tables, name):
    """Rows with the user's ID in place of the index, which follows the parts."""
    names = dict(enumerate(tables["users"]["user_id"].to_pylist()))
    rows = [{**row, "user": names.get(row["user"])} for row in tables[name].to_pylist()]
    return sorted(rows, key=str)
