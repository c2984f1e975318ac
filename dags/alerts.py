"""Messages about runs that need a person: a failed task, a model that was not promoted, a late day.

`TAILTOWER_ALERTS` names the receivers, separated by spaces:

- `slack+https://hooks.slack.com/services/…`: Slack's incoming webhook
- `https://…`: any webhook; receives the message as JSON
- `mailto:team@example.org`: e-mail, through Airflow's connection `smtp_default`

A receiver that does not answer is logged by its host, since the rest of its address may be a
secret, and changes nothing for the run.
"""

from __future__ import annotations

import html
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
from airflow.sdk import (  # type: ignore[attr-defined]  # its type stub does not name them
    BaseNotifier,
    Context,
    DeadlineAlert,
    DeadlineReference,
    SyncCallback,
)

from dags.settings import deadline_hours

VARIABLE = "TAILTOWER_ALERTS"
_SLACK = "slack+"
_SECONDS = 10
_NOT_PROMOTED = ("rejected", "proposed")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Message:
    """What receivers are told."""

    event: str
    """`failed`, `not promoted`, `proposed` or `late`."""
    dag: str
    """Id of the DAG."""
    run: str
    """Id of the DAG run."""
    task: str
    """Id of the task; empty for a whole run."""
    text: str
    """One paragraph for a person."""
    url: str
    """Page in Airflow; empty when it is not known."""

    @property
    def title(self) -> str:
        """Subject of an e-mail, first line elsewhere."""
        return f"{self.dag}: {f'{self.task} ' if self.task else ''}{self.event} ({self.run})"


def receivers() -> list[str]:
    """Addresses of `TAILTOWER_ALERTS`.

    Raises:
        ValueError: One is of no known kind; the message names its place, not the address.
    """
    found = os.environ.get(VARIABLE, "").split()
    for place, address in enumerate(found, 1):
        parts = urlsplit(address.removeprefix(_SLACK))
        mail = parts.scheme == "mailto" and "@" in parts.path
        if not mail and not (parts.scheme in ("http", "https") and parts.netloc):
            raise ValueError(
                f"{VARIABLE}: receiver {place} is neither https://…, slack+https://… nor mailto:…"
            )
    return found


def send(message: Message) -> None:
    """Tells every receiver; one that fails is logged and does not stop the others."""
    for address in receivers():
        try:
            _send(address, message)
        except Exception as error:  # whatever a mail server or a proxy comes up with
            where = urlsplit(address.removeprefix(_SLACK)).hostname or address
            _log.warning("alert not delivered to %s: %s", where, type(error).__name__)


def _send(address: str, message: Message) -> None:
    if address.startswith("mailto:"):
        from airflow.providers.smtp.notifications.smtp import SmtpNotifier

        lines = (message.text, message.url)
        body = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
        SmtpNotifier(
            to=address.removeprefix("mailto:"), subject=message.title, html_content=body
        ).notify({})
        return
    body_of: dict[str, Any] = asdict(message)
    if address.startswith(_SLACK):
        address = address.removeprefix(_SLACK)
        body_of = {"text": f"*{message.title}*\n{message.text}\n{message.url}"}
    httpx.post(address, json=body_of, timeout=_SECONDS).raise_for_status()


class TaskAlert(BaseNotifier):
    """Tells the receivers about a task: that it failed, or that its model is not promoted."""

    def notify(self, context: Context) -> None:
        """Sends a message, unless the task succeeded with a promoted model."""
        ti = context["ti"]
        failed = context.get("exception")
        if failed is not None:
            event, text = "failed", str(failed)
        else:
            event = ti.xcom_pull(task_ids=ti.task_id, key="decision") or ""
            if event not in _NOT_PROMOTED:
                return
            text = ti.xcom_pull(task_ids=ti.task_id, key="reason") or ""
        event = "not promoted" if event == "rejected" else event
        send(Message(event, ti.dag_id, ti.run_id, ti.task_id, text, getattr(ti, "log_url", "")))


def late(context: Mapping[str, Any], hours: float) -> None:
    """Tells the receivers that a run has not ended in time; Airflow's deadline calls it.

    Args:
        context: Has the run, as the REST API describes it, under `dag_run`.
        hours: Since the run was queued.
    """
    run = context["dag_run"]
    text = f"The run was queued {hours:g} hours ago and has not ended."
    send(Message("late", run["dag_id"], run["dag_run_id"], "", text, ""))


def deadline() -> DeadlineAlert:
    """The alert for a run that takes longer than `TAILTOWER_DEADLINE_HOURS`."""
    hours = deadline_hours()
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(hours=hours),
        callback=SyncCallback(late, kwargs={"hours": hours}),
    )
