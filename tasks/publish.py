"""Step: makes a promoted champion available, and ends the run in MLflow."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tasks import tracking
from tasks.compare import comparison_links
from tasks.errors import LakeError
from tasks.evaluation.per_user import rows_of
from tasks.evaluation.stored import SAMPLES
from tasks.gate import same_answer
from tasks.lake import Lake, Published
from tasks.progress import log
from tasks.run_spec import RunSpec, StepResult
from tasks.serving.bundles import trained_model
from tasks.tracking import registry
from tasks.tracking.runs import parent_of

POINTER = "models/champion.json"
"""Lake path of the file that says which bundle is served."""
_USERS_ASKED = 8


def run(spec: RunSpec) -> StepResult:
    """Writes the pointer to the champion's bundle when this run's model was promoted.

    Returns:
        Facts `promoted`, `decision`, `run_id`, `version`, `day`; `pointer` when promoted.

    Raises:
        LakeError: The registered model does not answer as the evaluated one did.
        TrackingError: MLflow cannot be reached.
    """
    gate = spec.require("gate").facts
    facts: dict[str, Any] = {
        "promoted": gate["promoted"],
        "decision": gate["decision"],
        "run_id": spec.run_id,
        "version": gate["version"],
        "day": spec.day.isoformat(),
        "links": comparison_links(spec),
    }
    if gate["promoted"]:
        candidate = trained_model(spec, "candidate")
        _verify(spec, gate["version"])
        if _still_champion(spec, gate["version"]):
            _write_pointer(spec, candidate, gate["version"])
            facts["pointer"] = POINTER
        else:
            # A later run was promoted while this step waited; its pointer must stay.
            log("publish.superseded", version=gate["version"])
    else:
        log("publish.nothing", decision=gate["decision"], reason=gate["reason"])
    tracking.finish_run(spec.config, parent_of(spec))
    return StepResult.of("publish", {}, **facts)


def read_pointer(lake: Lake) -> dict[str, Any] | None:
    """What the pointer to the champion says; None before the first promotion."""
    if not lake.exists(POINTER):
        return None
    pointer: dict[str, Any] = json.loads(lake.read_text(POINTER))
    return pointer


def _still_champion(spec: RunSpec, version: str) -> bool:
    now = tracking.current_champion(spec.config)
    return now is not None and now.version == version


def _write_pointer(spec: RunSpec, candidate: Published, version: str) -> None:
    folder = candidate.file("bundle.json").rsplit("/", 1)[0]
    pointer = {
        "model": spec.config.tracking.model_name,
        "version": version,
        "run_id": spec.run_id,
        "day": spec.day.isoformat(),
        "bundle": folder,
        "output": candidate.path,
        "digest": candidate.digest,
        "files": {entry.path.split("/", 1)[-1]: entry.digest for entry in candidate.manifest.files},
    }
    spec.lake().write_text(POINTER, json.dumps(pointer, indent=1))


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
