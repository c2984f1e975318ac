"""The champion's item vectors as Parquet, for a search index of one's own."""

from __future__ import annotations

from datetime import date

import numpy as np
import pyarrow as pa

from models.bundle import Recommender
from tasks.config import PipelineConfig
from tasks.lake import Lake, Output, Published
from tasks.promotion import require_pointer
from tasks.serving.bundles import bundle_folder

FOLDER = "serving/items"
_FORMAT = 1
_ROWS = 1 << 16  # in a row group, so that nothing larger is held twice


def export_items(config: PipelineConfig) -> Published:
    """Writes the vectors of the model that is served; one that was exported before is found.

    Returns:
        `items.parquet` with `item_id`, `title` where the corpus has it, `train_count`, and
        `vector`, a list of float32 whose inner product with a user's vector is the score. The
        manifest's `meta` has `version`, `day` and `dim`.

    Raises:
        ConfigError: Nothing is served yet.
        BundleError: The bundle is damaged.
    """
    lake = Lake(config.lake)
    pointer = require_pointer(lake)
    bundle = lake.open_published(pointer["output"])

    def write(output: Output) -> None:
        model = Recommender.load(bundle_folder(lake, bundle))
        vectors = np.ascontiguousarray(model.item_vectors.numpy(), dtype=np.float32)
        corpus = model.corpus
        columns = {
            name: corpus.column(name).combine_chunks()
            for name in ("item_id", "title", "train_count")
            if name in corpus.column_names
        }
        columns["vector"] = pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])
        output.write_table("items.parquet", pa.table(columns), row_group_size=_ROWS)
        output.meta.update(
            version=pointer["version"], day=pointer["day"], dim=int(vectors.shape[1])
        )

    return lake.build(
        FOLDER,
        date.fromisoformat(pointer["day"]),
        write,
        inputs={"bundle": pointer["digest"]},
        settings={"version": pointer["version"], "format": _FORMAT},
    )
