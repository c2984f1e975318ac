"""Protects: the registered model answers on a host that has only its requirements, with the code
that it was evaluated with, and over HTTP as MLflow serves it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.bundle import write_bundle
from tasks.evaluation.stored import SAMPLES
from tasks.gate import same_answer
from tasks.serving.packaging import bundle_in, imported_by, quiet_pyfunc, signature
from tasks.tracking import tracking_uri
from tasks.tracking.registry import local_copy
from tasks.version import PROJECT_ROOT
from tests.tasks.small_runs import TwoDays

_LOAD = """
import json, sys
import mlflow.pyfunc, pandas as pd
model = mlflow.pyfunc.load_model(sys.argv[1])
answer = model.predict(pd.DataFrame({"user_id": ["u01"]}), params={"k": 3})
names = ("tasks.serving.by_id", "models.bundle")
print(json.dumps([answer["item_id"][0], [sys.modules[n].__file__ for n in names]]))
"""


def test_the_model_runs_on_the_code_that_travels_with_it(two_days: TwoDays, tmp_path: Path) -> None:
    with local_copy(two_days.config, "2") as folder:
        found = subprocess.run(
            [sys.executable, "-B", "-c", _LOAD, str(folder)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        items, files = json.loads(found.stdout.splitlines()[-1])
        assert len(items) == 3
        for file in files:
            assert Path(file).is_relative_to(folder)


def test_only_needed_modules_travel(two_days: TwoDays) -> None:
    script = PROJECT_ROOT / "tasks/serving/pyfunc_model.py"
    names = {str(path.relative_to(PROJECT_ROOT)) for path in imported_by(script)}
    assert {"tasks/__init__.py", "tasks/serving/by_id.py", "models/bundle.py"} <= names
    assert "tasks/cli.py" not in names
    with local_copy(two_days.config, "2") as folder:
        copied = {str(p.relative_to(folder / "code")) for p in (folder / "code").rglob("*.py")}
    assert copied == names


def test_loading_a_model_leaves_no_trace(two_days: TwoDays) -> None:
    """Else worker processes started later would import the model's code instead of ours."""
    search_path = list(sys.path)
    with local_copy(two_days.config, "2") as folder:
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        with quiet_pyfunc() as pyfunc:
            pyfunc.load_model(str(folder))
            assert sys.path != search_path
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert sys.path == search_path


def test_nothing_is_pickled(two_days: TwoDays) -> None:
    with local_copy(two_days.config, "2") as folder:
        suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert suffixes <= {"", ".py", ".json", ".yaml", ".txt", ".parquet", ".safetensors"}


def test_a_frame_of_users_and_histories_is_answered_row_by_row(two_days: TwoDays) -> None:
    asked = pd.DataFrame(
        {"user_id": ["u01", "nobody", None], "history": [None, None, ["i01", "i02"]]}
    )
    with local_copy(two_days.config, "2") as folder, quiet_pyfunc() as pyfunc:
        model = pyfunc.load_model(str(folder))
        answers = model.predict(asked, params={"k": 4})
        few = model.predict(asked, params={"k": 4, "candidates": ["i03", "i04", "?"]})
        with pytest.raises(ValueError, match="no attribute 'size'"):
            model.predict(asked, params={"where": ["size=1"]})
    assert answers["unknown"].tolist() == [0, 1, 0]
    assert few["unknown"].tolist() == [1, 2, 1]
    assert all(set(items) <= {"i03", "i04"} for items in few["item_id"])
    assert answers["origin"].tolist() == ["user", "popularity", "history"]
    assert [len(items) for items in answers["item_id"]] == [4, 4, 4]
    for scores in answers["score"]:
        assert scores == sorted(scores, reverse=True)
    assert not {"i01", "i02"} & set(answers["item_id"][2])


def test_the_signature_has_the_types_of_the_ids(two_days: TwoDays, tmp_path: Path) -> None:
    with local_copy(two_days.config, "2") as folder:
        described = signature(bundle_in(folder))
    assert {spec.name: str(spec.type) for spec in described.inputs.inputs} == {
        "user_id": "DataType.string",
        "history": "Array(string)",
        "country": "DataType.string",
        "interests": "Array(string)",
    }
    assert [param.name for param in described.params.params] == [
        "k",
        "exclude_seen",
        "candidates",
        "where",
    ]
    seen = pa.array([[]], pa.list_(pa.int32()))
    corpus, users = tmp_path / "items.parquet", tmp_path / "users.parquet"
    pq.write_table(pa.table({"item_id": [7], "train_count": [1]}), corpus)
    pq.write_table(pa.table({"user_id": [5], "user": [0], "seen": seen}), users)
    bundle = tmp_path / "bundle"
    write_bundle(
        bundle,
        kind="popularity",
        weights_dir=None,
        corpus_file=str(corpus),
        users_file=str(users),
    )
    integers = {spec.name: str(spec.type) for spec in signature(bundle).inputs.inputs}
    assert integers == {"user_id": "DataType.long", "history": "Array(long)"}


def test_an_unknown_user_with_attributes_is_answered_by_the_model(two_days: TwoDays) -> None:
    asked = pd.DataFrame({"user_id": ["new", "new"], "country": ["a", None]})
    with local_copy(two_days.config, "2") as folder, quiet_pyfunc() as pyfunc:
        answers = pyfunc.load_model(str(folder)).predict(asked)
    assert answers["origin"].tolist() == ["user", "popularity"]


@pytest.mark.slow
@pytest.mark.integration
def test_mlflow_serves_the_champion_over_http(two_days: TwoDays, tmp_path: Path) -> None:
    spec = two_days.second
    samples = spec.lake().read_table(spec.output("evaluate", "evaluation").file(SAMPLES))
    sample = next(s for s in samples.to_pylist() if s["model"] == "candidate")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "mlflow", "models", "serve", "-m", "models:/tiny@champion"),
        *("--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)),
    ]
    # MLflow starts `uvicorn` by its name, as from an activated environment.
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": tracking_uri(two_days.config),
        "PATH": programs,
    }
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/ping", server)
        body = {"dataframe_records": [{"user_id": sample["user_id"]}], "params": {"k": 5}}
        answer = httpx.post(f"http://127.0.0.1:{port}/invocations", json=body, timeout=30)
        assert answer.status_code == 200, answer.text
        (row,) = answer.json()["predictions"]
        assert same_answer(row["item_id"], row["score"], sample["items"], sample["scores"])
    finally:
        if server.poll() is None:
            os.killpg(server.pid, 15)
            server.wait(20)


def _wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(address, timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    raise AssertionError("the model server did not start")
