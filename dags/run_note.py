"""The note of a DAG run: its day, its window, what was decided, and where to read on.

Airflow's task interface cannot write a note, so it goes through the REST API, as the user of the
Airflow connection `tailtower_airflow` (type HTTP, the address of the API server). `make up` defines
it; without it runs go on without notes.
"""

from __future__ import annotations

import structlog
from airflow.sdk import Connection, Context
from airflow.sdk.exceptions import AirflowNotFoundException

CONNECTION = "tailtower_airflow"
"""Airflow connection with address, user and password of the REST API."""
LIMIT = 1000
"""Characters that Airflow keeps of a note."""
_SECONDS = 10.0
_ATTEMPTS = 3

_log = structlog.get_logger(__name__)


def write_note(context: Context, text: str) -> None:
    """Writes the note of the task's run; a run never fails for its note.

    What a person wrote there stays: only an empty note, or one that this function wrote, is
    replaced.

    Args:
        context: The task's context.
        text: Markdown; it begins with two asterisks, by which it is known again.
    """
    run = context["dag_run"]
    try:
        connection = Connection.get(CONNECTION)
    except AirflowNotFoundException:
        _log.info("no note on the run: there is no connection", connection=CONNECTION)
        return
    from tasks.errors import TailtowerError
    from tasks.local_stack.airflow_client import AirflowClient

    address = f"{connection.schema or 'http'}://{connection.host}:{connection.port or 8080}"
    try:
        with AirflowClient(
            address,
            connection.login or "",
            connection.password or "",
            timeout=_SECONDS,
            attempts=_ATTEMPTS,
        ) as airflow:
            before = airflow.dag_run(run.dag_id, run.run_id).note
            if before and not before.startswith("**"):
                _log.info("the run has a note that a person wrote; it stays")
                return
            airflow.set_note(run.dag_id, run.run_id, shortened(text))
    except TailtowerError as error:
        _log.warning("the note of the run was not written", reason=error.what)


def shortened(text: str) -> str:
    """The text within Airflow's limit; whole lines, from the end, give way."""
    if len(text) <= LIMIT:
        return text
    lines = text.splitlines()
    while len("\n".join([*lines, "…"])) > LIMIT and len(lines) > 1:
        lines.pop()
    return "\n".join([*lines, "…"])[:LIMIT]


def resolved_note(run_id: str, day: str, window: list[str], links: dict[str, str]) -> str:
    """What a run states once it is resolved.

    Args:
        run_id: Its name in the lake and in MLflow.
        day: Day that it tests on.
        window: First and last day that it trains on.
        links: Addresses by name, as steps report them.
    """
    lines = [f"**{day}**: trains on {window[0]} … {window[1]}", "", f"- run `{run_id}`"]
    if page := links.get("mlflow_run"):
        lines.append(f"- [the day in MLflow]({page})")
    return "\n".join(lines)


def decided_note(resolved: str, decision: str, reason: str, comparison: str | None) -> str:
    """What a run states once the gate, or a person, has decided.

    Args:
        resolved: What it stated before.
        decision: `promoted`, `rejected` or `proposed`.
        reason: One sentence.
        comparison: Page of the comparison.
    """
    head, *rest = resolved.splitlines() or [""]
    lines = [f"{head}; **{decision}**" if head else f"**{decision}**", *rest, f"- {reason}"]
    if comparison:
        lines.append(f"- [the comparison in MLflow]({comparison})")
    return "\n".join(lines)
