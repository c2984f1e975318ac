"""The validate step's share of a daily run, on one lake, as a scheduler starts the steps."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.counting_lake import day_of, deliver

TRAIN_DAYS = 7
STEPS = ("await_partition", "validate", "count", "vocabulary", "examples")
_VOCABULARY = {"min_count": 10, "tail_buckets": 1024}


def measure_share(
    cache: Path,
    rows: int,
    files_of_day: Callable[[int], Sequence[Path]],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Runs the steps before the training for two days that follow each other.

    The first run finds no day checked, counted or encoded; the second finds one new day. Every
    step is a process of its own, its imports included, with the default Dask cluster. Training,
    evaluation and publication are left out, so the true shares are smaller.

    Args:
        cache: Folder for the lake.
        rows: Events in the window and the test day.
        files_of_day: Makes the files of day 1, 2, …
        say: Takes a line about each step.
    """
    root = (cache / f"validation-share-{rows}").absolute()
    lake = root / "lake"
    for name in sorted(path.name for path in lake.glob("*") if path.name != "raw"):
        shutil.rmtree(lake / name)
    (root / "mlflow.db").unlink(missing_ok=True)
    for number in range(1, TRAIN_DAYS + 3):
        deliver(lake, number, files_of_day(number))
    config = root / "pipeline.yaml"
    config.write_text(json.dumps(_pipeline(root)))  # JSON is YAML
    runs = {
        name: _run(config, TRAIN_DAYS + number, say)
        for name, number in (("first", 1), ("daily", 2))
    }
    return {"rows": rows, **runs}


def _pipeline(root: Path) -> dict[str, Any]:
    return {
        "name": "share",
        "lake": str(root / "lake"),
        "tracking": {"uri": f"sqlite:///{root / 'mlflow.db'}"},
        "data": {"window_days": TRAIN_DAYS},
        "tables": {
            "user": {"source": "interactions.user_id", "vocabulary": _VOCABULARY},
            "item": {"source": "interactions.item_id", "vocabulary": _VOCABULARY},
        },
        "model": {
            "user": {
                "features": [
                    {"name": "uid", "table": "user"},
                    {"name": "history", "table": "item", "kind": "history", "max_length": 50},
                ]
            },
            "item": {"features": [{"name": "iid", "table": "item"}]},
        },
    }


def _run(config: Path, number: int, say: Callable[[str], None]) -> dict[str, Any]:
    day = str(day_of(number))
    resolved, _ = _step("resolve_run", "--config", str(config), "--day", day)
    seconds = {}
    for name in STEPS:
        _, taken = _step(name, "--run-spec", resolved["run_spec"])
        seconds[name] = round(taken, 2)
        say(f"{day} {name}: {taken:.1f} s")
    return {"seconds": seconds, "share": round(seconds["validate"] / sum(seconds.values()), 4)}


def _step(name: str, *arguments: str) -> tuple[dict[str, Any], float]:
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "tasks", name, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result, seconds
