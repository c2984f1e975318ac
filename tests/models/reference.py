"""A second, plain implementation of the training in float64, to compare weights with.

Nothing is shared with the product but the initial weights, the order of the examples and the
draws of the negatives: lookups are loops over Python lists, logits are materialised, optimizers
are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    table_state = {name: torch.zeros(len(table)).double() for name, table in tables.items()}
    dense_state = {name: torch.zeros_like(p) for name, p in parameters.items()}
    sampler = None
    if job.negatives_file is not None:
        sampler = AliasSampler.from_parquet(job.negatives_file, len(corpus_rows))
    counts = torch.tensor([row["train_count"] for row in corpus_rows]).double()

    for macro in ExampleReader(job, len(corpus)).read():
        leaves = {name: table.clone().requires_grad_() for name, table in tables.items()}
        total = torch.zeros(()).double()
        for number, micro in enumerate(macro.micro):
            batch = micro.local
            negatives: list[int] = []
            if sampler is not None:
                generator = generator_for(settings.seed, "negatives", macro.step, number)
                negatives = sampler.sample(settings.loss.num_negatives, generator).tolist()
            own = batch.item.tolist()
            items = own + negatives
            item_inputs = [
                _pool(
                    f,
                    [corpus_rows[i][f.name] for i in items],
                    leaves[f.table],
                    job,
                    parameters,
                    "item",
                )
                for f in job.model.item.features
            ]
            user_inputs = []
            for f in job.model.user.features:
                if f.kind == "history":
                    ids = next(g.name for g in job.model.item.features if g.table == f.table)
                    history = batch.users.history
                    rows = [
                        [
                            code
                            for item in _row(history, i)[-f.max_length :]
                            for code in corpus_rows[item][ids]
                        ]
                        for i in range(len(batch))
                    ]
                else:
                    rows = [_row(batch.users.features[f.name], i) for i in range(len(batch))]
                user_inputs.append(_pool(f, rows, leaves[f.table], job, parameters, "user"))
            u = _vectors(job.model.user, user_inputs, towers.user, job)
            v = _vectors(job.model.item, item_inputs, towers.item, job)
            log_q = (counts[own] / counts.sum()).log()
            if sampler is not None:
                log_q = torch.cat([log_q, sampler.log_q[negatives].double()])
            logits = u @ v.T / job.model.temperature
            if settings.loss.logq == "standard":
                logits = logits - settings.loss.logq_alpha * log_q
            for row, item in enumerate(own):
                for column, other in enumerate(items):
                    if other == item and column != row:
                        logits[row, column] = -torch.inf
            losses = logits.logsumexp(1) - logits.diagonal()
            total = total + (losses * batch.weight.double()).sum()
        gradients = torch.autograd.grad(
            total / macro.weight,
            [*leaves.values(), *parameters.values()],
            allow_unused=True,
            materialize_grads=True,
        )
        with torch.no_grad():
            for (name, table), gradient in zip(tables.items(), gradients, strict=False):
                gradient[0] = 0
                table_state[name] += (gradient**2).mean(1)
                rate = settings.optimizer.learning_rate * settings.optimizer.sparse_lr_scale
                root = table_state[name].sqrt() + settings.optimizer.eps
                table -= rate * gradient / root[:, None]
            for (name, p), gradient in zip(
                parameters.items(), gradients[len(tables) :], strict=True
            ):
                dense_state[name] += gradient**2
                root = dense_state[name].sqrt() + settings.optimizer.eps
                p.sub_(settings.optimizer.learning_rate * gradient / root)
    return tables, {name: p.detach() for name, p in parameters.items()}


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
