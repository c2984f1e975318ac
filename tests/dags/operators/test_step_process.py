"""Protects: a step's output arrives line by line, its exit status is true, nothing outlives it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from dags.operators.step_process import StepExit, StepProcess

# A step that starts a grandchild; both ignore SIGTERM when asked to be stubborn.
PARENT = """
import pathlib, signal, subprocess, sys, time
stubborn = "stubborn" in sys.argv
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
print("started", flush=True)
time.sleep(60)
"""


def start(code: str, *arguments: object, lines: list[str] | None = None) -> StepProcess:
    seen = [] if lines is None else lines
    return StepProcess(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=Path.cwd(),
        env=os.environ,
        on_line=seen.append,
    )


def run(code: str) -> tuple[StepExit, list[str]]:
    lines: list[str] = []
    return start(code, lines=lines).wait(), lines


def wait_until(condition, seconds=10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pid_in(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text())
    return int(path.read_text())


def test_the_last_line_of_standard_output_is_the_result():
    ended, lines = run("""if True:
        import sys
        print("one"); print("two", file=sys.stderr); print('{"step": "count", "facts": {"n": 3}}')
    """)
    assert ended.status == 0
    assert ended.result == {"step": "count", "facts": {"n": 3}}
    assert sorted(lines) == ["one", "two"]
    assert ended.last_lines == ("two",)


@pytest.mark.parametrize("last", ["done", "[1, 2]", '"text"'])
def test_a_last_line_that_is_no_object_is_output_not_result(last: str):
    ended, lines = run(f"print('first'); print({last!r})")
    assert ended.result is None
    assert lines == ["first", last]


def test_lines_arrive_while_the_step_runs():
    lines: list[str] = []
    process = start(
        "import sys, time; print('early', file=sys.stderr, flush=True); time.sleep(60)",
        lines=lines,
    )
    waiter = threading.Thread(target=process.wait)
    waiter.start()
    wait_until(lambda: lines == ["early"])
    process.stop()
    waiter.join(10)
    assert not waiter.is_alive()


def test_progress_bars_long_lines_and_broken_bytes_are_passed_on():
    ended, lines = run("""if True:
        import sys
        sys.stderr.buffer.write(b"10%\\r20%\\r\\n" + b"x" * 200_000 + b"\\n\\xff\\nno end")
        print("{}")
    """)
    assert lines == ["10%", "20%", "x" * 200_000, "\ufffd", "no end"]
    assert ended.result == {}


def test_only_the_end_of_standard_error_is_kept():
    ended, _ = run("import sys; [print(i, file=sys.stderr) for i in range(100)]")
    assert ended.last_lines == tuple(str(i) for i in range(80, 100))


@pytest.mark.parametrize("status", [0, 1, 2, 13, 14, 19])
def test_the_exit_status_is_the_steps(status: int):
    assert run(f"raise SystemExit({status})")[0].status == status


def test_a_signal_that_ends_the_step_shows_in_its_status():
    ended, _ = run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert ended.status == 128 + signal.SIGKILL


def test_an_interpreter_that_is_not_there_gives_127_and_says_so():
    lines: list[str] = []
    process = StepProcess(["/no/such/python"], cwd=Path.cwd(), env={}, on_line=lines.append)
    assert process.wait().status == 127
    assert lines == ["cannot start /no/such/python: No such file or directory"]


def test_a_process_that_left_the_group_and_holds_the_output_does_not_hold_up_the_step(tmp_path):
    started = time.monotonic()
    process = start(
        """if True:
        import pathlib, subprocess, sys
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(30)"], start_new_session=True
        )
        pathlib.Path(sys.argv[1]).write_text(str(child.pid))
        print('{"ok": true}')
        """,
        tmp_path / "pid",
    )
    ended = process.wait()
    detached = pid_in(tmp_path / "pid")
    try:
        assert ended.result == {"ok": True}
        assert time.monotonic() - started < 15
        assert is_alive(detached), "a job in a session of its own outlives its step"
    finally:
        os.kill(detached, signal.SIGKILL)


@pytest.mark.faults
@pytest.mark.parametrize("manner", ["polite", "stubborn"])
def test_stopping_ends_the_whole_group(tmp_path: Path, manner: str):
    process = start(PARENT, tmp_path / "pid", manner)
    ended: list[StepExit] = []
    waiter = threading.Thread(target=lambda: ended.append(process.wait()))
    waiter.start()
    grandchild = pid_in(tmp_path / "pid")
    process.stop()
    waiter.join(10)
    assert not is_alive(grandchild)
    assert not is_alive(process.pid)
    assert ended[0].status == 128 + (signal.SIGTERM if manner == "polite" else signal.SIGKILL)


@pytest.mark.faults
def test_what_a_step_leaves_in_its_group_ends_with_it(tmp_path: Path):
    process = start(
        """if True:
        import pathlib, subprocess, sys
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        pathlib.Path(sys.argv[1]).write_text(str(child.pid))
        """,
        tmp_path / "pid",
    )
    assert process.wait().status == 0
    assert not is_alive(pid_in(tmp_path / "pid"))


@pytest.mark.faults
def test_an_exception_while_waiting_ends_the_group(tmp_path: Path):
    def fail(line: str) -> None:
        raise TimeoutError(line)

    process = StepProcess(
        [sys.executable, "-c", PARENT + "\n", str(tmp_path / "pid")],
        cwd=Path.cwd(),
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        on_line=fail,
    )
    grandchild = pid_in(tmp_path / "pid")
    os.kill(psutil.Process(process.pid).children()[0].pid, signal.SIGINT)  # a traceback is output
    with pytest.raises(TimeoutError):
        process.wait()
    assert not is_alive(grandchild)
    assert not is_alive(process.pid)


@pytest.mark.faults
def test_a_killed_parent_leaves_no_orphan(tmp_path: Path):
    """SIGKILL of the task runner: nothing of ours can run there any more."""
    runner = f"""if True:
        import os, pathlib, sys
        from dags.operators.step_process import StepProcess
        process = StepProcess(
            [sys.executable, "-c", {PARENT!r}, {str(tmp_path / "pid")!r}, "stubborn"],
            cwd=pathlib.Path.cwd(), env=os.environ, on_line=print,
        )
        pathlib.Path({str(tmp_path / "guard")!r}).write_text(str(process.pid))
        process.wait()
    """
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen([sys.executable, "-c", runner], env=environment) as parent:
        pids = [pid_in(tmp_path / "guard"), pid_in(tmp_path / "pid")]
        pids += [child.pid for child in psutil.Process(pids[0]).children()]
        assert all(map(is_alive, pids))
        assert len(set(pids)) == 3
        parent.kill()
    wait_until(lambda: not any(map(is_alive, pids)))


def test_the_result_may_be_large():
    ended, lines = run("import json; print(json.dumps({'text': 'y' * 300_000}))")
    assert ended.result == {"text": "y" * 300_000}
    assert lines == []
