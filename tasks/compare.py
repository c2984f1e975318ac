"""Step: compares the candidate with the baselines and the champion, for people and for the gate.

Differences and their intervals are computed from the per-user rows, never from averages.
"""

from __future__ import annotations

from typing import Any

from tasks import tracking
from tasks.config import digest_of
from tasks.contract_report import report_links
from tasks.evaluation.comparison import (
    Difference,
    ModelComparison,
    headline_metrics,
    paired_differences,
)
from tasks.evaluation.per_user import metrics_of, rows_of
from tasks.evaluation.stored import COMPARISON, read_per_user, summary
from tasks.lake import Lake, Output, Published
from tasks.run_spec import RunSpec, StepResult
from tasks.tracking.pages import compare_page
from tasks.tracking.runs import parent_of
from tasks.vocabulary import PICTURES

REPORT = "report.html"
TABLE = "comparison.md"
FIGURES = "figures"
_FORMAT = 2


def run(spec: RunSpec) -> StepResult:
    """Compares the models of the run.

    Returns:
        One output: `comparison`, with `comparison.json`, `comparison.md`, `report.html` and the
        figures; facts: the deciding difference against each model.

    Raises:
        UpstreamError: The models have not been measured.
        TrackingError: MLflow cannot be reached; the comparison is in the lake already.
    """
    lake = spec.lake()
    evaluation = spec.output("evaluate", "evaluation")

    def write(output: Output) -> None:
        _write(spec, lake, evaluation, output)

    published = lake.build(
        "reports/comparison",
        spec.day,
        write,
        inputs={
            "evaluation": evaluation.digest,
            "pictures": spec.output("vocabulary", PICTURES).digest,
        },
        settings={
            "evaluation": spec.config.evaluation.model_dump(mode="json"),
            "metric": spec.config.gate.metric,
            "run_id": spec.run_id,
            "format": _FORMAT,
        },
    )
    links = comparison_links(spec)
    result = StepResult.of("compare", {"comparison": published}, links=links, **_facts(published))
    comparison = ModelComparison.model_validate_json(lake.read_text(published.file(COMPARISON)))
    _log(spec, lake, published, comparison)
    return result


def comparison_links(spec: RunSpec) -> dict[str, str]:
    """Address of the page that shows this run's models side by side, if there is such a page."""
    runs = [spec.require(f"train.{role}").facts["mlflow_run_id"] for role in spec.config.roles]
    page = compare_page(spec.config, runs)
    return {"comparison": page} if page is not None else {}


def compare_models(spec: RunSpec, lake: Lake, evaluation: Published) -> ModelComparison:
    """The comparison of a run's candidate with everything it was measured beside."""
    meta: dict[str, Any] = evaluation.manifest.meta
    per_user = read_per_user(lake, evaluation)
    names = list(meta["models"])
    values = {name: metrics_of(rows_of(per_user, name)) for name in names}
    settings = spec.config.evaluation
    metrics = headline_metrics(spec.config.gate.metric, values["candidate"])
    differences: dict[str, dict[str, Difference]] = {
        name: paired_differences(
            values["candidate"],
            values[name],
            metrics,
            samples=settings.bootstrap_samples,
            confidence=settings.confidence,
        )
        for name in names
        if name != "candidate"
    }
    return ModelComparison(
        run_id=spec.run_id,
        day=spec.day,
        test_days=spec.test_days,
        metric=spec.config.gate.metric,
        users=meta["users"],
        items=meta["items"],
        confidence=settings.confidence,
        samples=settings.bootstrap_samples,
        paired=True,
        models=tuple(summary(name, meta["models"][name]) for name in names),
        differences=differences,
    )


def read_figures(lake: Lake, published: Published) -> dict[str, str]:
    """The figures of a stored comparison, by name."""
    return {
        path.rsplit("/", 1)[-1].removesuffix(".svg"): lake.read_text(path)
        for path in published.files()
        if path.endswith(".svg")
    }


def long_tail_pictures(spec: RunSpec) -> dict[str, tuple[str, bytes]]:
    """File name and content of each vocabulary's picture, by table."""
    lake = spec.lake()
    published = spec.output("vocabulary", PICTURES)
    pictures = {}
    for path in published.files():
        name = path.rsplit("/", 1)[-1]
        with lake.open_input(path) as stream:
            pictures[name.partition(".")[0]] = (name, bytes(stream.read()))
    return pictures


def _write(
    spec: RunSpec,
    lake: Lake,
    evaluation: Published,
    output: Output,
) -> None:
    from tasks.report.figures import draw
    from tasks.report.page import render
    from tasks.report.table import markdown

    comparison = compare_models(spec, lake, evaluation)
    present = draw(comparison)
    for name, svg in present.items():
        output.write_bytes(f"{FIGURES}/{name}.svg", svg.encode())
    page = render(
        comparison,
        present,
        long_tail=long_tail_pictures(spec),
        links=report_links(spec, output.path),
    )
    output.write_bytes(COMPARISON, comparison.model_dump_json(indent=1).encode())
    output.write_bytes(TABLE, markdown(comparison).encode())
    output.write_bytes(REPORT, page.encode())
    output.meta.update(
        deciding={
            other: found[comparison.metric].model_dump(mode="json")
            for other, found in comparison.differences.items()
            if comparison.metric in found
        }
    )


def _facts(published: Published) -> dict[str, Any]:
    deciding: dict[str, dict[str, float]] = published.manifest.meta["deciding"]
    return {
        f"against_{other}": {
            "difference": round(found["difference"], 5),
            "lower": round(found["lower"], 5),
            "upper": round(found["upper"], 5),
        }
        for other, found in deciding.items()
    }


def _log(spec: RunSpec, lake: Lake, published: Published, comparison: ModelComparison) -> None:
    """Writes metrics, tags, the description and the report to MLflow."""
    config = spec.config
    for role in config.roles:
        model = comparison.model(role)
        assert model is not None  # every role was measured
        metrics = {f"eval/{name}": value for name, value in model.metrics.items()}
        metrics |= {"model/parameters": model.parameters, "model/bytes": model.bytes}
        child = spec.require(f"train.{role}").facts["mlflow_run_id"]
        tracking.log_values(config, child, metrics=metrics, tags=_tags(spec))
        if role == "candidate":
            parent_metrics = dict(metrics)
    champion = comparison.model("champion")
    for name, value in (champion.metrics if champion else {}).items():
        parent_metrics[f"champion/{name}"] = value
    for other, found in comparison.differences.items():
        for metric, difference in found.items():
            parent_metrics[f"difference/{other}/{metric}"] = difference.difference
            if metric == comparison.metric:
                parent_metrics[f"difference/{other}/{metric}/lower"] = difference.lower
                parent_metrics[f"difference/{other}/{metric}/upper"] = difference.upper
    note = lake.read_text(published.file(TABLE))
    parent = parent_of(spec)
    tracking.log_values(
        config,
        parent,
        metrics=parent_metrics,
        tags={**_tags(spec), "mlflow.note.content": describe(comparison, note)},
    )
    tracking.log_dataset_inputs(
        spec, parent, {"examples": ("evaluation", spec.output("examples", "examples"))}
    )
    files = {path.rsplit("/", 1)[-1]: path for path in published.files()}
    tracking.log_artifacts(
        config,
        parent,
        {
            f"{FIGURES}/{name}" if name.endswith(".svg") else name: lake.read_text(path)
            for name, path in files.items()
        },
    )


def describe(comparison: ModelComparison, table: str, reason: str | None = None) -> str:
    """The description of a run in MLflow, in Markdown."""
    from tasks.report.table import basis

    parts = [f"**{reason}**"] if reason else []
    return "\n\n".join([*parts, table, basis(comparison)])


def _tags(spec: RunSpec) -> dict[str, str]:
    vocabularies = {t: spec.output("vocabulary", t).digest for t in spec.config.tables}
    return {
        "tailtower.data_digest": spec.output("examples", "examples").digest,
        "tailtower.vocabulary_digest": digest_of(vocabularies),
        "tailtower.train_days": f"{spec.train_days[0]} to {spec.train_days[-1]}",
    }
