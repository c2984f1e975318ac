"""What a step's exit status means: retry, wait, or fail at once.

| Exit status | Meaning | Retried |
|---|---|---|
| of an error class (`tasks/errors.py`) | that error | if the class is transient |
| 2, 126, 127 | wrong command line, or the interpreter does not start | no |
| above 128 | a signal ended the step (137: often out of memory) | yes |
| others | an error that nobody foresaw | yes |
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from dags.operators.step_guard import CANNOT_START
from dags.operators.step_process import StepExit
from tasks.errors import NothingToDoError, PartitionMissingError, TailtowerError

_USAGE = 2
_NOT_EXECUTABLE = 126


def error_classes() -> dict[int, type[TailtowerError]]:
    """The product's error classes by exit status."""
    return {cls.exit_code: cls for cls in _with_subclasses(TailtowerError)}


def failure(name: str, ended: StepExit) -> AirflowException:
    """The exception that makes Airflow do the right thing about a step that failed.

    Args:
        name: Name of the step.
        ended: How it ended; its exit status is not 0.

    Returns:
        `AirflowFailException`, which is not retried, for an error that would come again;
        `AirflowException`, which is, for any other.
    """
    reason, transient = _reason(ended.status)
    advice = "will be tried again" if transient else "trying again would not help"
    message = "\n".join([f"step '{name}' failed: {reason}; {advice}", *ended.last_lines])
    return AirflowException(message) if transient else AirflowFailException(message)


def is_not_yet(status: int) -> bool:
    """Whether the step found that the day's data has not arrived."""
    return status == PartitionMissingError.exit_code


def is_nothing_to_do(status: int) -> bool:
    """Whether the step found that the day lies beyond the end of the logs."""
    return status == NothingToDoError.exit_code


def _reason(status: int) -> tuple[str, bool]:
    """What happened, and whether it may go away by itself."""
    known = error_classes().get(status)
    if known is not None:
        return f"{known.__name__} (exit status {status})", known.transient
    if status == _USAGE:
        return "it does not understand its command line; are both sides of one version?", False
    if status in (_NOT_EXECUTABLE, CANNOT_START):
        return "its interpreter does not start; see TAILTOWER_PYTHON", False
    if status > 128:
        return f"ended by {_signal_name(status - 128)}", True
    return f"an unexpected error (exit status {status})", True


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name}, often for lack of memory" if number == signal.SIGKILL else name


def _with_subclasses(cls: type[TailtowerError]) -> Iterator[type[TailtowerError]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from _with_subclasses(sub)
