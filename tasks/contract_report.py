"""What validation found, where people look: a page and a file in the lake, and MLflow.

The page is Great Expectations' Data Docs. It is made once for each set of results, lies beside
`contract_result.json`, and both are artifacts of the run in MLflow, whose page of it is what the
scheduler and the report link.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from data_contracts.broken_rules import BrokenRule
from data_contracts.contract import Contract
from data_contracts.result import ContractResult
from tasks.errors import TrackingError
from tasks.lake import Output, Published
from tasks.progress import log
from tasks.run_spec import RunSpec

DATASET = "reports/validation"
DATA_DOCS = "data_docs.html"
RESULT = "contract_result.json"
ARTIFACTS = "validation"
"""Folder of the artifacts in MLflow."""
LINK = "data_docs"
"""Name under which the step reports the page's address."""

OUTCOME = "tailtower.validation"
WARNINGS = "tailtower.validation.warnings"
BROKEN = "tailtower.validation.broken_rules"
PAGE = "tailtower.validation.data_docs"
VERSION = "tailtower.contract."
"""Start of the tags with each contract's version."""

_FORMAT = 1

Checked = Sequence[tuple[Contract, ContractResult]]


def publish_report(
    spec: RunSpec, results: Mapping[str, Published], checked: Checked, broken: Sequence[BrokenRule]
) -> Published:
    """Publishes the Data Docs of a run's days and a summary, or finds them made.

    Args:
        spec: The run.
        results: The published result of each day, by data set and day.
        checked: The same results, read, with their contracts.
        broken: Everything that is broken, most severe first.
    """

    def write(output: Output) -> None:
        from data_contracts.data_docs import page

        output.write_bytes(DATA_DOCS, page(checked).encode())
        text = json.dumps(_summary(results, checked, broken), indent=1, ensure_ascii=False)
        output.write_bytes(RESULT, text.encode())

    return spec.lake().build(
        DATASET,
        spec.day,
        write,
        inputs={name: published.digest for name, published in results.items()},
        settings={"format": _FORMAT},
    )


def _summary(
    results: Mapping[str, Published], checked: Checked, broken: Sequence[BrokenRule]
) -> dict[str, object]:
    return {
        "contracts": {c.dataset: {"version": c.version, "digest": c.digest} for c, _ in checked},
        "blocking": count(broken, "block"),
        "warnings": count(broken, "warn"),
        "broken": [
            {
                "dataset": entry.dataset,
                "days": [str(day) for day in entry.days],
                **entry.rule.model_dump(mode="json"),
            }
            for entry in broken
        ],
        "days": [
            {
                "dataset": result.dataset,
                "day": str(result.day),
                "contract_version": result.contract_version,
                "manifest_digest": result.partition_digest,
                "files": result.files,
                "rows": result.rows,
                "blocked": result.blocked,
                "warnings": result.warnings,
                "all_rules": results[f"{result.dataset}/{result.day}"].file(RESULT),
            }
            for _, result in checked
        ],
    }


def show_in_mlflow(
    spec: RunSpec,
    contracts: Sequence[Contract],
    broken: Sequence[BrokenRule],
    report: Published | None,
) -> dict[str, str]:
    """Puts the outcome, warnings and contract versions on the run's page in MLflow.

    Args:
        spec: The run.
        contracts: Contracts of the data sets; none when nothing is checked.
        broken: Everything that is broken, most severe first.
        report: The page and the summary, which become artifacts.

    Returns:
        Address of the Data Docs, if MLflow has a page for them.

    Raises:
        TrackingError: MLflow cannot be reached, and no broken rule stops the run.
    """
    if spec.mlflow_run_id is None:
        return {}
    stops = spec.config.data.validation == "block" and count(broken, "block") > 0
    try:
        return _show(spec, spec.mlflow_run_id, _tags(spec, contracts, broken, stops), report)
    except TrackingError as error:
        if not stops:
            raise
        # What is wrong with the data is worth more than where it could not be shown.
        log("MLflow does not show what was found", reason=error.what)
        return {}


def _show(
    spec: RunSpec, mlflow_run_id: str, tags: Mapping[str, str], report: Published | None
) -> dict[str, str]:
    from tasks import tracking
    from tasks.tracking.pages import artifact_page

    if report is None:
        tracking.log_values(spec.config, mlflow_run_id, tags=tags)
        return {}
    page = artifact_page(spec.config, mlflow_run_id, f"{ARTIFACTS}/{DATA_DOCS}")
    where = {PAGE: page or report.file(DATA_DOCS)}
    tracking.log_values(spec.config, mlflow_run_id, tags={**tags, **where})
    lake = spec.lake()
    files = {f"{ARTIFACTS}/{n}": lake.read_text(report.file(n)) for n in (DATA_DOCS, RESULT)}
    tracking.log_artifacts(spec.config, mlflow_run_id, files)
    return {LINK: page} if page is not None else {}


def _tags(
    spec: RunSpec, contracts: Sequence[Contract], broken: Sequence[BrokenRule], stops: bool
) -> dict[str, str]:
    """All tags, also those with nothing to say: a run that is taken up again may have them."""
    outcome = "blocked" if stops else "warned" if broken else "passed"
    off = spec.config.data.validation == "off"
    return {
        OUTCOME: "off" if off else outcome,
        WARNINGS: str(count(broken, "warn")),
        BROKEN: "\n".join(f"{entry.rule.severity}: {entry}" for entry in broken) or "none",
        **{f"{VERSION}{contract.dataset}": contract.version for contract in contracts},
    }


def report_links(spec: RunSpec, folder: str) -> dict[str, str]:
    """What a report of the run links about its data: addresses by their text.

    Args:
        spec: The run.
        folder: Folder in the lake that the report is written to; without a page of MLflow, the
            address is relative to it.
    """
    facts = spec.require("validate").facts
    path = facts.get(LINK)
    if path is None:
        return {}
    warnings = facts["warnings"] + facts["blocking"]
    found = {0: "no warning", 1: "1 warning"}.get(warnings, f"{warnings} warnings")
    address = facts.get("links", {}).get(LINK) or os.path.relpath(path, folder)
    return {f"Data Docs of the validation ({found})": address}


def count(broken: Sequence[BrokenRule], severity: str) -> int:
    """Number of broken rules of a severity."""
    return sum(entry.rule.severity == severity for entry in broken)
