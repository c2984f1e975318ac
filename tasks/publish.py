"""Step: makes a promoted champion available, and ends the run in MLflow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from models.errors import QualityError
from tasks import tracking
from tasks.compare import comparison_links
from tasks.errors import ConfigError, LakeError
from tasks.evaluation.per_user import rows_of
from tasks.evaluation.stored import SAMPLES, read_comparison
from tasks.gate import same_answer
from tasks.lake import Output, Published
from tasks.progress import log
from tasks.promotion import POINTER, is_champion, write_pointer
from tasks.run_spec import ModelReference, RunSpec, StepResult
from tasks.serving.bundles import bundle_folder, find_served, served_path, trained_model
from tasks.tracking import registry
from tasks.tracking.all_days import record_day
from tasks.tracking.runs import get_run, parent_of

_USERS_ASKED = 8
_OF_TRAINING = ("train/examples_per_second", "train/peak_memory_mib", "train/memory_")
"""Metrics of the candidate's training that the charts over all days show."""


def run(spec: RunSpec) -> StepResult:
    """Writes the bundle that is served, and the pointer to it, when this run's model was promoted.

    Returns:
        Facts `promoted`, `decision`, `run_id`, `version`, `day`; when promoted `pointer`, and
        `served`: bytes, and what they cost in quality.

    Raises:
        ConfigError: The served numbers, or the index, would lose more than `serving` allows.
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
            facts["served"] = _facts_of(_publish_bundle(spec, candidate))
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


def _publish_bundle(spec: RunSpec, candidate: Published) -> Published:
    """The bundle that servers open; one that was made before is found."""
    from models.published_bundle import publish_bundle

    lake, settings = spec.lake(), spec.config.serving
    as_json = settings.model_dump(mode="json")
    found = find_served(lake, spec.run_id, candidate)
    if found is not None and found.manifest.settings == as_json:
        return found
    started = time.monotonic()

    def write(output: Output) -> None:
        try:
            bundle = publish_bundle(
                bundle_folder(lake, candidate), lake.local_path(output.path), settings
            )
        except QualityError as error:
            raise ConfigError(
                f"the champion would be served too badly: {error}",
                where="serving",
                fix="give more bits to serving.tables or serving.item_vectors, search exactly with "
                "serving.index: exact, or accept the loss with a lower bound",
            ) from error
        assert bundle.served is not None
        output.meta.update(bundle.served.model_dump(mode="json"))

    published = lake.publish(
        served_path(spec.run_id),
        write,
        dataset="serving",
        day=spec.day,
        inputs={"bundle": candidate.digest},
        settings=as_json,
    )
    facts = _facts_of(published)
    log("publish.bundle", **facts, seconds=round(time.monotonic() - started, 1))
    numbers = {
        f"serving/{name}": float(v) for name, v in facts.items() if isinstance(v, int | float)
    }
    tracking.log_values(spec.config, parent_of(spec), metrics=numbers)
    return published


def _facts_of(published: Published) -> dict[str, Any]:
    """Size of a published bundle, and what its numbers and its index cost."""
    size = sum(entry.bytes for entry in published.manifest.files)
    cost = published.manifest.meta
    return {"bytes": size} | {
        name: round(value, 6) if isinstance(value, float) else value for name, value in cost.items()
    }


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
