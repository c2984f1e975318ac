"""What an answer takes: one user against a million items, and requests by HTTP.

    python -m benchmarks.serving [--items 1M] [--users 100k] [--runs 5] [--asked 200]

One thread answers for one user at a time, warm: the user's tower and the best 100 items, by the
exact search and by the index, with numbers in fp32 and in int8. The model is one that was made
(`benchmarks/serving_world.py`). Contenders take turns; p50 and p99 are of the users of a run, and
medians of the runs. Then `tailtower serve` is asked by 32 connections at once. The last line is one
JSON object:

`p99_ms_ann_int8`            of the index over int8
`latency_ratio_vs_unsparsified`  its p50 over that of a row for each ID, fp32 and exact search
`ann_recall_at_100`          items of the exact search over int8 that the index finds
`ratio_vs_faiss_flat`        p50 of the exact search alone, fp32, over that of FAISS' flat index
`requests_per_second`        by HTTP, with the p50 and p99 that a client saw
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Contender, busy_machine, opened
from benchmarks.options import cache_folder, number
from benchmarks.serving_world import Shape, World
from benchmarks.training import ONE_THREAD, say
from models.bundle import BUNDLE, read_bundle
from models.published_bundle import publish_bundle, share_found
from models.serving_settings import Precision, ServingSettings
from tasks.config import digest_of
from tasks.lake import Lake
from tasks.promotion import POINTER
from tasks.version import PROJECT_ROOT

CONNECTIONS = 32
UNSPARSIFIED = "unsparsified"


def bundles(folder: Path, shape: Shape) -> dict[str, Path]:
    """The bundles that are compared, by name; made once."""
    world = World(shape)
    trained = world.write(folder, "sparse")
    found = {UNSPARSIFIED: world.write(folder, "full")}
    for index in ("exact", "approximate"):
        for precision in ("fp32", "int8"):
            name = f"{'ann' if index == 'approximate' else index}_{precision}"
            found[name] = folder / name
            if not (found[name] / BUNDLE).is_file():
                settings = _settings(index, precision)
                started = time.perf_counter()
                bundle = publish_bundle(trained, found[name], settings)
                say(f"{name}: {time.perf_counter() - started:.1f} s, {bundle.served}")
    return found


def _settings(index: Any, precision: Precision) -> ServingSettings:
    return ServingSettings(tables=precision, item_vectors=precision, index=index, min_overlap=0.5)


def latencies(
    stack: ExitStack, found: Mapping[str, Path], users: int, asked: int, runs: int
) -> dict[str, dict[str, float]]:
    """p50 and p99 of each contender, and what the index finds."""
    contenders = {
        name: Contender("benchmarks.serving_contenders", ["answer", str(path)], ONE_THREAD)
        for name, path in found.items()
    }
    for what in ("search", "faiss"):
        arguments = [what, str(found["exact_fp32"])]
        contenders[what] = Contender("benchmarks.serving_contenders", arguments, ONE_THREAD)
    running = opened(stack, contenders)
    rng = np.random.default_rng(5)
    p50: dict[str, list[float]] = {name: [] for name in running}
    p99: dict[str, list[float]] = {name: [] for name in running}
    for run in range(runs + 1):
        who = rng.integers(0, users, asked).tolist()
        for name, contender in running.items():
            ms = contender.run({"users": who})["ms"]
            if run:  # the first one warms up
                p50[name].append(float(np.percentile(ms, 50)))
                p99[name].append(float(np.percentile(ms, 99)))
        say(f"run {run}: " + ", ".join(f"{n} {p50[n][-1]:.2f}" for n in running if p50[n]))
    items = {
        name: torch.tensor(running[name].run({"users": who, "items": True})["items"])
        for name in found
    }
    report = {
        name: {"p50_ms": statistics.median(p50[name]), "p99_ms": statistics.median(p99[name])}
        for name in running
    }
    for name, exact in (("ann_fp32", "exact_fp32"), ("ann_int8", "exact_int8")):
        report[name]["recall_at_100"] = share_found(items[exact], items[name])
        report[name]["of_exact_fp32"] = share_found(items["exact_fp32"], items[name])
    return report


@contextmanager
def _server(folder: Path, bundle: Path) -> Iterator[int]:
    """`tailtower serve` on a bundle, in a lake that holds nothing else; yields its port."""
    lake = Lake(str(folder / f"lake-{bundle.name}"))
    path = "models/bench/candidate"
    published = lake.find(path)
    if published is None:

        def copy(output: Any) -> None:
            target = lake.local_path(output.path)
            for file in sorted(bundle.rglob("*")):
                if file.is_file():
                    link = target / file.relative_to(bundle)
                    link.parent.mkdir(parents=True, exist_ok=True)
                    os.link(file, link)

        published = lake.publish(path, copy, dataset="models", day=None)
    pointer = {
        "version": "1",
        "run_id": "bench",
        "day": "2026-01-01",
        "digest": published.digest,
        "output": path,
    }
    lake.write_text(POINTER, json.dumps(pointer))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tasks.cli", "serve", "--port", str(port)]
    command += ["--config", str(PROJECT_ROOT / "conf/demo.yaml"), "--set", f"lake={lake.url}"]
    process = subprocess.Popen(
        command, cwd=PROJECT_ROOT, env={**os.environ, **ONE_THREAD}, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("the server did not start")


def load(port: int, user_ids: list[int], seconds: float) -> dict[str, float]:
    """Asks over 32 connections for some seconds; every answer must be a good one."""
    times: list[float] = []
    stop = time.monotonic() + seconds
    failed: list[int] = []

    def ask(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        place = first
        while time.monotonic() < stop:
            user = user_ids[place % len(user_ids)]
            place += CONNECTIONS
            started = time.perf_counter()
            connection.request("GET", f"/recommendations?user_id={user}&k=100")
            answer = connection.getresponse()
            answer.read()
            times.append((time.perf_counter() - started) * 1000)
            if answer.status != 200:
                failed.append(answer.status)
        connection.close()

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(CONNECTIONS)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - started
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {sorted(set(failed))}")
    return {
        "requests_per_second": round(len(times) / took, 1),
        "p50_ms": round(float(np.percentile(times, 50)), 1),
        "p99_ms": round(float(np.percentile(times, 99)), 1),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--items", type=number, default=1_000_000)
    parser.add_argument("--users", type=number, default=100_000)
    parser.add_argument("--tastes", type=number, default=2000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--asked", type=int, default=200, help="users of a run")
    parser.add_argument("--seconds", type=float, default=20, help="of HTTP requests")
    parser.add_argument("--cache", type=Path, help="keeps the bundles there")
    options = parser.parse_args(argv)
    before = round(busy_machine(), 2)
    shape = Shape(options.items, options.users, options.tastes)
    with cache_folder(options.cache) as cache, ExitStack() as stack:
        folder = cache / f"serving-{digest_of(asdict(shape))[:8]}"
        found = bundles(folder, shape)
        report = latencies(stack, found, shape.users, options.asked, options.runs)
        stack.close()
        user_ids = (np.random.default_rng(6).integers(0, shape.users, 4096) * 11 + 5).tolist()
        http_found = {}
        for name in ("ann_int8", "exact_fp32"):
            with _server(folder, found[name]) as port:
                load(port, user_ids, min(3.0, options.seconds))
                http_found[name] = load(port, user_ids, options.seconds)
                say(f"HTTP {name}: {http_found[name]}")
        sizes = {
            name: round(
                sum(p.bytes for p in read_bundle(path, verify=False).parts.values()) / 2**20
            )
            for name, path in found.items()
        }
    quick, slow = report["ann_int8"], report[UNSPARSIFIED]
    print(
        json.dumps(
            {
                "cores": os.cpu_count(),
                "load_before": before,
                "items": shape.items,
                "p99_ms_ann_int8": round(quick["p99_ms"], 3),
                "latency_ratio_vs_unsparsified": round(quick["p50_ms"] / slow["p50_ms"], 4),
                "ann_recall_at_100": round(quick["recall_at_100"], 4),
                "ratio_vs_faiss_flat": round(
                    report["search"]["p50_ms"] / report["faiss"]["p50_ms"], 3
                ),
                "requests_per_second": http_found["ann_int8"]["requests_per_second"],
                "http": http_found,
                "bundle_mib": sizes,
                "ms": {n: {k: round(v, 4) for k, v in m.items()} for n, m in report.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
