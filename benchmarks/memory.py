"""Memory of the tables and of a step, and what saving it costs in time and quality.

    python -m benchmarks.memory [--batch 8192] [--runs 5] [--seeds 3]

Bytes of FP16 tables over those of FP32 ones, and Recall@20 of models that were trained with
either on users with a taste, once for each seed. Highest bytes that a step makes with recomputed
activations and scores formed in chunks, over those of keeping all activations and forming all
scores at once, for towers with three hidden layers; and the time of either. Bytes are those of the
product's own report, `models/memory_use.py`. The last line is one JSON object; times are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.measure import Contender, busy_machine, interleave, opened, serve
from benchmarks.taste_world import Tastes, make_taste_job, make_tastes, recall_at_20
from benchmarks.training import ONE_THREAD, say
from benchmarks.training_world import WorldShape, make_job, make_world

HIDDEN = (512, 256, 128)


def measure_step(options: argparse.Namespace) -> dict[str, Any]:
    """A step that keeps everything, and one that keeps little."""
    shape = WorldShape(options.rows, options.steps, batch=options.batch)
    world = make_world(options.cache, shape)
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        contenders = {}
        for name in ("kept", "saved"):
            saved = name == "saved"
            loss = {"negatives": None, "num_negatives": 0}
            loss |= {} if saved else {"chunk": options.batch}
            job = make_job(world, shape, options.steps, checkpoint_activations=saved, loss=loss)
            towers = {
                side: getattr(job.model, side).model_copy(update={"hidden": HIDDEN})
                for side in ("user", "item")
            }
            job = job.model_copy(update={"model": job.model.model_copy(update=towers)})
            path = Path(folder) / f"{name}.json"
            path.write_text(job.model_dump_json())
            contenders[name] = Contender("benchmarks.memory", ["serve", str(path)], ONE_THREAD)
        running = opened(stack, contenders)
        samples = interleave(running, lambda _: {}, options.runs, say)
        found = {name: contender.run({}) for name, contender in running.items()}
    kept, saved = (found[name]["activations"] for name in ("kept", "saved"))
    return {
        "activation_ratio": round(saved / kept, 3),
        "activation_time_ratio": round(samples["saved"].median / samples["kept"].median, 3),
        "activation_cpu_ratio": round(samples["saved"].cpu / samples["kept"].cpu, 3),
        "activation_mib": {"kept": round(kept / 2**20, 1), "saved": round(saved / 2**20, 1)},
        "seconds": {name: samples[name].summary() for name in samples},
    }


def serve_steps(path: Path) -> None:
    """The process that trains: `python -m benchmarks.memory serve JOB.json`."""
    import torch

    from models.config import TrainJob
    from models.distributed_training import DistributedTraining
    from models.stopping import StopRequest
    from models.trainer import training_environment

    torch.set_num_threads(1)
    device = torch.device("cpu")
    job = TrainJob.model_validate_json(path.read_text())
    watcher = _Watcher()
    with training_environment(device):
        training = DistributedTraining(job, watcher, device)

        def work(_: dict[str, Any]) -> dict[str, Any]:
            training.fit(StopRequest())
            return {"activations": watcher.found["memory_activations_mib"] * 2**20}

        serve(work)


def measure_tables(options: argparse.Namespace) -> dict[str, Any]:
    """Models with tables of either type, on the same examples."""
    from models.trainer import train

    shape = Tastes(users=options.users, items=options.users // 2)
    folder = options.cache / f"tastes-{options.users}"
    make_tastes(folder, shape)
    recall: dict[str, list[float]] = {"fp32": [], "fp16": []}
    tables: dict[str, float] = {}
    for seed in range(options.seeds):
        for dtype, values in recall.items():
            with tempfile.TemporaryDirectory() as output:
                job = make_taste_job(folder, Path(output), shape, dtype, seed)
                watcher = _Watcher()
                train(job, watcher)
                tables[dtype] = watcher.found["memory_tables_mib"]
                values.append(recall_at_20(folder, job))
            say(f"seed {seed} {dtype}: Recall@20 {values[-1]:.4f}")
    means = {dtype: statistics.mean(values) for dtype, values in recall.items()}
    return {
        "fp16_bytes_ratio": round(tables["fp16"] / tables["fp32"], 3),
        "fp16_recall_ratio": round(means["fp16"] / means["fp32"], 4),
        "recall_at_20": {d: [round(v, 4) for v in values] for d, values in recall.items()},
        "table_mib": {dtype: round(size, 1) for dtype, size in tables.items()},
    }


class _Watcher:
    """Keeps what a training reported about its memory."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.found |= {name: v for name, v in metrics.items() if name.startswith("memory_")}

    def log_text(self, name: str, text: str) -> None:
        pass

    def progress(self, done: int, total: int, message: str) -> None:
        pass


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=100_000, help="users, and items, of the steps")
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=8, help="batches of one run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--users", type=int, default=20_000, help="users with a taste")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path("var/benchmarks"))
    options = parser.parse_args(argv)
    report: dict[str, Any] = {"cores": os.cpu_count(), "load_before": round(busy_machine(), 2)}
    report |= measure_step(options)
    report |= measure_tables(options)
    print(json.dumps(report))


if __name__ == "__main__":
    serve_steps(Path(sys.argv[2])) if sys.argv[1:2] == ["serve"] else main()
