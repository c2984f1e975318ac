"""Protects: one MLflow run for each day and model however often a step is repeated, readable
parameters without secrets, and errors that name the cause."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from tasks.config import PipelineConfig
from tasks.errors import ConfigError, TrackingError, UpstreamError
from tasks.lake import Lake
from tasks.reconcile import reconcile
from tasks.run_spec import RunSpec
from tasks.tracking import (
    client,
    finish_run,
    location,
    log_artifact_files,
    log_artifacts,
    log_dataset_inputs,
    log_values,
    start_child_run,
    start_parent_run,
    store_uri,
    tracking_uri,
)
from tasks.tracking.runs import find_run, flat_params, get_run

DAY = date(2026, 1, 3)


@pytest.fixture
def config(mlflow_uri: str, tmp_path: Path) -> PipelineConfig:
    return _config(mlflow_uri, str(tmp_path / "lake"))


def _config(uri: str | None, lake: str) -> PipelineConfig:
    return PipelineConfig.model_validate(
        {
            "name": "shop",
            "lake": lake,
            "tracking": {"uri": uri},
            "tables": {
                "user": {"source": "interactions.user_id"},
                "item": {"source": "interactions.item_id"},
            },
            "model": {
                "user": {"features": [{"name": "uid", "table": "user"}]},
                "item": {"features": [{"name": "iid", "table": "item"}]},
            },
        }
    )


def _spec(config: PipelineConfig, parent: str | None) -> RunSpec:
    return RunSpec(
        run_id="2026-01-03-abc",
        day=DAY,
        train_days=(date(2026, 1, 2),),
        test_days=(DAY,),
        config=config,
        code_version="1",
        mlflow_run_id=parent,
    )


def test_a_repeated_start_returns_the_same_run_and_reopens_it(config: PipelineConfig) -> None:
    first = start_parent_run("2026-01-03-abc", DAY, config)
    finish_run(config, first)
    assert get_run(config, first).info.status == "FINISHED"
    again = start_parent_run("2026-01-03-abc", DAY, config)
    other = start_parent_run("2026-01-03-abd", DAY, config)
    assert again == first != other
    run = get_run(config, first)
    assert run.info.status == "RUNNING"
    assert run.info.run_name == "2026-01-03"
    assert run.data.tags["tailtower.role"] == "parent"
    assert run.data.params["training.optimizer.learning_rate"] == "0.01"


def test_children_hang_below_their_parent(config: PipelineConfig) -> None:
    parent = start_parent_run("2026-01-03-abc", DAY, config)
    spec = _spec(config, parent)
    candidate = start_child_run(spec, "candidate")
    popularity = start_child_run(spec, "popularity")
    assert len({parent, candidate, popularity}) == 3
    assert start_child_run(spec, "candidate") == candidate
    run = get_run(config, candidate)
    assert run.data.tags["mlflow.parentRunId"] == parent
    assert run.info.run_name == "2026-01-03 candidate"
    assert find_run(config, "2026-01-03-abc", "popularity") == popularity
    assert find_run(config, "unknown") is None


def test_what_a_stopped_run_left_open_is_ended(config: PipelineConfig) -> None:
    """And nothing of other runs, other lakes, or models that were trained to their end."""
    parent = start_parent_run("2026-01-03-abc", DAY, config)
    spec = _spec(config, parent)
    done, stopped = (start_child_run(spec, role) for role in ("popularity", "candidate"))
    finish_run(config, done)
    other = start_parent_run("2026-01-03-other", DAY, config)
    assert reconcile(spec) == 2
    status = {run: get_run(config, run).info.status for run in (parent, done, stopped, other)}
    assert status == {parent: "FAILED", done: "FINISHED", stopped: "FAILED", other: "RUNNING"}
    assert reconcile(spec) == 0
    assert start_parent_run("2026-01-03-abc", DAY, config) == parent
    assert get_run(config, parent).info.status == "RUNNING"


def test_a_child_needs_a_parent(config: PipelineConfig) -> None:
    with pytest.raises(UpstreamError, match="no MLflow run"):
        start_child_run(_spec(config, None), "candidate")


def test_values_and_artifacts_are_stored(config: PipelineConfig) -> None:
    run_id = start_parent_run("r", DAY, config)
    metrics = {f"m{n}": n / 4 for n in range(1500)}
    log_values(
        config, run_id, metrics={**metrics, "eval/nan": float("nan")}, tags={"reason": "x" * 9000}
    )
    log_artifacts(config, run_id, {"gate.json": '{"a": 1}'})
    run = get_run(config, run_id)
    assert run.data.metrics == metrics  # a NaN is left out
    assert len(run.data.tags["reason"]) == 8000
    artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
    assert json.loads((artifacts / "gate.json").read_text()) == {"a": 1}


def test_files_become_artifacts(config: PipelineConfig, tmp_path: Path) -> None:
    run = start_parent_run("2026-01-03-abc", DAY, config)
    path = tmp_path / "trace-000002.json.gz"
    path.write_bytes(b"\x1f\x8b trace")
    log_artifact_files(config, run, "traces", [path])
    (found,) = client(config).list_artifacts(run, "traces")
    copied = client(config).download_artifacts(run, found.path, str(tmp_path))
    assert Path(copied).read_bytes() == path.read_bytes()


def test_artifacts_lie_beside_the_database(config: PipelineConfig, tmp_path: Path) -> None:
    run_id = start_parent_run("r", DAY, config)
    uri = get_run(config, run_id).info.artifact_uri
    assert uri.startswith(f"file://{tmp_path}/mlflow/artifacts/tailtower/")


def test_inputs_are_recorded_with_digest_and_rows(config: PipelineConfig) -> None:
    import pyarrow as pa

    run_id = start_parent_run("r", DAY, config)
    lake = Lake(config.lake)
    published = lake.publish(
        "examples/x",
        lambda output: output.write_table("a.parquet", pa.table({"x": [1, 2, 3]})),
        dataset="examples",
        day=DAY,
    )
    log_dataset_inputs(_spec(config, run_id), run_id, {"train": ("training", published)})
    inputs = get_run(config, run_id).inputs
    assert inputs is not None
    recorded = inputs.dataset_inputs[0]
    assert recorded.dataset.digest == published.digest
    assert json.loads(recorded.dataset.profile or "")["num_rows"] == 3
    assert json.loads(recorded.dataset.source)["uri"] == f"{lake.url}/examples/x"
    assert recorded.tags[0].value == "training"


def test_params_are_flat_and_hold_no_password() -> None:
    config = _config("https://ann:secret@mlflow.example", "s3://key:secret@bucket/lake")
    params = flat_params(config)
    assert params["model.user.features.uid.table"] == "user"
    assert params["evaluation.k"] == "[10, 20, 50]"
    assert params["lake"] == "s3://bucket/lake"
    assert params["data.first_day"] == "null"
    assert "secret" not in " ".join(params.values())


def test_the_address_comes_from_config_then_environment_then_the_working_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://env")
    assert tracking_uri(_config("http://given", "lake")) == "http://given"
    assert tracking_uri(_config(None, "lake")) == "http://env"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert tracking_uri(_config(None, "lake")) == store_uri()
    assert store_uri() == f"sqlite:///{tmp_path}/var/mlflow/mlflow.db"


def test_a_deleted_experiment_is_named(config: PipelineConfig) -> None:
    mlflow = client(config)
    mlflow.delete_experiment(location.experiment_id(config))
    with pytest.raises(ConfigError, match="'tailtower' was deleted"):
        start_parent_run("r", DAY, config)


@pytest.mark.faults
def test_a_dead_server_is_a_transient_error_without_the_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    config = _config("http://ann:secret@127.0.0.1:9", "lake")
    with pytest.raises(TrackingError) as caught:
        start_parent_run("r", DAY, config)
    assert caught.value.transient
    assert "secret" not in str(caught.value)
