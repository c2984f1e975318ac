"""Step: measures the candidate, the baselines and the champion on the same test users.

Exact top-K over the full corpus with the reader of the served bundle, so that what is measured
is what will answer. Per-user results go into the lake: every later number is recomputed from
them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from models.bundle import Bundle, Recommender
from models.jagged import Jagged
from models.metrics import item_slices
from tasks.errors import ConfigError, DataError
from tasks.evaluation.attributes import user_attributes
from tasks.evaluation.comparison import cutoff
from tasks.evaluation.foreign_model import foreign_top_k
from tasks.evaluation.measurement import (
    TestSet,
    coverage,
    measure,
    recall_by_frequency,
    recall_curve,
)
from tasks.evaluation.per_user import aggregates
from tasks.evaluation.stored import PER_USER, SAMPLES
from tasks.lake import Lake, Output, Published
from tasks.progress import log, progress
from tasks.run_spec import RunSpec, StepResult
from tasks.serving.bundles import bundle_folder, champion_folder, trained_model
from tasks.serving.by_id import RecommenderById
from tasks.serving.fallback import top_k

SAMPLE_USERS = 64
"""Users whose recommendations are kept, to compare them with what the registered model says."""
CHAMPION = "champion"
_FORMAT = 3


def run(spec: RunSpec) -> StepResult:
    """Measures every model of the run, and the champion.

    Returns:
        One output: `evaluation`, with `per_user.parquet` (one row a model and user),
        `samples.parquet` (recommendations of some users) and, in the manifest's meta, the
        means, curves and sizes by model.

    Raises:
        DataError: No user of the test days can be measured.
        ConfigError: The deciding metric's cut-off is not evaluated.
    """
    ks = spec.config.evaluation.k
    if cutoff(spec.config.gate.metric) not in ks:
        raise ConfigError(
            f"'{spec.config.gate.metric}' is not evaluated: evaluation.k is {list(ks)}",
            where="gate.metric",
            fix="add its cut-off to evaluation.k",
        )
    lake = spec.lake()
    examples = spec.output("examples", "examples")
    models = {role: trained_model(spec, role) for role in spec.config.roles}
    inputs = {f"model/{role}": model.digest for role, model in models.items()}
    if spec.champion is not None:
        inputs[f"model/{CHAMPION}"] = f"{spec.champion.run_id}, version {spec.champion.version}"

    def write(output: Output) -> None:
        _write(spec, lake, examples, models, output)

    published = lake.build(
        "evaluations",
        spec.day,
        write,
        inputs={"examples": examples.digest, **inputs},
        settings={"k": list(ks), "metric": spec.config.gate.metric, "format": _FORMAT},
    )
    meta = published.manifest.meta
    metric = spec.config.gate.metric
    return StepResult.of(
        "evaluate",
        {"evaluation": published},
        users=meta["users"],
        items=meta["items"],
        **{name: round(m["metrics"][metric], 5) for name, m in meta["models"].items()},
    )


def _write(
    spec: RunSpec, lake: Lake, examples: Published, models: dict[str, Published], output: Output
) -> None:
    ks = spec.config.evaluation.k
    test = lake.read_table(examples.file("test/part-0.parquet"))
    test = test.filter(pc.greater(pc.list_value_length(test.column("targets")), 0))
    if test.num_rows == 0:
        raise DataError(
            "no user of the test days took an item that is new to them",
            where=f"test days {spec.test_days[0]} to {spec.test_days[-1]}",
            fix="choose another day, or raise data.test_days",
        )
    items = lake.read_table(examples.file("items/part-0.parquet"), ["item_id", "train_count"])
    item_ids = items.column("item_id").combine_chunks()
    tests = test_set(test, items)
    by_k = cutoff(spec.config.gate.metric)
    attributes = user_attributes(spec, spec.config.model.user.features, tests.user_ids)
    rows, samples, facts = [], [], {}
    with progress("evaluate", len(models) + (spec.champion is not None)) as ticker:
        for name, indices, scores, bundle in _recommend(spec, lake, models, test, item_ids):
            started = time.monotonic()
            per_user = measure(name, indices, tests, ks)
            rows.append(per_user)
            samples.append(_sample(name, tests, attributes, indices, scores, item_ids))
            facts[name] = {
                **_identity(spec, name, bundle),
                "metrics": {
                    **aggregates(per_user),
                    **coverage(indices, len(item_ids), ks),
                },
                "curve": recall_curve(indices, tests.targets),
                "frequency": recall_by_frequency(indices, tests, by_k),
            }
            ticker.advance()
            log("evaluated", model=name, seconds=round(time.monotonic() - started, 2))
    output.write_table(PER_USER, pa.concat_tables(rows, promote_options="default"))
    output.write_table(SAMPLES, pa.concat_tables(samples))
    output.meta.update(users=len(tests), items=len(item_ids), models=facts)


def test_set(test: pa.Table, items: pa.Table) -> TestSet:
    """The users and items that are measured on.

    Args:
        test: Test users of the examples, each with at least one target.
        items: `train_count` of the corpus.
    """
    train_count = items.column("train_count").to_numpy()
    return TestSet(
        user_ids=test.column("user_id").combine_chunks(),
        targets=Jagged.from_arrow(test.column("targets")),
        user_train_count=test.column("train_count").to_numpy(),
        item_train_count=train_count,
        slices=item_slices(train_count),
    )


def _recommend(
    spec: RunSpec,
    lake: Lake,
    models: dict[str, Published],
    test: pa.Table,
    item_ids: pa.Array,
) -> Iterator[tuple[str, Tensor, Tensor, Bundle]]:
    """Recommendations of each model in indices of this run's corpus; one model in memory."""
    k = max(spec.config.evaluation.k)
    for name, published in models.items():
        recommender = Recommender.load(bundle_folder(lake, published))
        indices, scores, _ = top_k(recommender, recommender.inputs(test), k)
        yield name, indices, scores, recommender.bundle
    if spec.champion is not None:
        with champion_folder(spec, spec.champion) as folder:
            model = RecommenderById(folder)
            indices, scores = foreign_top_k(spec, model, test, item_ids, k)
            yield CHAMPION, indices, scores, model.recommender.bundle


def _sample(
    name: str,
    tests: TestSet,
    attributes: dict[str, pa.Array],
    indices: Tensor,
    scores: Tensor,
    item_ids: pa.Array,
) -> pa.Table:
    """Recommendations of users spread evenly over the test users; items outside are left out."""
    rows = np.unique(np.linspace(0, len(tests) - 1, min(SAMPLE_USERS, len(tests))).astype(int))
    lists, values = [], []
    for row in rows:
        inside = (indices[row] >= 0) & (indices[row] < len(item_ids))
        lists.append(item_ids.take(pa.array(indices[row][inside].numpy())).to_pylist())
        values.append(scores[row][inside].tolist())
    columns = {
        "model": pa.array([name] * len(rows)),
        "user_id": tests.user_ids.take(pa.array(rows)),
        "items": pa.array(lists, pa.list_(item_ids.type)),
        "scores": pa.array(values, pa.list_(pa.float32())),
    }
    if attributes:
        # What the evaluation knew about a user: the registered model is told the same.
        chosen = [values.take(pa.array(rows)) for values in attributes.values()]
        columns["attributes"] = pa.StructArray.from_arrays(chosen, names=list(attributes))
    return pa.table(columns)


def _identity(spec: RunSpec, name: str, bundle: Bundle) -> dict[str, Any]:
    champion = spec.champion if name == CHAMPION else None
    return {
        "kind": bundle.kind,
        "run_id": champion.run_id if champion else spec.run_id,
        "day": (champion.day if champion else spec.day).isoformat(),
        "version": champion.version if champion else None,
        "continues": bundle.info.get("warm_start"),
        "parameters": bundle.parameters(),
        "bytes": sum(part.bytes for part in bundle.parts.values()),
    }
