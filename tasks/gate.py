"""Step: decides on the candidate, registers it, and moves the alias `champion` when it passes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks import tracking
from tasks.compare import REPORT, TABLE, describe, long_tail_pictures, read_figures
from tasks.contract_report import report_links
from tasks.errors import TrackingError
from tasks.evaluation.comparison import ModelComparison
from tasks.evaluation.decision import Decision, ServingParity, decide
from tasks.evaluation.per_user import rows_of
from tasks.evaluation.stored import SAMPLES, read_comparison
from tasks.lake import Output, Published
from tasks.promotion import is_champion, make_champion
from tasks.run_spec import ModelReference, RunSpec, StepResult
from tasks.serving.bundles import bundle_folder, trained_model
from tasks.tracking import registry
from tasks.tracking.runs import parent_of

GATE = "gate.json"
_FORMAT = 2
_SCORE_TOLERANCE = 1e-4


def run(spec: RunSpec) -> StepResult:
    """Registers the candidate, decides, and records the decision.

    Repeating it registers nothing twice and moves no alias twice.

    Returns:
        One output: `decision`, with `gate.json` and the report including the decision; facts:
        `decision`, `reason`, `version`, `promoted`, and `proposal`, the comparison in Markdown,
        when a person is to decide.

    Raises:
        TrackingError: MLflow cannot be reached, or another model became champion meanwhile.
        UpstreamError: The models have not been compared.
    """
    lake = spec.lake()
    comparison = read_comparison(spec)
    compared = spec.output("compare", "comparison")
    evaluation = spec.output("evaluate", "evaluation")
    candidate = trained_model(spec, "candidate")
    check_champion(spec)
    version = _register(spec, candidate, comparison)
    samples = lake.read_table(evaluation.file(SAMPLES))
    parity = _parity(spec, version, rows_of(samples, "candidate"))
    decision = decide(comparison, spec.config.gate, parity)

    def write(output: Output) -> None:
        _write(spec, compared, comparison, decision, version, output)

    published = lake.build(
        "reports/gate",
        spec.day,
        write,
        inputs={"comparison": compared.digest, "candidate": candidate.digest},
        settings={
            "gate": spec.config.gate.model_dump(mode="json"),
            "version": version.version,
            "parity": parity.model_dump(),
            "format": _FORMAT,
        },
    )
    _move_aliases(spec, version, decision)
    table = describe(comparison, lake.read_text(compared.file(TABLE)), decision.reason)
    _log(spec, published, decision, version, table)
    proposal = {"proposal": table} if decision.outcome == "proposed" else {}
    return StepResult.of(
        "gate",
        {"decision": published},
        **proposal,
        decision=decision.outcome,
        reason=decision.reason,
        promoted=decision.outcome == "promoted",
        version=version.version,
        model=spec.config.tracking.model_name,
    )


def check_champion(spec: RunSpec) -> None:
    """Makes sure that the champion is the one that the candidate was compared with.

    Raises:
        TrackingError: Another model became champion since the run was resolved.
    """
    now = tracking.current_champion(spec.config)
    if now is None and spec.champion is None:
        return
    if now is not None and now.run_id == spec.run_id:
        return  # this run's own promotion, by an earlier attempt of this step
    if now is not None and spec.champion is not None and now.version == spec.champion.version:
        return
    before = f"version {spec.champion.version}" if spec.champion else "none"
    after = f"version {now.version} of run {now.run_id}" if now else "none"
    raise TrackingError(
        f"the champion changed while the run was going on: it was {before}, now it is {after}",
        where=f"models:/{spec.config.tracking.model_name}@{registry.CHAMPION}",
        fix="run the day again with --force, so that the candidate is compared with it",
    )


def _register(spec: RunSpec, candidate: Published, comparison: ModelComparison) -> ModelReference:
    from tasks.serving.packaging import save_model

    existing = registry.find_version(spec.config, spec.run_id, candidate.digest)
    if existing is not None:
        return existing
    metric = comparison.metric
    value = comparison.candidate.metrics.get(metric)
    with tempfile.TemporaryDirectory(prefix="tailtower-model-") as scratch:
        folder = Path(scratch) / "model"
        bundle = bundle_folder(spec.lake(), candidate)
        save_model(folder, bundle)
        return registry.register(
            spec.config,
            folder,
            run_id=spec.run_id,
            day=spec.day,
            bundle=candidate,
            mlflow_run_id=spec.require("train.candidate").facts["mlflow_run_id"],
            description=(
                f"Candidate of {spec.day}, trained on {spec.train_days[0]} to "
                f"{spec.train_days[-1]}; {metric} "
                + ("unknown" if value is None else f"{value:.4f}")
                + f" on {comparison.users:,} users. Bundle in the lake: `{candidate.path}`."
            ),
            tags={
                "tailtower.data_digest": spec.output("examples", "examples").digest,
                "tailtower.code_version": spec.code_version,
            },
        )


def _parity(spec: RunSpec, version: ModelReference, expected: pa.Table) -> ServingParity:
    """Asks the registered copy of the bundle, read back from the registry, again."""
    from tasks.serving.by_id import RecommenderById
    from tasks.serving.packaging import bundle_in

    with registry.local_copy(spec.config, version.version) as folder:
        model = RecommenderById(bundle_in(folder))
        different = 0
        for row in expected.to_pylist():
            answer = model.answer(
                row["user_id"],
                max(spec.config.evaluation.k),
                attributes=row.get("attributes"),
            )
            different += not same_answer(answer.items, answer.scores, row["items"], row["scores"])
    return ServingParity(users=expected.num_rows, different=different)


def same_answer(
    items: list[Any], scores: list[float], wanted: list[Any], wanted_scores: list[float]
) -> bool:
    """Whether two lists of recommendations are the same.

    Scores may differ in the last digits, because a matrix product of another shape adds up in
    another order; items may then change places where their scores are equal within that.
    """
    if len(items) != len(wanted):
        return False
    close = all(
        abs(a - b) <= _SCORE_TOLERANCE * max(1.0, abs(b))
        for a, b in zip(scores, wanted_scores, strict=True)
    )
    if not close:
        return False
    place = dict(zip(wanted, wanted_scores, strict=True))
    last = wanted_scores[-1] if wanted_scores else 0.0
    return all(
        a == b
        or abs(place.get(a, last) - wanted_score) <= _SCORE_TOLERANCE * max(1.0, abs(wanted_score))
        for a, b, wanted_score in zip(items, wanted, wanted_scores, strict=True)
    )


def _write(
    spec: RunSpec,
    compared: Published,
    comparison: ModelComparison,
    decision: Decision,
    version: ModelReference,
    output: Output,
) -> None:
    from tasks.report.page import render

    record = {
        "run_id": spec.run_id,
        "day": spec.day.isoformat(),
        "model": spec.config.tracking.model_name,
        "version": version.version,
        "champion": spec.champion.model_dump(mode="json") if spec.champion else None,
        **decision.model_dump(mode="json"),
    }
    page = render(
        comparison,
        read_figures(spec.lake(), compared),
        long_tail=long_tail_pictures(spec),
        decision=decision,
        links=report_links(spec, output.path),
    )
    output.write_bytes(GATE, json.dumps(record, indent=1).encode())
    output.write_bytes(REPORT, page.encode())
    output.meta.update(decision=decision.outcome, reason=decision.reason)


def _move_aliases(spec: RunSpec, version: ModelReference, decision: Decision) -> None:
    """Points `champion`, `previous` and `challenger` where the decision says."""
    if decision.outcome == "promoted":
        make_champion(spec.config, version.version)
        registry.remove_alias(spec.config, registry.CHALLENGER)
    elif not is_champion(spec.config, version.version):
        registry.set_alias(spec.config, registry.CHALLENGER, version.version)


def _log(
    spec: RunSpec,
    published: Published,
    decision: Decision,
    version: ModelReference,
    description: str,
) -> None:
    lake = spec.lake()
    config = spec.config
    tags = {"tailtower.decision": decision.outcome, "tailtower.reason": decision.reason}
    registry.set_version_tags(config, version.version, tags)
    parent = parent_of(spec)
    tracking.log_values(
        config,
        parent,
        metrics={"gate/promoted": float(decision.outcome == "promoted")},
        tags={
            **tags,
            "tailtower.model_version": version.version,
            "mlflow.note.content": description,
        },
    )
    tracking.log_artifacts(
        config, parent, {name: lake.read_text(published.file(name)) for name in (GATE, REPORT)}
    )
