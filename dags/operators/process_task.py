"""Tasks that run `PYTHON -m tasks …` as a process and keep its result, small, in XCom.

Airflow imports nothing of the training stack, and the process may live in another environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from dags.operators.links import EVENT as LINKS_EVENT
from dags.operators.links import StepLink, web_addresses
from dags.operators.step_failure import failure
from dags.operators.step_process import StepExit, StepProcess
from dags.settings import PROJECT_ROOT, step_python

_NOT_FOR_STEPS = ("AIRFLOW__", "AIRFLOW_CONN_", "TAILTOWER_ALERTS")
"""Starts of the names of variables that a process does not get."""

XCOM_LIMIT_BYTES = 48 * 1024
"""A result larger than this goes into XCom without its facts; the lake keeps all of it."""


class ProcessTask(BaseOperator):
    """Runs one step process at a time and ends it when the task is stopped."""

    ui_color = "#eaf3ee"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.links: dict[str, str] = {}
        self._process: StepProcess | None = None

    def on_kill(self) -> None:
        """Ends the step's process group: asks, then kills."""
        if self._process is not None:
            self.log.warning("stopping the step", pid=self._process.pid)
            self._process.stop()

    def run_process(
        self, context: Context, arguments: Sequence[str], module: str = "tasks"
    ) -> StepExit:
        """Runs a module with these arguments; its output goes to the task's log.

        Args:
            context: The task's context.
            arguments: Of the command line.
            module: `tasks` runs a step, `tasks.cli` any command.
        """
        command = [step_python(), "-m", module, *arguments]
        self.log.info("starting", command=command, cwd=str(PROJECT_ROOT))
        # A step has no use for Airflow's settings, and its secrets are among them.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_FOR_STEPS)}
        environment["PYTHONUNBUFFERED"] = "1"
        self._process = StepProcess(
            command,
            cwd=PROJECT_ROOT,
            env=environment,
            on_line=lambda line: self._log_line(context, line),
        )
        try:
            return self._process.wait()
        finally:
            self._process = None

    def keep(self, context: Context, result: dict[str, Any]) -> dict[str, Any]:
        """Shows a step's result and returns what XCom may hold of it."""
        facts = result.get("facts", {})
        self.log.info("result", **log_facts(facts))
        self._keep_links(context, facts.get(LINKS_EVENT))
        size = len(json.dumps(result))
        if size <= XCOM_LIMIT_BYTES:
            return result
        self.log.warning("the facts are too big for XCom and stay in the lake", bytes=size)
        return {key: value for key, value in result.items() if key != "facts"}

    def _log_line(self, context: Context, line: str) -> None:
        """Logs one line of a step's output; a structured line keeps its structure."""
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or not isinstance(entry.get("event"), str):
            self.log.info(line)
            return
        event = entry.pop("event")
        if event == LINKS_EVENT:
            self._keep_links(context, entry)
        self.log.info(event, **log_facts(entry))

    def _keep_links(self, context: Context, reported: object) -> None:
        """Makes the buttons of this task work with the addresses just reported."""
        self.links |= web_addresses(reported)
        for link in self.operator_extra_links:
            if isinstance(link, StepLink) and link.address in self.links:
                context["ti"].xcom_push(key=link.xcom_key, value=self.links[link.address])


def require_result(step: str, ended: StepExit) -> dict[str, Any]:
    """The result of a step that ended well; else the exception that fits how it ended."""
    if ended.status != 0:
        raise failure(step, ended)
    if ended.result is None:
        raise AirflowFailException(
            f"step '{step}' printed no result as its last line; are both sides of one version?"
        )
    return ended.result


def log_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts under names that the log does not use itself."""
    own = ("event", "level", "timestamp", "logger", "exc_info", "stack_info", "exception")
    return {f"{key}_" if key in own else key: value for key, value in facts.items()}
