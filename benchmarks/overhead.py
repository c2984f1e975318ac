"""What the orchestration of a day costs: a run's time beyond the steps' own.

    python -m benchmarks.overhead [--runs 3]

Runs the newest day of the demonstration from the start, through the local stack (`tailtower up`
is called), and takes the time from the trigger to the end of the run, in which a promoted model is
served. Each step reports its own seconds, imports included; what is left is Airflow's scheduling,
the start of tasks and of processes. Trainings take turns, so their seconds add up.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import busy_machine
from tasks.config_file import load_config
from tasks.demo_command import DAG_ID
from tasks.lake import Lake
from tasks.local_stack.airflow_client import AirflowClient
from tasks.local_stack.commands import up
from tasks.local_stack.settings import settings_from_environment
from tasks.steps import RESOLVE, STEPS

CONFIG = Path("conf/demo.yaml")
LONGEST_SECONDS = 1800.0


def measure(airflow: AirflowClient, day: str, name: str) -> dict[str, Any]:
    """One run from the start: its seconds, those of its steps, and what is left."""
    started = time.monotonic()
    parameters = {"day": day, "config": str(CONFIG.resolve()), "force": True}
    run = airflow.trigger(DAG_ID, name, parameters=parameters)
    run = airflow.wait_for_run(DAG_ID, run.run_id, timeout=LONGEST_SECONDS, poll=0.5)
    whole = time.monotonic() - started
    if run.state != "success":
        raise SystemExit(f"the run ended as {run.state}: {airflow.run_page(DAG_ID, run.run_id)}")
    steps = {RESOLVE.name: float(airflow.xcom(DAG_ID, run.run_id, RESOLVE.name, "seconds"))}
    for step in STEPS:
        indices = range(len(airflow.xcom(DAG_ID, run.run_id, RESOLVE.name, "return_value")))
        steps[step.name] = sum(
            float(
                airflow.xcom(DAG_ID, run.run_id, step.name, "return_value", map_index=n)["seconds"]
            )
            for n in (indices if step.each_role else [-1])
        )
    own = sum(steps.values())
    return {"seconds": whole, "steps": steps, "own": own, "overhead": whole - own}


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    busy = {"cores": os.cpu_count(), "load_before": round(busy_machine(), 2)}
    days = Lake(load_config(CONFIG).lake).days("raw/interactions")
    if not days:
        print("the demonstration has no logs yet: `make run` first", file=sys.stderr)
        return 2
    info = up(settings_from_environment(extra={"TAILTOWER_CONFIG": str(CONFIG)}))
    stamp = int(time.time())
    with AirflowClient.of_stack(info) as airflow:
        airflow.wait_for_dag(DAG_ID)
        airflow.unpause(DAG_ID)
        found = []
        for number in range(options.runs):
            found.append(measure(airflow, days[-1].isoformat(), f"overhead__{stamp}_{number}"))
            print(
                f"run {number + 1}: {found[-1]['seconds']:.1f} s, of which the steps' own "
                f"{found[-1]['own']:.1f} s",
                file=sys.stderr,
            )
    middle = statistics.median(one["overhead"] for one in found)
    report = {
        **busy,
        "overhead_seconds": round(middle, 1),
        "goals": {"overhead_seconds": [round(middle, 1), 60, middle <= 60]},
        "runs": [
            {
                "seconds": round(one["seconds"], 1),
                "overhead": round(one["overhead"], 1),
                "steps": {name: round(value, 1) for name, value in one["steps"].items()},
            }
            for one in found
        ],
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
