"""Who trains in `benchmarks.scaling`: `… NAME JOB.json RANK RANKS STORE` is one rank of a group.

Ranks of a group find each other by a file; a group of one exchanges nothing. Every rank has one
thread to compute with, and one core, which its reader and the exchange share.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measure import serve
from benchmarks.silent import Silent
from benchmarks.training_contenders import CPU, ByHand, EmbeddingBags
from models import collectives
from models.config import TrainJob
from models.corpus import Corpus
from models.encoder import Encoder
from models.reader import ExampleReader

Work = Callable[[dict[str, Any]], dict[str, Any] | None]


class SentBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts bytes that this rank sends to others by all-to-all while it is entered.

    What a rank sends to itself does not count.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        """Bytes since it was made."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.c10d.alltoall_base_.default:
            _, sent, _, _, splits = args[:5]
            ranks = dist.get_world_size()
            kept = splits[dist.get_rank()] if splits else len(sent) // ranks
            self.total += (len(sent) - kept) * sent[:1].nbytes
        elif "alltoall" in str(func):
            raise NotImplementedError(f"bytes of {func}")
        return func(*args, **(kwargs or {}))


@contextmanager
def tailtower(job: TrainJob) -> Iterator[Work]:
    """The product. Asked to `count`, it tells the bytes that rows of tables cost."""
    from models.distributed_training import DistributedTraining
    from models.sharded_tables import ShardedTables
    from models.stopping import StopRequest
    from models.trainer import training_environment

    with training_environment(CPU):
        training = DistributedTraining(job, Silent(), CPU)

        def work(request: dict[str, Any]) -> dict[str, Any]:
            training.clock.clear()
            if "count" not in request:
                summary = training.fit(StopRequest())
                return {"examples": summary.examples, "parts": dict(training.clock.seconds)}
            sent = SentBytes()

            def counted(method: Callable[..., Any]) -> Callable[..., Any]:
                def call(*arguments: Any) -> Any:
                    with sent:
                        return method(*arguments)

                return call

            with (
                patch.object(ShardedTables, "fetch", counted(ShardedTables.fetch)),
                patch.object(ShardedTables, "update", counted(ShardedTables.update)),
            ):
                training.fit(StopRequest())
            return {"exchange": sent.total, "pooled": pooled_bytes(job)}

        yield work


def pooled_bytes(job: TrainJob) -> int:
    """Bytes that this rank sends where TorchRec exchanges pooled vectors at every micro-batch."""
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
    from torchrec.distributed.planner.types import KernelConfig, TopologyFactory, TrainerConfig

    features = [*job.model.user.coded, *job.model.item.coded]
    collection = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(
                name=name,
                embedding_dim=table.dim,
                num_embeddings=job.table_rows[name],
                feature_names=[f.name for f in features if f.table == name],
            )
            for name, table in job.tables.items()
        ],
    )
    ranks, rank = collectives.world_size(), collectives.rank()
    whole = {name: ParameterConstraints(sharding_types=["table_wise"]) for name in job.tables}
    planner = EmbeddingShardingPlanner(
        topology=TopologyFactory.create_topology(
            TrainerConfig(world_size=ranks, local_world_size=ranks),
            kernel_config=KernelConfig(compute_device="cpu"),
        ),
        constraints=whole,
    )
    holder = nn.Sequential(collection)
    sharder = EmbeddingBagCollectionSharder()
    plan = collectives.first_decides(lambda: planner.plan(holder, [sharder]))
    model = DistributedModelParallel(
        holder,
        device=CPU,
        plan=plan,
        sharders=[sharder],
        init_data_parallel=False,
    )
    corpus = Corpus.from_parquet(job.corpus_file, job.model, job.table_rows)
    encoder = Encoder(job.model, corpus, job.table_hashes)
    sent = SentBytes()
    for macro in ExampleReader(job, len(corpus), rank, ranks).read():
        for micro in macro.micro:
            codes = {
                **encoder.user_codes(micro.local.users),
                **encoder.item_codes(micro.local.item),
            }
            bags = KeyedJaggedTensor(
                keys=[f.name for f in features],
                values=torch.cat([codes[f.name].values for f in features]),
                lengths=torch.cat([codes[f.name].lengths for f in features]),
            )
            with sent:
                pooled: Tensor = model(bags).wait().values()
                pooled.sum().backward()  # type: ignore[no-untyped-call]
    return sent.total


@contextmanager
def traditional(job: TrainJob) -> Iterator[Work]:
    """Dense gradients, which ranks add up after the last micro-batch of a macro-batch."""
    loop = ByHand(job, chunked=False)
    bags = EmbeddingBags(loop, sparse=False)
    model: nn.Module = bags
    if collectives.world_size() > 1:
        model = DistributedDataParallel(bags, gradient_as_bucket_view=True)
    optimizers = bags.optimizers(torch.optim.Adagrad)

    def work(_: dict[str, Any]) -> dict[str, Any]:
        examples = 0
        for macro in loop.macro_batches():
            for optimizer in optimizers:
                optimizer.zero_grad()
            for number, (micro, users, items) in enumerate(macro):
                last = number == len(macro) - 1
                if isinstance(model, DistributedDataParallel) and not last:
                    with model.no_sync():
                        (model(users, items, micro.items) / len(macro)).backward()
                else:
                    (model(users, items, micro.items) / len(macro)).backward()
                examples += len(micro.items)
            for optimizer in optimizers:
                optimizer.step()
        return {"examples": examples * collectives.world_size()}

    yield work


CONTENDERS = {"tailtower": tailtower, "traditional": traditional}


def main() -> None:
    """Serves one rank of the contender that the command line names."""
    name, path, rank, ranks, store = sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["CORE"]) % len(cores)]})
    job = TrainJob.model_validate_json(Path(path).read_text())
    if int(ranks) > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(ranks)
        )
    with CONTENDERS[name](job) as work:
        serve(work)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
