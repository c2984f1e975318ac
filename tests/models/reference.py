"""A second, plain implementation of the training in float64, to compare weights with.

Nothing is shared with the product but the initial weights, the order of the examples and the
draws of the negatives: lookups are loops over Python lists, every draw is a column of materialised
logits, optimizers are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pyarrow.parquet as pq
import torch
from torch import Tensor

from models.config import FeatureSettings, TowerSettings, TrainJob
from models.corpus import Corpus
from models.initial import initial_rows
from models.negatives import AliasSampler
from models.reader import ExampleReader
from models.seeds import generator_for
from models.two_tower import TwoTower


def train_reference(job: TrainJob) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights of the tables and of the towers after the whole job, float64."""
    settings = job.training
    corpus_rows = pq.read_table(job.corpus_file).to_pylist()
    corpus = Corpus.from_parquet(job.corpus_file, job.model, job.table_rows)
    towers = TwoTower(job.model, job.tables, job.table_hashes, settings.seed).double()
    parameters: dict[str, Tensor] = dict(towers.named_parameters())
    tables = {
        name: initial_rows(name, table.dim, settings.seed, 0, job.table_rows[name]).double()
        for name, table in job.tables.items()
    }
    sampler = None
    if job.negatives_file is not None:
        sampler = AliasSampler.from_parquet(job.negatives_file, len(corpus_rows))
    optimizer = _Optimizers(job, tables, parameters)
    counts = torch.tensor([row["train_count"] for row in corpus_rows]).double()

    examples = [row for file in job.train_files for row in pq.read_table(file).to_pylist()]
    trained = [row for row in corpus_rows if row["train_count"] > 0]
    of_users = {f.name: _moments(examples, f.name) for f in job.model.user.numeric}
    of_items = {f.name: _moments(trained, f.name) for f in job.model.item.numeric}
    reader = ExampleReader(job, len(corpus))
    for macro in reader.read():
        if macro.epoch and macro.step % reader.steps_per_epoch == 0:
            optimizer.decay()
        leaves = {name: table.clone().requires_grad_() for name, table in tables.items()}
        touched: dict[str, set[int]] = {name: {0} for name in tables}
        pools = []
        for number, micro in enumerate(macro.micro):
            batch = micro.local
            negatives: list[int] = []
            if sampler is not None:
                generator = generator_for(settings.seed, "negatives", macro.step, number)
                negatives = sampler.sample(settings.loss.num_negatives, generator).tolist()
            own = batch.item.tolist()
            histories = [_row(batch.users.history, i) for i in range(len(batch))]
            item_inputs, user_inputs = [], []
            for f in job.model.item.coded:
                rows = [corpus_rows[i][f.name] for i in own + negatives]
                touched[f.table].update(code for codes in rows for code in codes)
                item_inputs.append(_pool(f, rows, leaves[f.table], job, parameters, "item"))
            for f in job.model.user.coded:
                if f.kind == "history":
                    ids = next(g.name for g in job.model.item.features if g.table == f.table)
                    rows = [
                        [
                            code
                            for item in history[-f.max_length :]
                            for code in corpus_rows[item][ids]
                        ]
                        for history in histories
                    ]
                else:
                    rows = [_row(batch.users.features[f.name], i) for i in range(len(batch))]
                touched[f.table].update(code for codes in rows for code in codes)
                user_inputs.append(_pool(f, rows, leaves[f.table], job, parameters, "user"))
            for f in job.model.item.numeric:
                prices = [corpus_rows[i][f.name] for i in own + negatives]
                item_inputs.append(_numbers(prices, *of_items[f.name]))
            for f in job.model.user.numeric:
                ages = batch.users.numeric[f.name].tolist()
                user_inputs.append(_numbers(ages, *of_users[f.name]))
            vectors = _vectors(job.model.item, item_inputs, towers.item, job)
            log_q = (counts[own] / counts.sum()).log()
            sampled = torch.zeros(0).double()
            if sampler is not None:
                sampled = sampler.log_q[negatives].double()
            pools.append(
                _Draws(
                    _vectors(job.model.user, user_inputs, towers.user, job),
                    batch.weight.double(),
                    list(zip(batch.users.user.tolist(), histories, strict=True)),
                    own,
                    vectors[: len(own)],
                    log_q,
                    negatives,
                    vectors[len(own) :],
                    sampled,
                )
            )
        if settings.loss.pool == "macro_batch":
            pools = [_joined(pools)]
        total = torch.stack([_loss(pool, job) for pool in pools]).sum()
        gradients = torch.autograd.grad(
            total / macro.weight,
            [*leaves.values(), *parameters.values()],
            allow_unused=True,
            materialize_grads=True,
        )
        by_table = dict(zip(tables, gradients[: len(tables)], strict=True))
        for gradient in by_table.values():
            gradient[0] = 0
        by_parameter = dict(zip(parameters, gradients[len(tables) :], strict=True))
        optimizer.step(by_table, by_parameter, touched)
    return tables, {name: p.detach() for name, p in parameters.items()}


@dataclass
class _Draws:
    """Users with their known items, and what they are compared with, draw by draw."""

    users: Tensor
    weight: Tensor
    known: list[tuple[int, list[int]]]
    own: list[int]
    own_vectors: Tensor
    own_log_q: Tensor
    negatives: list[int]
    negative_vectors: Tensor
    negative_log_q: Tensor


def _joined(pools: list[_Draws]) -> _Draws:
    def join(name: str) -> Any:
        parts = [getattr(pool, name) for pool in pools]
        return torch.cat(parts) if isinstance(parts[0], Tensor) else [x for p in parts for x in p]

    return _Draws(**{f.name: join(f.name) for f in fields(_Draws)})


def _loss(pool: _Draws, job: TrainJob) -> Tensor:
    settings = job.training.loss
    items = pool.own + pool.negatives
    vectors = torch.cat([pool.own_vectors, pool.negative_vectors])
    logits = pool.users @ vectors.T / job.model.temperature
    if settings.logq == "standard":
        log_q = torch.cat([pool.own_log_q, pool.negative_log_q])
        logits = logits - settings.logq_alpha * log_q
    losses = []
    for row, (user, history) in enumerate(pool.known):
        liked = {pool.own[row]}
        if settings.mask_known:
            liked |= set(history)
            liked |= {i for i, (u, _) in zip(pool.own, pool.known, strict=True) if u == user}
        kept = [column for column, item in enumerate(items) if column == row or item not in liked]
        losses.append(logits[row, kept].logsumexp(0) - logits[row, row])
    return (torch.stack(losses) * pool.weight).sum()


class _Optimizers:
    """SGD, Adagrad (whole or row-wise) and lazy Adam, with warm-up, limit and decay."""

    def __init__(
        self, job: TrainJob, tables: dict[str, Tensor], parameters: dict[str, Tensor]
    ) -> None:
        self.settings = job.training.optimizer
        self.tables, self.parameters = tables, parameters
        self.widths = {name: table.part_width for name, table in job.tables.items()}
        self.sums = {
            name: [torch.zeros_like(t), torch.zeros_like(t)]
            for name, t in [*tables.items(), *parameters.items()]
        }
        self.steps = 0

    def decay(self) -> None:
        kinds = {**dict.fromkeys(self.tables, self.settings.sparse)}
        kinds |= dict.fromkeys(self.parameters, self.settings.dense)
        for name, kind in kinds.items():
            if "adagrad" in kind:
                self.sums[name][1] *= self.settings.accumulator_decay

    @torch.no_grad()
    def step(
        self,
        by_table: dict[str, Tensor],
        by_parameter: dict[str, Tensor],
        touched: dict[str, set[int]],
    ) -> None:
        self.steps += 1
        rate = self.settings.learning_rate
        if self.settings.warmup_steps:
            rate *= min(1.0, self.steps / self.settings.warmup_steps)
        gradients = [*by_table.values(), *by_parameter.values()]
        if self.settings.clip_norm is not None:
            norm = float(torch.cat([g.flatten() for g in gradients]).norm())
            for gradient in gradients:
                gradient *= min(1.0, self.settings.clip_norm / norm)
        for name, gradient in by_table.items():
            rows = sorted(touched[name])
            move = self._move(self.settings.sparse, name, gradient, rows)
            self.tables[name][rows] -= rate * self.settings.sparse_lr_scale * move
        for name, gradient in by_parameter.items():
            move = self._move(self.settings.dense, name, gradient, ...)
            self.parameters[name].sub_(rate * move)

    def _move(self, kind: str, name: str, gradient: Tensor, rows: Any) -> Tensor:
        g, (first, second), eps = gradient[rows], self.sums[name], self.settings.eps
        if kind == "sgd":
            return g
        if kind == "adam":
            first[rows] = 0.9 * first[rows] + 0.1 * g
            second[rows] = 0.999 * second[rows] + 0.001 * g**2
            mean = first[rows] / (1 - 0.9**self.steps)
            return mean / ((second[rows] / (1 - 0.999**self.steps)).sqrt() + eps)
        square = g**2
        if kind == "rowwise_adagrad":
            # A number a row, in each of the parts into which columns are cut.
            parts = square.view(len(g), -1, self.widths[name])
            square = parts.mean(2, keepdim=True).expand_as(parts).reshape(g.shape)
        second[rows] = second[rows] + square
        return g / (second[rows].sqrt() + eps)


def _moments(rows: list[dict[str, Any]], name: str) -> tuple[float, float]:
    """Mean and standard deviation of what is there."""
    values = [row[name] for row in rows if row[name] is not None]
    mean = sum(values) / max(len(values), 1)
    deviation = (sum((v - mean) ** 2 for v in values) / max(len(values), 1)) ** 0.5
    return mean, deviation or 1.0


def _numbers(values: list[float | None], mean: float, deviation: float) -> Tensor:
    scaled = [0.0 if v is None or v != v else (v - mean) / deviation for v in values]
    return torch.tensor(scaled).double()[:, None]


def _row(jagged: Any, i: int) -> list[int]:
    return jagged.values[jagged.offsets[i] : jagged.offsets[i + 1]].tolist()


def _pool(
    f: FeatureSettings,
    rows: list[list[int]],
    table: Tensor,
    job: TrainJob,
    parameters: Mapping[str, Tensor],
    tower: str,
) -> Tensor:
    hashes = job.table_hashes[f.table]
    pooled = []
    for codes in rows:
        elements = [table[codes[i : i + hashes]].sum(0) for i in range(0, len(codes), hashes)]
        if not elements:
            pooled.append(torch.zeros(table.shape[1]).double())
        elif f.kind == "id" or f.pooling == "sum":
            pooled.append(torch.stack(elements).sum(0))
        elif f.pooling == "mean":
            pooled.append(torch.stack(elements).mean(0))
        else:
            stacked = torch.stack(elements)
            scores = stacked @ parameters[f"{tower}.pools.{f.name}.query"]
            if f.kind == "history":
                recency = parameters[f"{tower}.pools.{f.name}.recency"]
                scores = scores + torch.stack(
                    [recency[len(elements) - 1 - place] for place in range(len(elements))]
                )
            pooled.append(scores.softmax(0) @ stacked)
    return torch.stack(pooled)


def _vectors(
    settings: TowerSettings, inputs: list[Tensor], tower: Callable[..., Any], job: TrainJob
) -> Tensor:
    vectors: Tensor = tower.mlp(torch.cat(inputs, dim=1))  # type: ignore[attr-defined]
    if job.model.similarity == "cosine":
        return vectors / vectors.norm(dim=1, keepdim=True)
    return vectors
