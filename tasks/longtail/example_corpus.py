"""Second stage of the examples: the item corpus and the tables of negatives, on a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from models.alias_table import build_alias_table
from tasks.lake import Output
from tasks.longtail.columns import array_of, to_arrow
from tasks.longtail.encoding import encoder_of
from tasks.longtail.exchange import Scratch, read_part_frame, write_parts
from tasks.longtail.features import FeaturePlan
from tasks.longtail.hot_users import HotUser, item_counts
from tasks.longtail.item_corpus import build_corpus, corpus_table, negative_weights
from tasks.longtail.neighbours import corpus_with_owners
from tasks.longtail.side_tables import newest_rows


@dataclass(frozen=True)
class CorpusTask:
    """Making of the corpus."""

    scratch: Scratch
    stats: tuple[str, ...]
    """Scratch files of each part's item statistics."""
    hot: tuple[HotUser, ...]
    """Users whose statistics are those of their slices."""
    items: tuple[str, ...]
    """Files of the items table, oldest day first."""
    features: tuple[FeaturePlan, ...]
    vocabularies: Mapping[str, str]
    """Lake path of each table's vocabulary."""
    users: int
    """Train users."""
    output: str
    """Lake path of the examples."""
    owners: str | None = None
    """Table whose rows items own, when they get neighbours; their corpus is finished later."""

    @property
    def unfinished(self) -> str:
        """Scratch file of a corpus that gets neighbours."""
        return self.scratch.file("items")

    @property
    def index(self) -> str:
        """Scratch file that `corpus_index` reads."""
        return self.scratch.file("corpus")


def write_corpus(task: CorpusTask) -> int:
    """Writes the corpus, its index for the workers and the tables of negatives.

    Returns:
        Number of items.

    Raises:
        DataError: The items table is absent, or of the wrong kind.
    """
    lake = task.scratch.lake()
    output = Output(lake, task.output)
    items = None
    if task.items or any(plan.source == "attribute" for plan in task.features):
        items = newest_rows(lake, "items", task.items, "item_id", task.features, title=True)
    stats = [read_part_frame(lake, [path], 0) for path in task.stats]
    stats += [item_counts(task.scratch, user) for user in task.hot]
    corpus = build_corpus(stats, items)
    encoders = {
        plan.table: encoder_of(lake.url, task.vocabularies[plan.table], plan.table)
        for plan in task.features
        if not plan.numeric
    }
    items_table = corpus_table(corpus, task.features, encoders)
    if task.owners is None:
        output.write_table("items/part-0.parquet", items_table)
    else:
        owns_row = encoders[task.owners].owns_row(corpus["item_id"])
        users = corpus["train_users"].to_numpy()
        unfinished = corpus_with_owners(items_table, users, owns_row)
        write_parts(lake, task.unfinished, 1, lambda _: unfinished)
    table = to_arrow(corpus.select("item_id", "id_rank", "train_count"))
    write_parts(lake, task.index, 1, lambda _: table)
    for name, weights in negative_weights(corpus, task.users).items():
        alias = build_alias_table(weights)
        columns = {"prob": alias.prob, "alias": alias.alias, "log_q": alias.log_q}
        output.write_table(
            f"negatives/{name}.parquet",
            pa.table({key: array_of(value) for key, value in columns.items()}),
        )
    return corpus.height
