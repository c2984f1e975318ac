"""What an installation may set about the DAGs, read from the environment.

Environment variables, because they are the same for every parse: a value that changes from one
parse to the next would make a new DAG version each time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

PROJECT_ROOT = Path(__file__).resolve().parents[1]
"""Working folder of the steps, so that `conf/demo.yaml` means here what it means on the command
line."""

DEFAULT_CONFIG = "conf/demo.yaml"


def step_python() -> str:
    """Interpreter that runs the steps: `TAILTOWER_PYTHON`, by default Airflow's own.

    Airflow and the training stack may live in one environment or in two.
    """
    return os.environ.get("TAILTOWER_PYTHON") or sys.executable


def config_path() -> str:
    """Pipeline file when the trigger form names none: `TAILTOWER_CONFIG`, else the demo's."""
    return os.environ.get("TAILTOWER_CONFIG") or DEFAULT_CONFIG


def poll_seconds() -> float:
    """Pause between two looks for the day's data: `TAILTOWER_POLL_SECONDS`, by default 60.

    Keep it well above one loop of the scheduler: with 5 s a busy one was seen to take the end of
    a look for the loss of the next.

    Raises:
        ValueError: It is not a positive number.
    """
    return _positive("TAILTOWER_POLL_SECONDS", "60", "seconds")


def answer_hours() -> float:
    """How long a proposed model waits for an answer: `TAILTOWER_ANSWER_HOURS`, by default 12.

    The next day's run waits as long.

    Raises:
        ValueError: It is not a positive number.
    """
    return _positive("TAILTOWER_ANSWER_HOURS", "12", "hours")


def deadline_hours() -> float:
    """Hours after which a run is called late: `TAILTOWER_DEADLINE_HOURS`, by default 8.

    Raises:
        ValueError: It is not a positive number.
    """
    return _positive("TAILTOWER_DEADLINE_HOURS", "8", "hours")


def _positive(variable: str, default: str, unit: str) -> float:
    text = os.environ.get(variable) or default
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(f"{variable} must be a positive number of {unit}: {text}")
    return number
