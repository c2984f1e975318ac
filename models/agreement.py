"""Makes sure that all ranks mean the same training before they wait for each other."""

from __future__ import annotations

import torch
import torch.distributed as dist

from models import collectives
from models.config import TrainJob
from models.errors import ModelError

_SHOWN = 200  # characters of a setting in the message


def require_one_job(job: TrainJob) -> None:
    """Compares what the ranks have read; a collective.

    Ranks with other lists of features or tables would exchange rows of different tables, or wait
    for each other until a time-out.

    Raises:
        ModelError: A rank has read something else than the first; names the rank and what. On
            every rank alike.
    """
    if collectives.world_size() == 1:
        return
    all_read: list[dict[str, str]] = [{}] * collectives.world_size()
    dist.all_gather_object(all_read, _description(job))
    first = all_read[0]
    for rank, read in enumerate(all_read):
        different = [k for k in {**first, **read} if first.get(k) != read.get(k)]
        if different:
            what = "; ".join(
                f"{k}: {read.get(k, 'none')[:_SHOWN]} instead of {first.get(k, 'none')[:_SHOWN]}"
                for k in different
            )
            raise ModelError(
                f"rank {rank} has read another job than the first rank ({what}): all machines need "
                "the same job file and the same versions"
            )


def _description(job: TrainJob) -> dict[str, str]:
    towers = {"user": job.model.user, "item": job.model.item}
    features = {
        f"features of the {side} tower": ", ".join(f"{f.name} ({f.table})" for f in tower.features)
        for side, tower in towers.items()
    }
    tables = {
        f"table '{name}'": f"{job.table_rows.get(name)} rows, {table.dim} wide, {table.sharding}"
        for name, table in sorted(job.tables.items())
    }
    settings = {
        f"{section}.{name}": str(value)
        for section in ("model", "training")
        for name, value in getattr(job, section).model_dump(mode="json").items()
    }
    versions = {"digest": job.digest, "PyTorch": torch.__version__}
    return {**features, **tables, **settings, **versions}
