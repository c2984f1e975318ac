"""What validation found is where people look: lake, MLflow, scheduler and report.

Protects the way from a red or warned day to its explanation, and the explanation itself when
MLflow is down.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tasks import tracking, validate
from tasks.contract_report import BROKEN, OUTCOME, WARNINGS, report_links
from tasks.errors import ContractError, TrackingError
from tasks.lake import Lake
from tasks.run_spec import RunSpec
from tasks.tracking import pages, start_parent_run
from tasks.tracking.runs import get_run
from tests.tasks.validated_lake import FIRST, events, pipeline, spec_of, spoil, write
from tests.tasks.validated_lake import write_good_days as write_days

DAY = FIRST + timedelta(1)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    write_days(root)
    return root


@pytest.fixture
def spec(lake: Path, mlflow_uri: str) -> RunSpec:
    """A run that blocks, with its page in MLflow."""
    return _run(lake, mlflow_uri)


def _run(lake: Path, uri: str, **data: object) -> RunSpec:
    config = pipeline(lake, uri, **data)
    return spec_of(config, DAY, start_parent_run("r", DAY, config))


def _tags(spec: RunSpec) -> dict[str, str]:
    tags = get_run(spec.config, str(spec.mlflow_run_id)).data.tags
    return {name: tags[name] for name in (OUTCOME, WARNINGS, BROKEN)}


def _artifacts(spec: RunSpec) -> dict[str, str]:
    uri = get_run(spec.config, str(spec.mlflow_run_id)).info.artifact_uri
    root = Path(uri.removeprefix("file://"))
    return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()}


def test_a_good_day_is_told_with_the_versions_of_its_contracts(spec: RunSpec) -> None:
    validate.run(spec)
    assert _tags(spec) == {OUTCOME: "passed", WARNINGS: "0", BROKEN: "none"}
    tags = get_run(spec.config, str(spec.mlflow_run_id)).data.tags
    contracts = {name: tags[name] for name in tags if name.startswith("tailtower.contract.")}
    assert contracts == {
        f"tailtower.contract.{name}": "1.0.0" for name in ("interactions", "items", "examples")
    }


def test_warnings_let_the_run_go_on_and_are_tags_of_it(lake: Path, spec: RunSpec) -> None:
    more = events(DAY)
    write(lake, "interactions", DAY, more.append_column("price", more["user_id"]))
    assert validate.run(spec).facts["warnings"] == 1
    assert _tags(spec) == {
        OUTCOME: "warned",
        WARNINGS: "1",
        BROKEN: f"warn: interactions {DAY}: unknown column price",
    }
    # Delivered again, the run taken up again: nothing of the old warning is left.
    write(lake, "interactions", DAY, events(DAY))
    validate.run(spec)
    assert _tags(spec) == {OUTCOME: "passed", WARNINGS: "0", BROKEN: "none"}


def test_a_block_is_told_before_the_run_stops(lake: Path, spec: RunSpec) -> None:
    spoil(lake)
    with pytest.raises(ContractError):
        validate.run(spec)
    assert _tags(spec) == {
        OUTCOME: "blocked",
        WARNINGS: "1",
        BROKEN: f"block: interactions {DAY}: required user_id\n"
        f"warn: interactions {DAY}: unknown column price",
    }
    assert "1 nulls" in _artifacts(spec)["validation/contract_result.json"]


def test_blocking_rules_that_only_warn_say_so(lake: Path, mlflow_uri: str) -> None:
    spoil(lake)
    spec = _run(lake, mlflow_uri, validation="warn")
    validate.run(spec)
    assert _tags(spec)[OUTCOME] == "warned"
    assert _tags(spec)[BROKEN].startswith("block: ")


def test_no_validation_is_told(lake: Path, mlflow_uri: str) -> None:
    spec = _run(lake, mlflow_uri, validation="off")
    validate.run(spec)
    assert _tags(spec)[OUTCOME] == "off"
    assert _artifacts(spec) == {}


def test_page_and_summary_lie_side_by_side_and_in_mlflow(lake: Path, spec: RunSpec) -> None:
    step = validate.run(spec)
    page = lake / step.facts["data_docs"]
    assert "interactions user_id: required (no nulls)" in page.read_text()
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", page.read_text())
    summary = page.with_name("contract_result.json")
    assert _artifacts(spec) == {
        f"validation/{path.name}": path.read_text() for path in (page, summary)
    }
    content = json.loads(summary.read_text())
    assert content["contracts"]["interactions"]["version"] == "1.0.0"
    opened = Lake(str(lake))
    expected = [("interactions", FIRST), ("interactions", DAY), ("items", FIRST)]
    for entry, (dataset, day) in zip(content["days"], expected, strict=True):
        partition = opened.partition(f"raw/{dataset}", day)
        assert partition is not None
        assert (entry["dataset"], entry["day"]) == (dataset, str(day))
        assert entry["manifest_digest"] == partition.digest
        assert opened.exists(entry["all_rules"])
    before = page.stat().st_mtime_ns
    assert validate.run(spec).outputs == step.outputs
    assert page.stat().st_mtime_ns == before


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> str:
    """An MLflow server that takes everything."""
    monkeypatch.setattr(pages, "experiment_id", lambda config: "7")
    for name in ("log_values", "log_artifacts"):
        monkeypatch.setattr(tracking, name, lambda *_, **__: None)
    return "http://127.0.0.1:5000"


def test_the_scheduler_gets_the_page_of_a_good_and_of_a_bad_day(
    lake: Path, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = f"{server}/#/experiments/7/runs/abc/artifacts/validation/data_docs.html"
    spec = spec_of(pipeline(lake, server), DAY, "abc")
    assert validate.run(spec).facts["links"] == {"data_docs": page}
    capsys.readouterr()
    spoil(lake)
    with pytest.raises(ContractError):
        validate.run(spec)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line[:1] == "{"]
    assert {"event": "links", "data_docs": page} in lines


def test_a_dead_mlflow_hides_no_bad_data_and_is_worth_a_retry(
    lake: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead(*_: object, **__: object) -> None:
        raise TrackingError("MLflow failed", where=server)

    monkeypatch.setattr(tracking, "log_values", dead)
    spec = spec_of(pipeline(lake, server), DAY, "abc")
    with pytest.raises(TrackingError):
        validate.run(spec)
    spoil(lake)
    with pytest.raises(ContractError, match="required"):
        validate.run(spec)


def _links(spec: RunSpec, folder: str) -> dict[str, Any]:
    result = validate.run(spec)
    spec.lake().write_text(f"{spec.folder}/validate.json", result.model_dump_json())
    return report_links(spec, folder)


def test_the_report_links_the_page_in_mlflow_or_the_file_beside_it(lake: Path, server: str) -> None:
    folder = f"reports/comparison/dt={DAY}/key/attempt"
    ((text, address),) = _links(spec_of(pipeline(lake), DAY), folder).items()
    assert text == "Data Docs of the validation (no warning)"
    assert "interactions user_id" in (lake / folder / address).resolve().read_text()
    spoil(lake)
    config = pipeline(lake, server, validation="warn")
    ((text, address),) = _links(spec_of(config, DAY, "abc"), folder).items()
    assert text == "Data Docs of the validation (2 warnings)"
    assert address.startswith(f"{server}/#/experiments/7/runs/abc/artifacts/")
    assert _links(spec_of(pipeline(lake, validation="off"), DAY), folder) == {}
