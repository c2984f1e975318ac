"""Protects: the DAGs load quickly, without the training stack, and without deprecated calls."""

import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

# Airflow itself is loaded before: the DAG processor has it when it reads a file. At the end the
# hook is tried out, so that its silence means something.
LOADER = """
import importlib.abc, json, pathlib, sys, time, warnings

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {refused!r}:
            raise ImportError(f"a DAG imports {{name}}")

import airflow.sdk
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, CronPartitionTimetable, Param
import airflow.sdk.definitions.mappedoperator, airflow.sdk.bases.operatorlink
sys.meta_path.insert(0, Refuse())
warnings.simplefilter("error", DeprecationWarning)
warnings.simplefilter("error", PendingDeprecationWarning)
started = time.process_time()
found = []
for path in sorted(pathlib.Path("dags").glob("*.py")):
    module = __import__(f"dags.{{path.stem}}", fromlist=["*"])
    found += [value.dag_id for value in vars(module).values() if isinstance(value, DAG)]
seconds = time.process_time() - started
loaded = sorted(sys.modules)
try:
    import mlflow
except ImportError as refusal:
    answer = str(refusal)
print(json.dumps({{"dags": found, "seconds": seconds, "loaded": loaded, "refused": answer}}))
"""
HEAVY = {
    *("torch", "torchrec", "fbgemm_gpu", "dask", "distributed", "great_expectations", "mlflow"),
    *("polars", "duckdb", "matplotlib"),
}


def test_the_dags_load_quickly_and_without_the_training_stack():
    done = subprocess.run(
        [sys.executable, "-c", LOADER.format(refused=HEAVY)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["refused"] == "a DAG imports mlflow"
    assert answer["dags"] == ["daily_retrain", "full_refresh", "rebuild_index"]
    assert answer["seconds"] < 2.0
    assert not HEAVY & {name.split(".")[0] for name in answer["loaded"]}


def test_helpers_are_not_read_as_dags():
    """Every Python file here is either a DAG or named in .airflowignore."""
    patterns = [
        line
        for line in (REPOSITORY / "dags/.airflowignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    ignored = {name.removesuffix("/") for name in patterns}
    there = {
        path.name
        for path in (REPOSITORY / "dags").iterdir()
        if path.suffix == ".py" or (path.is_dir() and path.name != "__pycache__")
    }
    dags = {"daily_retrain.py", "full_refresh.py", "rebuild_index.py"}
    assert there == ignored | {"__init__.py"} | dags
    for name in dags:
        # Airflow passes over files without these words.
        text = (REPOSITORY / "dags" / name).read_text().lower()
        assert "airflow" in text
        assert "dag" in text
