"""What the product does on this machine's accelerator; run by `benchmarks/gpu.sh`.

    benchmarks/gpu.sh [--rows 1000000] [--batch 8192] [--seconds 540]

Gradients of towers and loss against float64 on the CPU; the weights after some steps against the
CPU's; throughput in the device's short type and in float32 against the traditional training;
memory of FP16 tables; and what reading and copying ahead gains. All but `sharded` runs on copied
tables (`sharding: data_parallel`), which need neither TorchRec nor FBGEMM. What cannot run is named
under `left_out`. Without an accelerator the same runs in small on the CPU, and `accelerator` is
null. The last line is one JSON object; times are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.silent import Silent
from benchmarks.training import say
from benchmarks.training_world import WorldShape, make_job, make_world
from models.candidates import Candidates, Positives
from models.config import TrainJob
from models.device import compute_device, device_name, synchronise
from models.jagged import Jagged
from models.sampled_softmax import SampledSoftmax
from models.two_tower import TwoTower

CPU = torch.device("cpu")
SMALL = {"rows": 2000, "batch": 64, "steps": 4, "accumulate": 2, "runs": 1}
"""Sizes without an accelerator."""


class _Trainings:
    """Makes jobs of one world and trains them.

    Args:
        options: Sizes.
        device: Where trainings compute, unless they are told.
    """

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self._options = options
        self.device = device
        batches = options.steps * options.accumulate
        self._shape = WorldShape(options.rows, batches, batch=options.batch)
        self._world = make_world(options.cache, self._shape)

    def job(
        self, *, sharding: str = "data_parallel", dtype: str = "fp32", **training: object
    ) -> TrainJob:
        """A job on the world."""
        settings = {"accumulate": self._options.accumulate, "threads": None, **training}
        job = make_job(self._world, self._shape, self._shape.steps, **settings)
        tables = {
            name: table.model_copy(update={"sharding": sharding, "dtype": dtype})
            for name, table in job.tables.items()
        }
        return job.model_copy(update={"tables": tables})

    def open(self, job: TrainJob, device: torch.device | None = None, sink: Any = None) -> Any:
        """The product's training of a job."""
        from models.distributed_training import DistributedTraining

        return DistributedTraining(job, sink or Silent(), device or self.device)

    def seconds(self, trainings: Mapping[str, Any]) -> dict[str, float]:
        """Median time of a run of each; they take turns, and one round is not counted."""
        from models.stopping import StopRequest

        times: dict[str, list[float]] = {name: [] for name in trainings}
        for number in range(self._options.runs + 1):
            for name, training in trainings.items():
                synchronise(self.device)
                started = time.perf_counter()
                training.fit(StopRequest())
                synchronise(self.device)
                if number:
                    times[name].append(time.perf_counter() - started)
        return {name: statistics.median(values) for name, values in times.items()}

    @property
    def examples(self) -> int:
        """Examples of a run."""
        return self._shape.steps * self._shape.batch


def gradients(trainings: _Trainings) -> dict[str, Any]:
    """Relative error of the towers' and rows' gradients against float64 on the CPU."""
    job = trainings.job()
    generator = torch.Generator().manual_seed(3)
    examples, rows = 512, 300
    tables = {n: torch.randn(rows, t.dim, generator=generator) for n, t in job.tables.items()}

    def bags(longest: int) -> Jagged:
        lengths = torch.randint(1, longest + 1, (examples,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        values = torch.randint(rows, (int(offsets[-1]),), generator=generator)
        return Jagged(values, offsets)

    codes = {
        f.name: bags(1 if f.kind == "id" else 8)
        for f in (*job.model.user.coded, *job.model.item.coded)
    }

    def gradient(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        towers = TwoTower(job.model, job.tables, job.table_hashes, seed=1).to(device, dtype)
        leaves = {name: table.to(device, dtype).requires_grad_() for name, table in tables.items()}
        here = {name: c.to(device) for name, c in codes.items()}
        users, items = towers.user_vectors(leaves, here), towers.item_vectors(leaves, here)
        every = torch.arange(examples, device=device)
        flat = torch.zeros(examples, dtype=dtype, device=device)
        loss = SampledSoftmax(job.model.temperature, True, "standard")(
            users,
            items,
            Candidates(every, flat, torch.ones_like(every), examples),
            Positives(every, flat),
            torch.full_like(flat, 1 / examples),
        )
        loss.backward()  # type: ignore[no-untyped-call]
        parts = [p.grad for p in [*towers.parameters(), *leaves.values()] if p.grad is not None]
        return torch.cat([part.flatten().to(CPU, torch.float64) for part in parts])

    exact = gradient(CPU, torch.float64)
    found = gradient(trainings.device, torch.float32)
    return {"gradient_error": float((found - exact).norm() / exact.norm())}


def weights(trainings: _Trainings) -> dict[str, Any]:
    """Distance of the weights after a run from the CPU's, over the distance that they moved."""
    job = trainings.job(precision="fp32", optimizer={"sparse": "sgd", "dense": "sgd"})
    return {"weight_error": _apart(trainings, job, job)}


def sharded(trainings: _Trainings) -> dict[str, Any]:
    """TorchRec's tables on the device: the same distance, and examples a second."""
    import fbgemm_gpu
    import torchrec

    plain = {"sparse": "sgd", "dense": "sgd"}
    copied = trainings.job(precision="fp32", optimizer=plain)
    spread = trainings.job(sharding="auto", precision="fp32", optimizer=plain)
    error = _apart(trainings, copied, spread)
    times = trainings.seconds({"sharded": trainings.open(trainings.job(sharding="auto"))})
    return {
        "sharded_weight_error": error,
        "sharded_examples_per_second": round(trainings.examples / times["sharded"]),
        "torchrec": torchrec.__version__,
        "fbgemm": fbgemm_gpu.__version__,
    }


def _apart(trainings: _Trainings, on_cpu: TrainJob, on_device: TrainJob) -> float:
    from models.stopping import StopRequest

    def flat(training: Any) -> torch.Tensor:
        _, towers, tables = training.model()
        parts = [*towers.state_dict().values(), *(tables[name] for name in sorted(tables))]
        return torch.cat([part.detach().to(CPU, torch.float64).flatten() for part in parts])

    ours, theirs = trainings.open(on_device), trainings.open(on_cpu, CPU)
    start = flat(theirs)
    for training in (ours, theirs):
        training.fit(StopRequest())
    found, expected = flat(ours), flat(theirs)
    return float((found - expected).norm() / (expected - start).norm())


def throughput(trainings: _Trainings) -> dict[str, Any]:
    """Examples a second in the device's short type and in float32, against plain PyTorch."""
    from models.traditional import TraditionalTraining

    job = trainings.job()
    times = trainings.seconds(
        {
            "auto": trainings.open(job),
            "fp32": trainings.open(trainings.job(precision="fp32")),
            "traditional": TraditionalTraining(job, Silent(), trainings.device),
        }
    )
    return {
        "examples_per_second": {n: round(trainings.examples / t) for n, t in times.items()},
        "ratio_vs_traditional": round(times["traditional"] / times["auto"], 3),
        "short_type_gain": round(times["fp32"] / times["auto"], 3),
    }


class _Watcher(Silent):
    """Keeps what a training says about its memory."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keeps bytes by component."""
        self.found |= {name: v for name, v in metrics.items() if name.startswith("memory_")}


def memory(trainings: _Trainings) -> dict[str, Any]:
    """MiB by component, of tables in FP32 and in FP16."""
    from models.stopping import StopRequest

    found: dict[str, dict[str, float]] = {}
    for dtype in ("fp32", "fp16"):
        watcher = _Watcher()
        training = trainings.open(trainings.job(dtype=dtype, log_every=1), sink=watcher)
        training.fit(StopRequest(), steps=2)
        found[dtype] = {
            name.removeprefix("memory_").removesuffix("_mib"): round(value, 3)
            for name, value in watcher.found.items()
        }
    ratio = found["fp16"]["tables"] / found["fp32"]["tables"]
    return {"fp16_bytes_ratio": round(ratio, 3), "memory_mib": found}


def overlap(trainings: _Trainings) -> dict[str, Any]:
    """What reading in the background gains over reading in turn."""
    ways = {"background": 2, "in_turn": 0}
    times = trainings.seconds(
        {name: trainings.open(trainings.job(read_ahead=ahead)) for name, ahead in ways.items()}
    )
    return {"async_gain": round(times["in_turn"] / times["background"], 3)}


SECTIONS: dict[str, Callable[[_Trainings], dict[str, Any]]] = {
    "gradients": gradients,
    "weights": weights,
    "throughput": throughput,
    "memory": memory,
    "overlap": overlap,
    "sharded": sharded,
}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="users, and items")
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8, help="macro-batches of a run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=540.0, help="no section begins later")
    parser.add_argument("--cache", type=Path, default=Path("var/benchmarks"))
    options = parser.parse_args(argv)
    device = compute_device()
    if device.type == "cpu":
        say("no accelerator: small sizes, on the CPU")
        vars(options).update(SMALL)
    print(json.dumps(measure(options, device)))


def measure(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """All sections that can run."""
    from models.trainer import training_environment

    started = time.perf_counter()
    report: dict[str, Any] = {
        "accelerator": None if device.type == "cpu" else device_name(device),
        "torch": torch.__version__,
        "rows": options.rows,
        "batch": options.batch,
    }
    left_out: dict[str, str] = {}
    with training_environment(device):
        trainings = _Trainings(options, device)
        for name, section in SECTIONS.items():
            if time.perf_counter() - started > options.seconds:
                left_out[name] = "no time was left"
                continue
            try:
                report |= section(trainings)
            except ImportError as error:
                left_out[name] = f"cannot be imported: {error.name or error}"
            say(f"{name}: {time.perf_counter() - started:.0f} s")
    return {**report, "left_out": left_out, "seconds": round(time.perf_counter() - started)}


if __name__ == "__main__":
    main()
