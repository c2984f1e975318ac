"""A small client of Airflow's REST API: trigger runs of a DAG, follow them, read their logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

from tasks.local_stack.errors import StackError
from tasks.local_stack.state import StackInfo

FINAL_STATES = frozenset({"success", "failed"})

_ATTEMPTS = 6
_FIRST_PAUSE = 0.5
_PAGE = 100


@dataclass(frozen=True)
class DagRun:
    """One run of a DAG.

    Attributes:
        dag_id: Name of the DAG.
        run_id: Name of the run, chosen by whoever triggered it.
        state: `queued`, `running`, `success` or `failed`.
        started: When its first task could start, None before.
        ended: When it was over, None before.
        note: What tasks or people wrote on the run.
    """

    dag_id: str
    run_id: str
    state: str
    started: datetime | None
    ended: datetime | None
    note: str | None

    @property
    def is_over(self) -> bool:
        """Whether its state will not change by itself any more."""
        return self.state in FINAL_STATES


@dataclass(frozen=True)
class TaskInstance:
    """One task of a run.

    Attributes:
        task_id: Name of the task.
        map_index: Index of a mapped task, -1 for others.
        state: None before it is scheduled, else Airflow's name of the state.
        try_number: 1 at the first try, 0 before it.
        seconds: How long the last try took, None before its end.
    """

    task_id: str
    map_index: int
    state: str | None
    try_number: int
    seconds: float | None


class AirflowClient:
    """Talks to one Airflow as one user; a context manager that closes its connections.

    The local stack keeps its metadata in SQLite, where a call may meet the write lock of another
    process and be answered with HTTP 500. So every call is repeated a few times, and a run is
    triggered under a name of its own: a repetition finds the run that the first attempt made.

    Args:
        url: Address of Airflow, without a path.
        username: User name.
        password: Their password.
        timeout: Seconds until a single request is given up.
        attempts: How often a request is sent before it is given up.
        transport: For tests: what carries the requests.
    """

    def __init__(
        self,
        url: str,
        username: str,
        password: str,
        *,
        timeout: float = 30.0,
        attempts: int = _ATTEMPTS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._user = {"username": username, "password": password}
        self._http = httpx.Client(
            base_url=self.url,
            timeout=timeout,
            transport=transport,
            # Proxies of the environment are for the outer world.
            trust_env=False,
        )
        self._attempts = attempts
        self._token: str | None = None

    @classmethod
    def of_stack(cls, info: StackInfo) -> AirflowClient:
        """A client of a running local stack, as its admin."""
        return cls(info.airflow_url, info.username, info.password)

    def __enter__(self) -> AirflowClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def wait_for_dag(self, dag_id: str, *, timeout: float = 120.0) -> None:
        """Waits until Airflow has read the file of a DAG.

        Raises:
            StackError: It does not appear, or its file does not import.
        """
        deadline = time.monotonic() + timeout
        while True:
            response = self._request("GET", f"/dags/{quote(dag_id)}", accept=(404,))
            if response.status_code == httpx.codes.OK:
                return
            errors = self.import_errors()
            if errors:
                raise StackError(
                    f"Airflow cannot import a DAG file: {errors[0]}",
                    where=self.url,
                    fix="correct the file; Airflow reads it again within half a minute",
                )
            if time.monotonic() > deadline:
                raise StackError(
                    f"Airflow does not know the DAG '{dag_id}' after {timeout:.0f} s",
                    where=self.url,
                    fix="check the name and the log of the service airflow-dag-processor",
                )
            time.sleep(1.0)

    def import_errors(self) -> list[str]:
        """File and last line of the error for each DAG file that does not import."""
        found = self._request("GET", "/importErrors").json()["import_errors"]
        return [
            f"{error['filename']}: {error['stack_trace'].strip().splitlines()[-1]}"
            for error in found
        ]

    def unpause(self, dag_id: str) -> None:
        """Lets the scheduler run a DAG."""
        self._request("PATCH", f"/dags/{quote(dag_id)}", json={"is_paused": False})

    def trigger(
        self,
        dag_id: str,
        run_id: str,
        *,
        partition_key: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        note: str | None = None,
    ) -> DagRun:
        """Starts a run; if a run of this name exists, returns it and changes nothing.

        Args:
            dag_id: Name of the DAG.
            run_id: Name of the run.
            partition_key: Partition (day) of a DAG that is scheduled by partitions.
            parameters: Values of the trigger form that differ from their defaults.
            note: Text shown on the run's page.

        Raises:
            StackError: Airflow refuses the run, or cannot be reached.
        """
        body: dict[str, Any] = {
            "dag_run_id": run_id,
            # Required, and null for a run that belongs to no scheduled interval.
            "logical_date": None,
            "conf": dict(parameters or {}),
            "note": note,
        }
        if partition_key is not None:
            body["partition_key"] = partition_key
        path = f"/dags/{quote(dag_id)}/dagRuns"
        response = self._request("POST", path, json=body, accept=(409,))
        if response.status_code == httpx.codes.CONFLICT:
            return self.dag_run(dag_id, run_id)
        return _dag_run(response.json())

    def dag_runs(self, dag_id: str) -> list[DagRun]:
        """All runs of a DAG."""
        return [_dag_run(run) for run in self._pages(f"/dags/{quote(dag_id)}/dagRuns", "dag_runs")]

    def dag_run(self, dag_id: str, run_id: str) -> DagRun:
        """The present state of a run."""
        return _dag_run(self._request("GET", _run_path(dag_id, run_id)).json())

    def set_note(self, dag_id: str, run_id: str, note: str) -> None:
        """Replaces the note of a run (Markdown, at most 1000 characters)."""
        self._request("PATCH", _run_path(dag_id, run_id), json={"note": note})

    def task_instances(self, dag_id: str, run_id: str) -> list[TaskInstance]:
        """The tasks of a run, in the order in which they started; those to come last."""
        found = list(self._pages(f"{_run_path(dag_id, run_id)}/taskInstances", "task_instances"))
        found.sort(key=lambda task: (task["start_date"] is None, task["start_date"] or ""))
        return [
            TaskInstance(
                task_id=task["task_id"],
                map_index=task["map_index"],
                state=task["state"],
                try_number=task["try_number"],
                seconds=task["duration"],
            )
            for task in found
        ]

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str, *, map_index: int = -1) -> Any:
        """A value that a task left for others; None when there is none of this key."""
        response = self._request(
            "GET",
            f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/{quote(key)}",
            params={"map_index": map_index, "deserialize": True},
            accept=(404,),
        )
        return None if response.status_code == httpx.codes.NOT_FOUND else response.json()["value"]

    def task_log(
        self, dag_id: str, run_id: str, task_id: str, *, try_number: int = 1, map_index: int = -1
    ) -> str:
        """The log of one try of a task, a line for each event."""
        response = self._request(
            "GET",
            f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{try_number}",
            params={"map_index": map_index, "full_content": True},
            headers={"Accept": "application/json"},
        )
        content = response.json()["content"]
        return "\n".join(
            line if isinstance(line, str) else str(line.get("event", "")) for line in content
        )

    def wait_for_run(
        self,
        dag_id: str,
        run_id: str,
        *,
        timeout: float,
        poll: float = 1.0,
        on_change: Callable[[Sequence[TaskInstance]], None] | None = None,
    ) -> DagRun:
        """Waits until a run is over, well or badly.

        Args:
            dag_id: Name of the DAG.
            run_id: Name of the run.
            timeout: Seconds after which it is given up (the run goes on).
            poll: Seconds between two questions.
            on_change: Called with all tasks whenever the state of one has changed.

        Raises:
            StackError: The run is not over in time.
        """
        deadline = time.monotonic() + timeout
        shown: list[tuple[str, int, str | None]] = []
        while True:
            run = self.dag_run(dag_id, run_id)
            if on_change is not None:
                tasks = self.task_instances(dag_id, run_id)
                states = [(task.task_id, task.map_index, task.state) for task in tasks]
                if states != shown:
                    shown = states
                    on_change(tasks)
            if run.is_over:
                return run
            if time.monotonic() > deadline:
                raise StackError(
                    f"the run '{run_id}' of '{dag_id}' is still {run.state} after {timeout:.0f} s",
                    where=self.run_page(dag_id, run_id),
                    fix="look at its tasks on that page; the run goes on",
                )
            time.sleep(poll)

    def run_page(self, dag_id: str, run_id: str) -> str:
        """Address of a run's page for people."""
        return f"{self.url}/dags/{quote(dag_id)}/runs/{quote(run_id, safe='')}"

    def _pages(self, path: str, key: str) -> Iterator[dict[str, Any]]:
        offset = 0
        while True:
            body = self._request("GET", path, params={"limit": _PAGE, "offset": offset}).json()
            yield from body[key]
            offset += len(body[key])
            if offset >= body["total_entries"] or not body[key]:
                return

    def _request(
        self, method: str, path: str, *, accept: tuple[int, ...] = (), **arguments: Any
    ) -> httpx.Response:
        """Sends a request, again when the server stumbles.

        Raises:
            StackError: No answer, or one that is neither a success nor in `accept`.
        """
        problem = ""
        headers = arguments.pop("headers", {})
        for attempt in range(self._attempts):
            if attempt:
                time.sleep(_FIRST_PAUSE * 2 ** (attempt - 1))
            try:
                authorization = {"Authorization": f"Bearer {self._login()}"}
                response = self._http.request(
                    method, f"/api/v2{path}", headers={**headers, **authorization}, **arguments
                )
            except httpx.TransportError as error:
                problem = f"no answer ({type(error).__name__}: {error})"
                continue
            if response.is_success or response.status_code in accept:
                return response
            problem = f"HTTP {response.status_code}: {_detail(response)}"
            if response.status_code == httpx.codes.UNAUTHORIZED:
                self._token = None  # expired; a wrong password has failed at the login
            elif not response.is_server_error:
                break
        raise StackError(
            f"Airflow did not accept {method} {path}: {problem}",
            where=self.url,
            fix="`tailtower status` says whether it runs; its log is var/run/airflow-api.log",
        )

    def _login(self) -> str:
        if self._token is None:
            response = self._http.post("/auth/token", json=self._user)
            if response.status_code == httpx.codes.UNAUTHORIZED:
                raise StackError(
                    f"Airflow does not accept the password of '{self._user['username']}'",
                    where=self.url,
                    fix="the password is in var/airflow/passwords.json",
                )
            if not response.is_success:
                # Treated like a connection that broke: repeated by the caller.
                raise httpx.RemoteProtocolError(f"login answered {response.status_code}")
            self._token = str(response.json()["access_token"])
        return self._token


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _dag_run(body: Mapping[str, Any]) -> DagRun:
    return DagRun(
        dag_id=body["dag_id"],
        run_id=body["dag_run_id"],
        state=body["state"],
        started=_time(body["start_date"]),
        ended=_time(body["end_date"]),
        note=body.get("note"),
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _detail(response: httpx.Response) -> str:
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = response.text
    return str(detail).strip().splitlines()[0][:300] if str(detail).strip() else "no detail"
