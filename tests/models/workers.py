"""Training processes for tests: the real entry point, one rank or several."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from models.config import TrainJob

ROOT = Path(__file__).resolve().parents[2]


def start(job: TrainJob, folder: Path, ranks: int = 1) -> subprocess.Popen[str]:
    """Starts a training; standard output is a pipe of JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.json"
    path.write_text(job.model_dump_json())
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        if ranks > 1
        else []
    )
    with (folder / "stderr.txt").open("w") as errors:
        return subprocess.Popen(
            [sys.executable, *launcher, "-m", "models.worker", "--job", str(path)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )


def finish(process: subprocess.Popen[str], folder: Path, timeout: float = 300) -> dict[str, Any]:
    """Waits for a training to end well and returns its summary."""
    output, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, (folder / "stderr.txt").read_text()[-4000:]
    summaries = [line for line in output.splitlines() if line.startswith('{"summary"')]
    # Ranks print at the same time, and two summaries may share a line.
    first, _ = json.JSONDecoder().raw_decode(summaries[0])
    result: dict[str, Any] = first["summary"]
    return result


def run(job: TrainJob, folder: Path, ranks: int = 1) -> dict[str, Any]:
    """A training from start to end."""
    return finish(start(job, folder, ranks), folder)


def wait_for(condition: Any, what: str, timeout: float = 60) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.005)


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the whole training."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
