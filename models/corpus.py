"""The item corpus: codes and train counts of every item, by its index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from models.batch import floats, integers, numbers
from models.config import RECENT_COUNT, ModelSettings
from models.errors import ExamplesError
from models.jagged import Jagged
from models.storage import read_parquet

FULL_USER_TABLE = "full_users"
FULL_ITEM_TABLE = "full_items"
"""Tables with a row for every train user and every item (the traditional baseline): the code is
the index plus one, and 0, the padding row, stands for the unknown."""


@dataclass(frozen=True)
class Corpus:
    """I items; the row number is an item's index.

    Attributes:
        train_count: Train interactions of each item, int64 `[I]`.
        features: Codes of each feature of the item tower, by name; I rows each. Neighbours are
            other items' row numbers instead.
        recent_count: The interactions weighted by age as the model's prior wants, `[I]`; the
            train count for a model that wants no such thing.
        numeric: Raw values of its numeric features, by name, float64 `[I]`; NaN for none.
    """

    train_count: Tensor
    features: Mapping[str, Jagged]
    recent_count: Tensor
    numeric: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.train_count.numel()

    def log_share(self) -> Tensor:
        """Log of each item's share of the train interactions, float32 `[I]`.

        It is the probability that an in-batch negative is this item. An item without train
        interactions counts as one with one: it cannot be drawn, and a finite number is safe.
        """
        count = self.train_count.to(torch.float64).clamp(min=1)
        return (count / count.sum()).log().to(torch.float32)

    @classmethod
    def from_parquet(
        cls, location: str, model: ModelSettings, table_rows: Mapping[str, int]
    ) -> Corpus:
        """Reads the corpus that the examples step wrote.

        Args:
            location: Path or URL of the file.
            model: Says which features are read.
            table_rows: Rows by table; a code outside its table would silently read another row.

        Raises:
            ExamplesError: The file is damaged, a column is missing or of another type, or the
                corpus does not fit the tables.
        """
        names, numeric = [f.name for f in model.item.coded], [f.name for f in model.item.numeric]
        aged = model.prior is not None and model.prior.half_life_days is not None
        ages = [RECENT_COUNT] if aged else []
        table = read_parquet(location, ["train_count", *names, *numeric, *ages])
        try:
            features = {name: Jagged.from_arrow(table.column(name)) for name in names}
            values = {name: numbers(table, name) for name in numeric}
            count = integers(table, "train_count")
            recent = floats(table, RECENT_COUNT) if aged else count
            corpus = cls(count, features, recent, values)
        except ValueError as error:
            raise ExamplesError(f"the corpus cannot be used: {error}", location) from error
        for f in model.item.coded:
            limit, codes = table_rows[f.table], features[f.name]
            if f.kind == "neighbours":
                limit = len(corpus)
            if f.table == FULL_ITEM_TABLE:
                if limit != len(corpus) + 1:
                    raise ExamplesError(
                        f"{len(corpus)} items for a table of {limit - 1} items", location
                    )
                continue
            wrong = (codes.values < 0) | (codes.values >= limit)
            if bool(wrong.any()):
                place = int(wrong.nonzero()[0])
                raise ExamplesError(
                    f"column '{f.name}' has code {int(codes.values[place])}, but "
                    + (
                        f"there are {limit} items"
                        if f.kind == "neighbours"
                        else f"table '{f.table}' has {limit} rows"
                    ),
                    location,
                    int(codes.row_ids()[place]),
                )
        return corpus
