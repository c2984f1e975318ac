"""Who trains in `benchmarks.training`: `python -m benchmarks.training_contenders NAME JOB.json`.

Each contender keeps its model and trains it on the same files again and again, on one core with
one thread. All have the same towers. The product's training is the product's own; the others are
loops that one would write by hand around its reader, except for bare FBGEMM, which is given its
batches as finished tensors.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import serve
from benchmarks.silent import Silent
from benchmarks.slow_store import register
from models.candidates import Candidates, Positives, merge_draws
from models.config import TrainJob
from models.corpus import Corpus
from models.distinct import Distinct
from models.encoder import Encoder
from models.jagged import Jagged
from models.loss import loss_of
from models.reader import ExampleReader, MicroBatch
from models.two_tower import TwoTower

CPU = torch.device("cpu")
Work = Callable[[dict[str, Any]], dict[str, Any] | None]
Pool = Callable[[str, Jagged], Tensor]
Coded = tuple[MicroBatch, dict[str, Jagged], dict[str, Jagged]]


@contextmanager
def tailtower(job: TrainJob) -> Iterator[Work]:
    """The product: what `train` runs between a restored checkpoint and the export."""
    from models.distributed_training import DistributedTraining
    from models.stopping import StopRequest
    from models.trainer import training_environment

    with training_environment(CPU):
        training = DistributedTraining(job, Silent(), CPU)

        def work(_: dict[str, Any]) -> dict[str, Any]:
            summary = training.fit(StopRequest())
            return {"examples": summary.examples, "input_wait_share": summary.input_wait_share}

        yield work


class ByHand:
    """A training loop around the product's reader and towers.

    Args:
        job: The job.
        chunked: Whether the loss is the product's, over the batch's columns as they are, or
            cross entropy over materialised logits.
    """

    def __init__(self, job: TrainJob, *, chunked: bool) -> None:
        self.job = job
        self.corpus = Corpus.from_parquet(job.corpus_file, job.model, job.table_rows)
        self.encoder = Encoder(job.model, self.corpus, job.table_hashes)
        self.towers = TwoTower(job.model, job.tables, job.table_hashes, job.training.seed)
        self.loss = loss_of(job.model, job.training.loss)
        self.log_share = self.corpus.log_share()
        self.chunked = chunked
        self.rates = (
            job.training.optimizer.learning_rate,
            job.training.optimizer.learning_rate * job.training.optimizer.sparse_lr_scale,
        )

    def macro_batches(self) -> Iterator[list[Coded]]:
        """The micro-batches of each macro-batch with the codes of users and items."""
        for macro in ExampleReader(self.job, len(self.corpus)).read():
            yield [
                (
                    micro,
                    self.encoder.user_codes(micro.local.users),
                    self.encoder.item_codes(micro.items),
                )
                for micro in macro.micro
            ]

    def batches(self) -> Iterator[Coded]:
        """The batches of a job without accumulation."""
        for (batch,) in self.macro_batches():
            yield batch

    def compute_loss(self, users: Tensor, items: Tensor, item: Tensor) -> Tensor:
        """Mean loss of a batch whose columns are its own items, one for each example."""
        own = torch.arange(len(users))
        if not self.chunked:
            return F.cross_entropy(users @ items.T / self.job.model.temperature, own)
        log_weight = -self.log_share[item]
        candidates = Candidates(item, log_weight, torch.ones_like(item), len(item))
        weight = torch.full((len(users),), 1.0 / len(users))
        return self.loss(users, items, candidates, Positives(own, log_weight), weight)

    def vectors(self, codes: Mapping[str, Jagged], pool: Pool) -> tuple[Tensor, Tensor]:
        """Vectors of users and items; `pool` sums the rows of a feature's bags of codes."""
        found = []
        for settings, tower in (
            (self.job.model.user, self.towers.user),
            (self.job.model.item, self.towers.item),
        ):
            parts = []
            for f in settings.features:
                part = pool(f.name, codes[f.name])
                if f.kind != "id":
                    part = part / codes[f.name].lengths.clamp(min=1)[:, None]
                parts.append(part)
            found.append(F.normalize(tower.mlp(torch.cat(parts, dim=1)), dim=1))
        return found[0], found[1]


class EmbeddingBags(nn.Module):
    """`nn.EmbeddingBag` tables and the towers.

    Args:
        loop: The training loop.
        sparse: Whether the tables' gradients are sparse.
    """

    def __init__(self, loop: ByHand, *, sparse: bool) -> None:
        super().__init__()
        job = loop.job
        self._loop = loop
        self.tables = nn.ModuleDict(
            {
                name: nn.EmbeddingBag(
                    job.table_rows[name],
                    table.dim,
                    mode="sum",
                    sparse=sparse,
                    include_last_offset=True,
                    _weight=torch.empty(job.table_rows[name], table.dim).uniform_(-0.1, 0.1),
                )
                for name, table in job.tables.items()
            }
        )
        self.towers = loop.towers
        sides = (job.model.user, job.model.item)
        self._table_of = {f.name: f.table for side in sides for f in side.features}

    def forward(
        self, users: Mapping[str, Jagged], items: Mapping[str, Jagged], item: Tensor
    ) -> Tensor:
        """Mean loss of a batch; arguments as in `ByHand.compute_loss`, but codes."""
        vectors = self._loop.vectors({**users, **items}, self._pool)
        return self._loop.compute_loss(*vectors, item)

    def optimizers(
        self, optimizer: Callable[..., torch.optim.Optimizer]
    ) -> list[torch.optim.Optimizer]:
        """An optimizer for the towers and one for the tables."""
        dense_rate, sparse_rate = self._loop.rates
        return [
            optimizer(self.towers.parameters(), lr=dense_rate),
            optimizer(self.tables.parameters(), lr=sparse_rate),
        ]

    def _pool(self, feature: str, codes: Jagged) -> Tensor:
        pooled: Tensor = self.tables[self._table_of[feature]](codes.values, codes.offsets)
        return pooled


def _embedding_bags(
    job: TrainJob, *, chunked: bool, sparse: bool, optimizer: Callable[..., torch.optim.Optimizer]
) -> Work:
    """`nn.EmbeddingBag` tables and an optimizer of PyTorch for everything."""
    loop = ByHand(job, chunked=chunked)
    model = EmbeddingBags(loop, sparse=sparse)
    optimizers = model.optimizers(optimizer)

    def work(_: dict[str, Any]) -> dict[str, Any]:
        examples = 0
        for micro, users, items in loop.batches():
            for one in optimizers:
                one.zero_grad()
            model(users, items, micro.items).backward()
            for one in optimizers:
                one.step()
            examples += len(micro.items)
        return {"examples": examples}

    return work


def traditional(job: TrainJob) -> Work:
    """Dense gradients, Adagrad, cross entropy over materialised logits."""
    return _embedding_bags(job, chunked=False, sparse=False, optimizer=torch.optim.Adagrad)


def fused_adam(job: TrainJob) -> Work:
    """Dense gradients, PyTorch's fused Adam, the product's loss."""

    def adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=lr, fused=True)

    return _embedding_bags(job, chunked=True, sparse=False, optimizer=adam)


def sparse(job: TrainJob) -> Work:
    """Sparse gradients, Adagrad, the product's loss."""
    return _embedding_bags(job, chunked=True, sparse=True, optimizer=torch.optim.Adagrad)


def bare_fbgemm(job: TrainJob) -> Work:
    """FBGEMM's fused tables, batches that lie ready in memory, the product's loss."""
    return _fbgemm(job, distinct=False)


def bare_fbgemm_distinct(job: TrainJob) -> Work:
    """The same, and the batches' items lie ready without repetition."""
    return _fbgemm(job, distinct=True)


def _fbgemm(job: TrainJob, *, distinct: bool) -> Work:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    loop = ByHand(job, chunked=True)
    names = sorted(job.tables)
    # The kernels want features of one table side by side.
    features = sorted(
        [*job.model.user.features, *job.model.item.features], key=lambda f: names.index(f.table)
    )
    lookups = SplitTableBatchedEmbeddingBagsCodegen(
        [
            (job.table_rows[n], job.tables[n].dim, EmbeddingLocation.HOST, ComputeDevice.CPU)
            for n in names
        ],
        feature_table_map=[names.index(f.table) for f in features],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=loop.rates[1],
    )
    for table in lookups.split_embedding_weights():
        table.uniform_(-0.1, 0.1)
    optimizer = torch.optim.Adagrad(loop.towers.parameters(), lr=loop.rates[0])
    finder = Distinct(len(loop.corpus), CPU)
    ready = []
    for micro, user_codes, item_codes in loop.batches():
        log_weight = -loop.log_share[micro.items]
        column = torch.arange(len(micro.items))
        candidates = Candidates(
            micro.items, log_weight, torch.ones_like(micro.items), len(micro.items)
        )
        if distinct:
            candidates, column = merge_draws(finder, micro.items, log_weight)
            item_codes = loop.encoder.item_codes(candidates.item)
        codes = {**user_codes, **item_codes}
        ready.append(
            (
                codes,
                _table_batch([codes[f.name] for f in features], len(micro.items)),
                candidates,
                Positives(column, log_weight),
            )
        )

    def work(_: dict[str, Any]) -> dict[str, Any]:
        for codes, (indices, offsets), candidates, positives in ready:
            optimizer.zero_grad()
            by_feature = torch.split(lookups(indices, offsets), job.model.dim, dim=1)
            pooled = {f.name: x for f, x in zip(features, by_feature, strict=True)}

            def pool(feature: str, bags: Jagged, pooled: dict[str, Tensor] = pooled) -> Tensor:
                return pooled[feature][: len(bags)]

            users, items = loop.vectors(codes, pool)
            weight = torch.full((len(users),), 1.0 / len(users))
            loss = loop.loss(users, items, candidates, positives, weight)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return {"examples": sum(len(p.column) for *_, p in ready)}

    return work


def _table_batch(features: list[Jagged], batch: int) -> tuple[Tensor, Tensor]:
    """Indices and offsets of all features, each of `batch` bags; missing bags are empty."""
    lengths = [F.pad(f.lengths, (0, batch - len(f))) for f in features]
    offsets = F.pad(torch.cat(lengths).cumsum(0), (1, 0))
    return torch.cat([f.values for f in features]), offsets


def products(job: TrainJob) -> Work:
    """Nothing but the matrix products of the product's step, in its sizes."""
    loop = ByHand(job, chunked=True)
    finder = Distinct(len(loop.corpus), CPU)
    sizes = []
    for macro in ExampleReader(job, len(loop.corpus)).read():
        (micro,) = macro.micro
        candidates, _ = merge_draws(finder, micro.items, torch.zeros(len(micro.items)))
        sizes.append((len(micro.items), len(candidates.item)))
    dim = job.model.dim

    def widths(tower: nn.Module) -> list[tuple[int, int]]:
        return [
            (m.in_features, m.out_features) for m in tower.modules() if isinstance(m, nn.Linear)
        ]

    def work(_: dict[str, Any]) -> dict[str, Any]:
        for users, columns in sizes:
            for count, tower in ((users, loop.towers.user), (columns, loop.towers.item)):
                for width_in, width_out in widths(tower):
                    x, y = torch.ones(count, width_in), torch.ones(count, width_out)
                    w = torch.ones(width_out, width_in)
                    torch.mm(x, w.T)
                    torch.mm(y.T, x)
                    torch.mm(y, w)
            u, v = torch.ones(users, dim), torch.ones(columns, dim)
            rows = max(32, (2 << 20) // (columns * 4))
            scores, out, grad = (
                torch.empty(rows, columns),
                torch.empty(rows, dim),
                torch.zeros_like(v),
            )
            for start in range(0, users, rows):
                some = u[start : start + rows]
                mine = scores[: len(some)]
                torch.mm(some, v.T, out=mine)
                torch.mm(mine, v, out=out[: len(some)])
                grad.addmm_(mine.T, some)
        return {"examples": sum(users for users, _ in sizes)}

    return work


RIVALS: dict[str, Callable[[TrainJob], Work]] = {
    "traditional": traditional,
    "sparse": sparse,
    "bare_fbgemm": bare_fbgemm,
    "bare_fbgemm_distinct": bare_fbgemm_distinct,
    "fused_adam": fused_adam,
    "products": products,
}


def main() -> None:
    """Serves the contender that the command line names."""
    name, path = sys.argv[1:]
    register()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # A reader in the background must not gain a second core.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    job = TrainJob.model_validate_json(Path(path).read_text())
    if name in RIVALS:
        serve(RIVALS[name](job))
    else:
        with tailtower(job) as work:
            serve(work)


if __name__ == "__main__":
    main()
