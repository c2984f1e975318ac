"""Protects: what the operators do with a step's end: XCom, events, waiting, skipping, stopping."""

import json
import os
import signal
import stat
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    TaskAwaitingInput,
)
from airflow.sdk.types import TaskInstanceKey

from dags.operators.champion import CHAMPION, CHAMPION_OUTLET
from dags.operators.decision import ApproveOperator, PublishOperator
from dags.operators.process_task import XCOM_LIMIT_BYTES
from dags.operators.step import (
    AwaitPartitionSensor,
    GateOperator,
    ResolveRunOperator,
    StepOperator,
    TrainOperator,
)


class FakeTask:
    """The part of a running task that the operators touch."""

    def __init__(self) -> None:
        self.xcoms: dict[str, Any] = {}
        self.earlier: dict[tuple[str, str], Any] = {}
        self.stats_tags: dict[str, str] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def xcom_pull(self, task_ids: str, key: str) -> Any:
        return self.earlier.get((task_ids, key))

    def get_first_reschedule_date(self, context: Any) -> None:
        return None


class FakeOutlet:
    def __init__(self) -> None:
        self.events: list[tuple[Any, dict[str, Any]]] = []

    def add(self, asset: Any, extra: dict[str, Any]) -> None:
        self.events.append((asset, extra))


def context(run_type: str = "manual", **params: Any) -> dict[str, Any]:
    run = SimpleNamespace(run_type=run_type, run_after=datetime(2026, 3, 10, tzinfo=UTC))
    return {
        "ti": FakeTask(),
        "dag_run": run,
        "params": params,
        "outlet_events": {CHAMPION_OUTLET: FakeOutlet()},
    }


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a shell script play the interpreter; its arguments go to a file."""

    def install(body: str) -> Path:
        script = tmp_path / "python"
        script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path / "arguments"}\n{body}\n')
        script.chmod(script.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("TAILTOWER_PYTHON", str(script))
        return tmp_path / "arguments"

    return install


@pytest.fixture(autouse=True)
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the operators write on the run."""
    written: list[str] = []
    monkeypatch.setattr("dags.operators.step.write_note", lambda _, text: written.append(text))
    return written


def is_alive(pid: int) -> bool:
    """Whether the process runs; a dead one may wait for the system to reap it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def step(**more: Any) -> StepOperator:
    return StepOperator(task_id="count", step="count", run_spec="/lake/run_spec.json", **more)


def run(operator: Any, given: dict[str, Any]) -> Any:
    """Executes without the safeguard that wants a task runner."""
    return type(operator).execute.__wrapped__(operator, given)


def test_a_step_gets_its_arguments_and_returns_its_result(shell):
    facts = {"decision": "promoted", "reason": "better", "loss": 0.5}
    arguments = shell(f"echo '{json.dumps({'step': 'train', 'facts': facts})}'")
    given = context()
    result = run(step(role="popularity"), given)
    assert result == {"step": "train", "facts": facts}
    assert given["ti"].xcoms == {"decision": "promoted", "reason": "better"}
    assert arguments.read_text().split() == [
        *("-m", "tasks", "count", "--run-spec", "/lake/run_spec.json", "--role", "popularity")
    ]


def test_a_step_does_not_see_the_secrets_of_airflow(shell, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "secret")
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", "smtp://me:password@mail")
    monkeypatch.setenv("TAILTOWER_ALERTS", "slack+https://hooks.slack.com/services/T0")
    monkeypatch.setenv("AIRFLOW_CTX_DAG_RUN_ID", "manual__1")
    shell(f"env > {tmp_path / 'environment'}; echo '{{}}'")
    run(step(), context())
    seen = (tmp_path / "environment").read_text()
    assert not [name for name in ("JWT_SECRET", "SMTP_DEFAULT", "ALERTS") if name in seen]
    assert "AIRFLOW_CTX_DAG_RUN_ID=manual__1" in seen
    assert "PATH=" in seen


def test_facts_too_big_for_xcom_stay_in_the_lake(shell):
    text = "x" * XCOM_LIMIT_BYTES
    shell(f"""echo '{{"step": "count", "digests": {{"a": "b"}}, "facts": {{"text": "{text}"}}}}'""")
    assert run(step(), context()) == {"step": "count", "digests": {"a": "b"}}


def test_a_step_without_a_result_fails_for_good(shell):
    shell("echo done")
    with pytest.raises(AirflowFailException, match="no result"):
        run(step(), context())


def test_failures_reach_airflow(shell):
    shell("echo 'columns are missing' >&2; exit 13")
    with pytest.raises(AirflowFailException, match=r"ContractError.*\n.*columns are missing"):
        run(step(), context())
    shell("exit 18")
    with pytest.raises(AirflowException, match="ClusterError") as raised:
        run(step(), context())
    assert not isinstance(raised.value, AirflowFailException)


def test_a_link_works_while_the_step_runs(shell, tmp_path: Path):
    shell(f"""
        echo '{{"event": "links", "mlflow_run": "http://127.0.0.1:5000/#/runs/1"}}' >&2
        while [ ! -e {tmp_path / "go"} ]; do sleep 0.05; done
        echo '{{"step": "train.candidate"}}'
    """)
    operator = TrainOperator(task_id="train", step="train", run_spec="x", role="candidate")
    given = context()
    worker = threading.Thread(target=run, args=(operator, given))
    worker.start()
    key = TrainOperator.operator_extra_links[0].xcom_key
    deadline = time.monotonic() + 10
    while key not in given["ti"].xcoms and time.monotonic() < deadline:
        time.sleep(0.02)
    still_running = worker.is_alive()
    (tmp_path / "go").touch()
    worker.join(10)
    assert still_running
    assert given["ti"].xcoms == {key: "http://127.0.0.1:5000/#/runs/1"}
    # At the end Airflow asks the link itself and stores that.
    link = TrainOperator.operator_extra_links[0]
    attempt = TaskInstanceKey("daily_retrain", "train", "run")
    assert link.get_link(operator, ti_key=attempt) == "http://127.0.0.1:5000/#/runs/1"


def train() -> TrainOperator:
    spec = "/lake/runs/2026-03-09-abc/run_spec.json"
    return TrainOperator(task_id="train", step="train", run_spec=spec, role="candidate")


def with_store(**stored: str) -> dict[str, Any]:
    """A task's context with what an earlier attempt of it left."""
    store = dict(stored)
    keeper = SimpleNamespace(get=store.get, set=store.__setitem__, content=store)
    return context() | {"task_state_store": keeper}


def test_the_name_of_a_training_job_is_known_before_the_job_is_started(shell, tmp_path: Path):
    shell("exit 17")
    given = with_store()
    with pytest.raises(AirflowException, match="TrainingError"):
        run(train(), given)
    assert given["task_state_store"].content == {"training_job": "2026-03-09-abc/candidate"}


@pytest.mark.parametrize("status", ["running", "succeeded", "failed", "absent"])
def test_a_retry_asks_for_its_job_and_ends_with_the_result(shell, tmp_path: Path, status: str):
    calls = tmp_path / "calls"
    shell(f"""
        echo "$3" >> {calls}
        case "$3" in
            job_status) echo '{{"job": "checkpoints/x/candidate", "status": "{status}"}}' ;;
            train) echo '{{"step": "train.candidate", "facts": {{"parameters": 7}}}}' ;;
        esac
    """)
    given = with_store(training_job="2026-03-09-abc/candidate")
    assert run(train(), given)["facts"] == {"parameters": 7}
    assert calls.read_text().split() == ["job_status", "train"]


def test_lines_with_the_logs_own_words_do_not_break_it(shell):
    shell("""
        echo '{"event": "fit", "level": "x", "timestamp": 1, "logger": 2, "exc_info": 3}' >&2
        echo '100% of "rows" %s {}' >&2
        echo '{"facts": {"event": "e", "level": "l"}}'
    """)
    assert run(step(), context()) == {"facts": {"event": "e", "level": "l"}}


SPEC = "/lake/runs/2026-03-09-abc/run_spec.json"


def approve(decision: str) -> ApproveOperator:
    return ApproveOperator(
        task_id="approve", step="approve", run_spec=SPEC, decision=decision, proposal="| a | b |"
    )


def test_only_a_proposal_is_asked_about(shell):
    arguments = shell("""echo '{"facts": {"decision": "promoted"}}'""")
    assert run(approve("promoted"), context())["facts"] == {"decision": "promoted"}
    assert arguments.read_text().split() == ["-m", "tasks", "approve", "--run-spec", SPEC]


def test_a_proposal_waits_for_a_person_with_the_comparison(shell, monkeypatch):
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        "airflow.providers.standard.operators.hitl.upsert_hitl_detail", lambda **k: asked.update(k)
    )
    shell("exit 99")
    given = context() | {"task_instance": SimpleNamespace(id="7")}
    with pytest.raises(TaskAwaitingInput) as waiting:
        run(approve("proposed"), given)
    assert (asked["body"], asked["options"]) == ("| a | b |", ["Approve", "Reject"])
    assert asked["defaults"] == ["Reject"]
    assert waiting.value.timeout == timedelta(hours=12)


@pytest.mark.parametrize(
    ("chosen", "user", "told"),
    [
        ("Approve", {"id": "1", "name": "ada"}, ["approve", "--by", "ada"]),
        ("Reject", None, ["reject", "--by", "nobody in time"]),
    ],
)
def test_the_answer_reaches_the_step(shell, tmp_path: Path, chosen: str, user: Any, told):
    calls = tmp_path / "calls"
    shell(f"""
        echo "$@" >> {calls}
        [ "$3" = approve ] && echo '{{"facts": {{"decision": "x"}}}}'
        exit 0
    """)
    given: Any = context()
    event = {
        "chosen_options": [chosen],
        "params_input": {"reason": "fine"},
        "responded_at": datetime(2026, 3, 10, tzinfo=UTC),
        "responded_by_user": user,
    }
    result = approve("proposed").execute_complete(given, event)
    assert result["facts"] == {"decision": "x"}
    assert calls.read_text().splitlines() == [
        " ".join(["-m tasks.cli answer", SPEC, *told, "--reason fine --only-record"]),
        f"-m tasks approve --run-spec {SPEC}",
    ]


def publish() -> PublishOperator:
    return PublishOperator(task_id="publish", step="publish", run_spec="x")


def test_a_new_champion_is_announced(shell):
    extra = {"run_id": "r-1", "version": "7", "day": "2026-03-09"}
    facts = {"promoted": True, "decision": "promoted", "pointer": "models/champion.json", **extra}
    shell(f"echo '{json.dumps({'facts': facts})}'")
    given = context()
    run(publish(), given)
    assert given["outlet_events"][CHAMPION_OUTLET].events == [
        (CHAMPION, {**extra, "run_spec": "x"})
    ]


@pytest.mark.parametrize(
    "facts",
    [
        "{}",
        '{"promoted": false, "version": "6"}',
        # Overtaken: promoted, but a later run's model is served.
        '{"promoted": true, "version": "7"}',
    ],
)
def test_no_new_champion_is_not_announced(shell, facts: str):
    shell(f"""echo '{{"facts": {facts}}}'""")
    given = context()
    run(publish(), given)
    assert given["outlet_events"][CHAMPION_OUTLET].events == []


RESOLVED = (
    '{"run_spec": "/l/run_spec.json", "run_id": "r", "day": "2026-03-09", "roles": ["a", "b"]}'
)


def test_resolving_passes_the_form_on(shell):
    arguments = shell(f"echo '{RESOLVED}'")
    given = context(config="conf/other.yaml", day="2026-03-01", epochs=3, force=True, dim=None)
    assert run(ResolveRunOperator(task_id="resolve_run"), given) == ["a", "b"]
    assert given["ti"].xcoms == {"run_spec": "/l/run_spec.json", "run_id": "r", "day": "2026-03-09"}
    assert arguments.read_text().split() == [
        *("-m", "tasks", "resolve_run", "--config", "conf/other.yaml", "--day", "2026-03-01"),
        *("--set", "training.epochs=3", "--force"),
    ]


def test_resolving_takes_the_partition(shell):
    arguments = shell(f"echo '{RESOLVED}'")
    run(ResolveRunOperator(task_id="resolve_run"), context() | {"partition_key": "2026-01-31"})
    assert "2026-01-31" in arguments.read_text().split()


def test_resolving_refuses_a_form_against_its_partition(shell):
    shell("exit 99")
    given = context(day="2026-03-01") | {"partition_key": "2026-01-31"}
    with pytest.raises(AirflowFailException, match="leave the day empty"):
        run(ResolveRunOperator(task_id="resolve_run"), given)


@pytest.mark.parametrize(
    ("run_type", "raised"),
    [
        ("manual", AirflowFailException),
        ("scheduled", AirflowSkipException),
        ("backfill", AirflowSkipException),
    ],
)
def test_the_end_of_the_logs_skips_what_nobody_asked_for(shell, run_type: str, raised):
    shell("echo 'the newest day is 2026-01-31' >&2; exit 20")
    with pytest.raises(raised, match="newest day is 2026-01-31"):
        run(ResolveRunOperator(task_id="resolve_run"), context(run_type))


def test_a_dry_run_leaves_the_plan_and_skips_the_rest(shell, notes):
    arguments = shell("""echo '{"run_id": "x", "plan": "**Dry run of 2026-03-09**"}'""")
    given = context(day="2026-03-09", dry_run=True, config="mine.yaml")
    with pytest.raises(AirflowSkipException, match="dry run"):
        run(ResolveRunOperator(task_id="resolve_run"), given)
    assert arguments.read_text().split()[-1] == "--dry-run"
    assert given["ti"].xcoms == {"plan": "**Dry run of 2026-03-09**"}
    assert notes == ["**Dry run of 2026-03-09**"]


def test_a_run_states_its_day_and_then_its_decision(shell, notes):
    page = "http://127.0.0.1:5000/#/experiments/1/runs/abc"
    resolved = {
        "run_spec": "/lake/run_spec.json",
        "run_id": "2026-03-09-abc",
        "day": "2026-03-09",
        "roles": ["candidate"],
        "window": ["2026-02-23", "2026-03-08"],
        "links": {"mlflow_run": page},
    }
    shell(f"echo '{json.dumps(resolved)}'")
    given = context(day="2026-03-09")
    resolve = ResolveRunOperator(task_id="resolve_run")
    assert run(resolve, given) == ["candidate"]
    assert resolve.links == {"mlflow_run": page}
    shell("""echo '{"facts": {"decision": "rejected", "reason": "recall fell by 0.01"}}'""")
    decided = context()
    comparison = "http://127.0.0.1:5000/#/compare-runs?runs=x"
    decided["ti"].earlier = {
        ("resolve_run", "note"): given["ti"].xcoms["note"],
        ("compare", "_link_ComparisonLink"): comparison,
    }
    gate = GateOperator(task_id="gate", step="gate", run_spec="/lake/run_spec.json")
    run(gate, decided)
    assert gate.links == {"comparison": comparison}
    first = "**2026-03-09**: trains on 2026-02-23 … 2026-03-08"
    day = f"- run `2026-03-09-abc`\n- [the day in MLflow]({page})"
    assert notes == [
        f"{first}\n\n{day}",
        f"{first}; **rejected**\n\n{day}\n- recall fell by 0.01\n"
        f"- [the comparison in MLflow]({comparison})",
    ]


def sensor() -> AwaitPartitionSensor:
    return AwaitPartitionSensor(
        task_id="await_partition", step="await_partition", run_spec="x", poke_interval=90
    )


def test_waiting_gives_the_worker_back(shell):
    shell("exit 14")
    before = datetime.now(UTC)
    with pytest.raises(AirflowRescheduleException) as raised:
        run(sensor(), context())
    pause = (raised.value.reschedule_date - before).total_seconds()
    assert 90 <= pause < 120


def test_the_end_of_the_wait_returns_the_result(shell):
    shell("""echo '{"step": "await_partition", "facts": {"days": 3}}'""")
    assert run(sensor(), context()) == {"step": "await_partition", "facts": {"days": 3}}


@pytest.mark.parametrize("status", [15, 1])
def test_a_look_that_fails_is_not_taken_for_an_absent_day(shell, status: int):
    shell(f"exit {status}")
    with pytest.raises(AirflowException) as raised:
        run(sensor(), context())
    assert not isinstance(raised.value, AirflowRescheduleException)


@pytest.mark.faults
def test_a_stopped_task_leaves_no_process(shell, tmp_path: Path):
    """As the task runner does it: the signal handler calls on_kill, then the task goes on."""
    shell(f"sleep 60 & echo $! > {tmp_path / 'pid'}; wait")
    operator = step()
    handler = signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())
    killer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    killer.start()
    try:
        with pytest.raises(AirflowException, match="SIGTERM"):
            run(operator, context())
    finally:
        killer.join()
        signal.signal(signal.SIGTERM, handler)
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_stopping_a_task_that_runs_nothing_is_fine():
    step().on_kill()
