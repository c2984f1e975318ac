"""Speed of example building, against the same job in Polars and an encoder against its join.

    python -m benchmarks.examples [--events 8000000] [--runs 5]

A log with long-tailed users and items is made once. Then, in turn and several times: the stages
of the examples step on a warm local Dask cluster of as many workers as cores, and the same files
made by Polars lazy frames in a process of its own with all cores. The outputs are compared. The
encode step is timed alone in one process with one thread: IDs as they come in the log, in
batches, to codes, against `DataFrame.join` with the same vocabulary, which leaves the buckets of
the tail to somebody else. The last line is one JSON object; times are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

    from tasks.run_spec import RunSpec

FIRST_DAY = date(2026, 1, 1)
TRAIN_DAYS = 7
_DAY_US = 86_400_000_000
_BATCH = 1 << 20


def make_lake(lake: Path, options: argparse.Namespace) -> None:
    """Writes eight days of events, no two at the same time: every tool orders them alike."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.synthetic_events import hashed, zipf_ranks

    days = TRAIN_DAYS + 1
    for number in range(days):
        day = FIRST_DAY + timedelta(days=number)
        folder = lake / "raw" / "interactions" / f"dt={day}"
        if (folder / "_SUCCESS").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng([options.seed, number])
        rows = options.events // days
        start = int(datetime.combine(day, datetime.min.time(), UTC).timestamp()) * 1_000_000
        times = start + np.arange(rows, dtype=np.int64) * (_DAY_US // rows)
        table = pa.table(
            {
                "user_id": hashed(zipf_ranks(rng, rows, options.users, options.exponent), 0),
                "item_id": hashed(zipf_ranks(rng, rows, options.items, options.exponent), 1 << 32),
                "timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
            }
        )
        half = rows // 2
        pq.write_table(table.slice(0, half), folder / "part-0.parquet")
        pq.write_table(table.slice(half), folder / "part-1.parquet")
        (folder / "_SUCCESS").touch()


def make_spec(lake: Path, options: argparse.Namespace, scheduler: str) -> RunSpec:
    """A run on the lake with its vocabularies made."""
    import importlib

    from tasks.config import PipelineConfig
    from tasks.run_spec import RunSpec

    vocabulary = {"min_count": 10, "tail_buckets": 1024}
    config = PipelineConfig.model_validate(
        {
            "name": "benchmark",
            "lake": str(lake),
            "dask": {"scheduler": scheduler},
            "data": {"window_days": TRAIN_DAYS},
            "tables": {
                "user": {"source": "interactions.user_id", "vocabulary": vocabulary},
                "item": {"source": "interactions.item_id", "vocabulary": vocabulary},
            },
            "model": {
                "user": {
                    "features": [
                        {"name": "uid", "table": "user"},
                        {
                            "name": "history",
                            "table": "item",
                            "kind": "history",
                            "max_length": options.history,
                        },
                    ]
                },
                "item": {"features": [{"name": "iid", "table": "item"}]},
            },
        }
    )
    days = tuple(FIRST_DAY + timedelta(days=n) for n in range(TRAIN_DAYS + 1))
    spec = RunSpec(
        run_id="benchmark",
        day=days[-1],
        train_days=days[:-1],
        test_days=days[-1:],
        config=config,
        code_version="benchmark",
    )
    for name in ("await_partition", "count", "vocabulary"):
        result = importlib.import_module(f"tasks.{name}").run(spec)
        spec.lake().write_text(f"{spec.folder}/{name}.json", result.model_dump_json())
    return spec


@contextmanager
def local_cluster(workers: int) -> Iterator[str]:
    """A warm Dask cluster on this machine; gives its address."""
    import dask
    from distributed import LocalCluster

    threads = max(1, (os.cpu_count() or 1) // workers)
    environment = {
        **dask.config.get("distributed.nanny.pre-spawn-environ"),
        "POLARS_MAX_THREADS": str(threads),
    }
    with (
        dask.config.set({"distributed.nanny.pre-spawn-environ": environment}),
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            host="127.0.0.1",
            dashboard_address=None,
        ) as cluster,
    ):
        yield str(cluster.scheduler_address)


class PeakMemory:
    """Largest resident memory of this process and its children, in bytes."""

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()

    def __enter__(self) -> PeakMemory:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        import psutil

        me = psutil.Process()
        while not self._stop.wait(0.1):
            total = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.bytes = max(self.bytes, total)


def run_ours(spec: RunSpec, out: str) -> tuple[float, float]:
    """Builds the examples below a lake path; returns seconds and peak bytes."""
    from tasks.lake import Output
    from tasks.longtail.build_examples import build_examples
    from tasks.longtail.example_inputs import gather_inputs

    spec.lake().delete(out)
    with PeakMemory() as memory:
        started = time.perf_counter()
        build_examples(Output(spec.lake(), out), gather_inputs(spec), spec.config.dask)
        seconds = time.perf_counter() - started
    return seconds, memory.bytes


def run_child(part: str, body: dict[str, Any], threads: int | None = None) -> dict[str, Any]:
    """Runs a part of this benchmark in a fresh process; returns what it printed last."""
    environment = dict(os.environ)
    if threads is not None:
        environment["POLARS_MAX_THREADS"] = str(threads)
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "benchmarks.examples", "--part", part]
    done = subprocess.run(
        command,
        input=json.dumps(body),
        capture_output=True,
        text=True,
        cwd=root,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{part} failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def polars_part(body: dict[str, Any]) -> dict[str, Any]:
    """In a process of its own: the rival's job, timed without imports."""
    from benchmarks.polars_examples import Job, make_examples

    body["out"] = Path(body["out"])
    body["vocabularies"] = {k: (Path(p), n) for k, (p, n) in body["vocabularies"].items()}
    job = Job(**{**body, "train": [*map(Path, body["train"])], "test": [*map(Path, body["test"])]})
    shutil.rmtree(job.out, ignore_errors=True)
    started = time.perf_counter()
    make_examples(job)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "peak": peak}


def encode_part(body: dict[str, Any]) -> dict[str, Any]:
    """In a process of its own, one thread: IDs to codes, and the same IDs through a join."""
    import polars as pl

    from tasks.longtail.encoding import encoder_of

    encoder = encoder_of(body["lake"], body["vocabulary"], "user")
    files = [Path(path) for path in body["train"]]
    ids = pl.concat([pl.read_parquet(path, columns=["user_id"])["user_id"] for path in files])
    if body["text"]:
        ids = ids.cast(pl.String)
    batches = [ids.slice(first, _BATCH) for first in range(0, len(ids), _BATCH)]
    rows = pl.read_parquet(body["vocabulary_file"], columns=["id", "row"])
    if body["text"]:
        from tasks.longtail.encoding import Encoder
        from tasks.longtail.vocabulary_table import Vocabulary

        rows = rows.with_columns(pl.col("id").cast(pl.String))
        table = encoder.vocabulary.table.with_columns(pl.col("id").cast(pl.String))
        encoder = Encoder(Vocabulary(encoder.vocabulary.policy, table), "user")

    def ours() -> int:
        return sum(int(encoder.codes(batch)[0, 0]) for batch in batches)

    def join() -> int:
        frames = (pl.DataFrame({"id": batch}) for batch in batches)
        joined = (
            frame.join(rows, on="id", how="left", maintain_order="left")["row"] for frame in frames
        )
        return sum(int(found[0] or 0) for found in joined)

    seconds = interleave({"ours": ours, "join": join}, body["runs"])
    return {"seconds": seconds, "ids": len(ids)}


def interleave(jobs: dict[str, Callable[[], Any]], runs: int) -> dict[str, list[float]]:
    """Seconds of each job's runs, taken in turn; one round before is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(runs + 1):
        for name, job in jobs.items():
            started = time.perf_counter()
            job()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def content(folder: Path) -> dict[str, Any]:
    """What two makers of the same examples must agree on, whatever the order of their rows."""
    import polars as pl

    def scan(name: str) -> pl.LazyFrame:
        files = sorted((folder / name).glob("*.parquet"))
        return pl.scan_parquet(files, hive_partitioning=False)

    def total(frame: pl.LazyFrame, *columns: pl.Expr) -> tuple[int, int]:
        row = pl.struct(*(column.alias(str(n)) for n, column in enumerate(columns))).hash(1)
        found = frame.select(n=pl.len(), total=(row // (1 << 24)).sum()).collect().row(0)
        return int(found[0]), int(found[1])

    def ends(column: str) -> list[pl.Expr]:
        lists = pl.col(column).list
        return [lists.len(), lists.sum().cast(pl.Int64), lists.first(), lists.last()]

    code = pl.col("uid").list.first()
    return {
        "items": total(
            scan("items"), pl.col("item_id"), pl.col("train_count").cast(pl.Int64), *ends("iid")
        ),
        "train": total(scan("train"), pl.col("item"), pl.col("timestamp"), code, *ends("history")),
        "users": total(scan("users"), pl.col("user_id"), code, *ends("history"), *ends("seen")),
        "test": total(
            scan("test"),
            pl.col("user_id"),
            pl.col("train_count"),
            code,
            *ends("history"),
            pl.col("seen").list.len(),
            pl.col("targets").list.len(),
            pl.col("targets").list.sum().cast(pl.Int64),
        ),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    lake = options.cache / (
        f"examples-{options.events}-{options.users}-{options.items}-{options.exponent}-{options.seed}"
    )
    make_lake(lake, options)
    workers = options.workers or os.cpu_count() or 1
    ours: list[tuple[float, float]] = []
    rival: list[tuple[float, float]] = []
    with local_cluster(workers) as scheduler:
        spec = make_spec(lake, options, scheduler)
        job = _rival_job(lake, spec, options)
        for number in range(options.runs + 1):
            mine = run_ours(spec, "out/ours")
            theirs = run_child("polars", job)
            print(f"run {number}: {mine[0]:.2f} s, Polars {theirs['seconds']:.2f} s", flush=True)
            if number == 0:
                found, expected = content(lake / "out" / "ours"), content(lake / "out" / "polars")
                if found != expected:
                    raise SystemExit(f"the outputs differ:\n{found}\n{expected}")
            else:
                ours.append(mine)
                rival.append((theirs["seconds"], theirs["peak"]))
    encode = {
        text: run_child("encode", {**_encode_job(lake, spec, options), "text": text}, 1)
        for text in (False, True)
    }
    shutil.rmtree(lake / "out")
    return _figures(options, workers, ours, rival, encode)


def _rival_job(lake: Path, spec: RunSpec, options: argparse.Namespace) -> dict[str, Any]:
    from tasks.longtail.example_shards import shards_for
    from tasks.longtail.vocabulary_table import FILE

    def files(days: tuple[date, ...]) -> list[str]:
        folders = [lake / "raw" / "interactions" / f"dt={day}" for day in days]
        return [str(path) for folder in folders for path in sorted(folder.glob("*.parquet"))]

    vocabularies = {}
    for name in spec.config.tables:
        published = spec.output("vocabulary", name)
        path = spec.lake().local_path(published.file(FILE))
        vocabularies[name] = (str(path), published.manifest.meta["tail_buckets"])
    rows = options.events // (TRAIN_DAYS + 1) * TRAIN_DAYS
    return {
        "train": files(spec.train_days),
        "test": files(spec.test_days),
        "vocabularies": vocabularies,
        "out": str(lake / "out" / "polars"),
        "history": options.history,
        "shards": shards_for(rows),
        "seed": spec.config.training.seed,
        "bucket_seed": spec.config.tables["user"].vocabulary.seed,
    }


def _encode_job(lake: Path, spec: RunSpec, options: argparse.Namespace) -> dict[str, Any]:
    job = _rival_job(lake, spec, options)
    return {
        "lake": str(lake),
        "vocabulary": spec.output("vocabulary", "user").path,
        "vocabulary_file": job["vocabularies"]["user"][0],
        "train": job["train"],
        "runs": options.runs,
    }


def _figures(
    options: argparse.Namespace,
    workers: int,
    ours: list[tuple[float, float]],
    rival: list[tuple[float, float]],
    encode: dict[bool, dict[str, Any]],
) -> dict[str, Any]:
    seconds, polars_seconds = (statistics.median(s for s, _ in runs) for runs in (ours, rival))
    peak, polars_peak = (statistics.median(p for _, p in runs) for runs in (ours, rival))
    of_encode = {
        text: {name: statistics.median(taken) for name, taken in part["seconds"].items()}
        for text, part in encode.items()
    }
    events = options.events // (TRAIN_DAYS + 1) * TRAIN_DAYS
    return {
        "benchmark": "examples",
        "events": events,
        "history": options.history,
        "workers": workers,
        "runs": options.runs,
        "seconds": round(seconds, 3),
        "events_per_second": round(events / seconds),
        "polars_seconds": round(polars_seconds, 3),
        "ratio_vs_polars": round(seconds / polars_seconds, 3),
        "peak_rss_mib": round(peak / 2**20),
        "polars_peak_rss_mib": round(polars_peak / 2**20),
        "encode_ids_per_second": round(encode[False]["ids"] / of_encode[False]["ours"]),
        "encode_ratio_vs_polars_join": round(
            of_encode[False]["ours"] / of_encode[False]["join"], 3
        ),
        "encode_text_ratio_vs_polars_join": round(
            of_encode[True]["ours"] / of_encode[True]["join"], 3
        ),
        "load_average": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=8_000_000, help="events of all eight days")
    parser.add_argument("--users", type=int, default=1_000_000, help="users that may occur")
    parser.add_argument("--items", type=int, default=200_000, help="items that may occur")
    parser.add_argument("--exponent", type=float, default=1.05, help="of the Zipf law")
    parser.add_argument("--history", type=int, default=50, help="longest history")
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each, in turn")
    parser.add_argument("--workers", type=int, help="Dask workers; default: one a core")
    parser.add_argument("--seed", type=int, default=1, help="of the log")
    parser.add_argument(
        "--cache", type=Path, default=Path("var/benchmarks"), help="keeps the log between calls"
    )
    parser.add_argument("--part", choices=("polars", "encode"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        parts = {"polars": polars_part, "encode": encode_part}
        print(json.dumps(parts[options.part](json.load(sys.stdin))))
        return
    options.cache = options.cache.absolute()
    print(json.dumps(measure(options)))


if __name__ == "__main__":
    main()
