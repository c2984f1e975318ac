"""Step: makes a promoted champion available, and ends the run in MLflow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tasks import tracking
from tasks.compare import comparison_links
from tasks.errors import LakeError
from tasks.evaluation.per_user import rows_of
from tasks.evaluation.stored import SAMPLES, read_comparison
from tasks.gate import same_answer
from tasks.progress import log
from tasks.promotion import POINTER, is_champion, write_pointer
from tasks.run_spec import ModelReference, RunSpec, StepResult
from tasks.serving.bundles import trained_model
from tasks.tracking import registry
from tasks.tracking.all_days import record_day
from tasks.tracking.runs import get_run, parent_of

_USERS_ASKED = 8
_OF_TRAINING = ("train/examples_per_second", "train/peak_memory_mib", "train/memory_")
"""Metrics of the candidate's training that the charts over all days show."""


def run(spec: RunSpec) -> StepResult:
    """Writes the pointer to the champion's bundle when this run's model was promoted.

    Returns:
        Facts `promoted`, `decision`, `run_id`, `version`, `day`; `pointer` when promoted.

    Raises:
        LakeError: The registered model does not answer as the evaluated one did.
        TrackingError: MLflow cannot be reached.
    """
    decided = spec.require("approve").facts
    version = decided["version"]
    facts: dict[str, Any] = {
        "promoted": decided["promoted"],
        "decision": decided["decision"],
        "run_id": spec.run_id,
        "version": version,
        "day": spec.day.isoformat(),
        "links": comparison_links(spec),
    }
    if decided["promoted"]:
        candidate = trained_model(spec, "candidate")
        _verify(spec, version)
        if is_champion(spec.config, version):
            model = ModelReference(
                version=version, run_id=spec.run_id, day=spec.day, bundle=candidate.path
            )
            write_pointer(spec.config, model, candidate)
            facts["pointer"] = POINTER
        else:
            # A later run was promoted while this step waited; its pointer must stay.
            log("publish.superseded", version=version)
    else:
        log("publish.nothing", decision=decided["decision"], reason=decided["reason"])
    record_day(spec.config, spec.day, _charted(spec, promoted=decided["promoted"]))
    tracking.finish_run(spec.config, parent_of(spec))
    return StepResult.of("publish", {}, **facts)


def _charted(spec: RunSpec, *, promoted: bool) -> dict[str, float]:
    """What the charts over all days show of this one."""
    comparison = read_comparison(spec)
    values = {"promoted": float(promoted)}
    for metric in comparison.headline:
        for model in comparison.models:
            if metric in model.metrics:
                values[f"{metric}/{model.name}"] = model.metrics[metric]
    for model in comparison.models:
        values[f"bytes/{model.name}"] = float(model.bytes)
    for table, facts in spec.require("vocabulary").facts["tables"].items():
        values |= {f"vocabulary/{table}/{name}": float(value) for name, value in facts.items()}
    candidate = spec.require("train.candidate").facts["mlflow_run_id"]
    trained = get_run(spec.config, candidate).data.metrics
    return values | {name: trained[name] for name in trained if name.startswith(_OF_TRAINING)}


def _verify(spec: RunSpec, version: str) -> None:
    """Asks the model as MLflow serves it, and compares with what was evaluated."""
    started = time.monotonic()
    evaluation = spec.output("evaluate", "evaluation")
    samples = rows_of(spec.lake().read_table(evaluation.file(SAMPLES)), "candidate")
    with registry.local_copy(spec.config, version) as folder:
        different = _different(folder, samples.to_pylist())
    if different:
        raise LakeError(
            "the registered model does not answer as the evaluated one did for user "
            + ", ".join(map(str, different)),
            where=f"models:/{spec.config.tracking.model_name}/{version}",
            fix="run the day again with --force; do not serve this version",
        )
    log("publish.verified", users=_USERS_ASKED, seconds=round(time.monotonic() - started, 1))


def _different(folder: Path, samples: list[dict[str, Any]]) -> list[Any]:
    import pandas as pd

    from tasks.serving.packaging import quiet_pyfunc

    # In a request a missing attribute means "as you know it"; the evaluation knew there was none.
    clear = [row for row in samples if None not in (row.get("attributes") or {}).values()]
    rows = clear[:_USERS_ASKED]
    asked = pd.DataFrame(
        [{"user_id": row["user_id"], **(row.get("attributes") or {})} for row in rows]
    )
    most = max((len(row["items"]) for row in rows), default=0)
    with quiet_pyfunc() as pyfunc:
        answers = pyfunc.load_model(str(folder)).predict(asked, params={"k": most})
    return [
        row["user_id"]
        for row, items, scores in zip(rows, answers["item_id"], answers["score"], strict=True)
        if not same_answer(list(items), list(scores), row["items"], row["scores"])
    ]
