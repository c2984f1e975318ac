"""Notes for whoever looks at a red run: symptom, where to look, what to do.

The tables of error classes are made from `tasks/errors.py`, so they cannot fall behind.
"""

from __future__ import annotations

from dags.operators.step_failure import error_classes
from tasks.errors import TailtowerError
from tasks.steps import RESOLVE, STEPS, Step

_READ = "Read the message: it says what happened, where, and how to fix it."
_DO = {
    "ConfigError": "Correct the key that the message names, in the form or the pipeline file; "
    "trigger the day again.",
    "DataError": "Correct or re-deliver the file that the message names; clear the task.",
    "ContractError": "Open the Data Docs (button of `validate`). Re-deliver the data, or change "
    "the contract if the data is right; clear `validate`.",
    "PartitionMissingError": "Ask the owner of the logs. The task goes on by itself when the day "
    "arrives; to leave the day out set `data.allow_gaps`.",
    "LakeError": "Check space and permissions of the lake; remove the damaged file that the "
    "message names; clear the task.",
    "UpstreamError": "Clear the step that the message names together with its downstream tasks.",
    "TrainingError": "Read the training log. A retry continues from the last checkpoint; if it "
    "fails at the same place, lower the batch size or the learning rate.",
    "ClusterError": "Check the Dask scheduler and its workers; a retry starts clean.",
    "TrackingError": "Check that MLflow answers at its address; a retry goes on.",
    "NothingToDoError": "The logs end long before this day. A scheduled run or a backfill skips "
    "it; a manual run fails: choose a day that the lake holds.",
}

_NOTES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "resolve_run": (
        (
            "`ConfigError`",
            "the line or the `--set` in the message",
            "correct the form or the pipeline file, trigger again",
        ),
        (
            "`NothingToDoError`, or skipped with all that follows",
            "`raw/interactions/` of the lake: its newest day",
            "trigger a day that is there; check `lake` in the pipeline file",
        ),
        (
            "the form and the partition disagree",
            "the form's `day`",
            "leave it empty in a backfill",
        ),
    ),
    "await_partition": (
        (
            'waits ("up for reschedule")',
            "the days named in the log",
            "nothing: it looks again by itself",
        ),
        (
            "timed out after a day",
            "the delivery of the logs",
            "deliver, write `_SUCCESS` beside the files, clear the task",
        ),
    ),
    "validate": (
        (
            "`ContractError`",
            "the rules named in the log, the Data Docs (button)",
            "re-deliver, or correct the contract; `data.validation: warn` lets one run pass",
        ),
        (
            "green, with warnings",
            "the tag `tailtower.validation.broken_rules` of the MLflow run",
            "nothing today; a warning that stays wants its rule or the delivery changed",
        ),
    ),
    "count": (
        (
            "`ClusterError`",
            "Dask workers in the log, memory of the machine",
            "clear; lower `dask.workers` or raise `dask.memory_limit`",
        ),
        (
            "slow",
            '"counted days" in the log: only new days cost',
            "nothing on the first run of a window",
        ),
    ),
    "vocabulary": (
        (
            "far fewer or more own rows than yesterday",
            "the facts in XCom, the window in `resolve_run`",
            "compare `min_count`; look for missing days",
        ),
    ),
    "examples": (
        (
            "no test users",
            "the rows of the run's day",
            "check that day's delivery",
        ),
        (
            "out of memory (137)",
            "Dask workers in the log",
            "clear; lower `dask.workers`",
        ),
    ),
    "train": (
        (
            "task killed, training goes on",
            "the log of the next attempt: it re-attaches",
            "nothing",
        ),
        (
            "`TrainingError`",
            "the training log named in the message; the MLflow run (button)",
            "clear: it continues from its checkpoint",
        ),
        (
            "waits in the pool `training`",
            "other runs of this DAG",
            "nothing: one training at a time",
        ),
    ),
    "evaluate": (
        (
            "all metrics lower than yesterday, popularity too",
            "the day's data, not the model",
            "read `validate` of this and of the day before",
        ),
        (
            "`TrackingError`",
            "MLflow's address",
            "bring it up; clear",
        ),
    ),
    "compare": (
        (
            "intervals that include zero",
            "number of test users in `examples`",
            "a day with few users decides little: wait for more days",
        ),
    ),
    "gate": (
        (
            "not promoted",
            "XCom `decision` and `reason`",
            "nothing: the champion stays; the reason says what was missing",
        ),
    ),
    "approve": (
        (
            "waits (*Required actions*)",
            "the comparison in its form",
            "approve or reject; no answer in time rejects",
        ),
        (
            "`TrackingError`: the champion changed",
            "the registry's aliases",
            "run the day again with *Start again*",
        ),
    ),
    "publish": (
        (
            "green, no asset event",
            "XCom `decision` of `approve`",
            "nothing: this run was not promoted",
        ),
        (
            "`TrackingError`",
            "the model registry",
            "bring it up; clear",
        ),
    ),
    "reconcile": (
        (
            "red",
            "the first red task of the run",
            "nothing here: it ended the run in MLflow, and runs again with what is cleared",
        ),
        (
            "skipped",
            "",
            "nothing: no task failed",
        ),
    ),
}
"""Symptom, where to look, what to do: for each task."""


def task_notes(step: Step) -> str:
    """Notes of one task, in Markdown."""
    rows = "\n".join(f"| {' | '.join(row)} |" for row in _NOTES[step.name])
    head = "| Symptom | Look at | Do |\n|---|---|---|"
    return f"### {step.name}: {step.summary}\n\n{head}\n{rows}\n"


def dag_notes() -> str:
    """Notes of the daily retraining, in Markdown."""
    flow = "\n".join(f"1. **{step.name}**: {step.summary}" for step in (RESOLVE, *STEPS))
    return f"""
# Daily retraining

Run for day *d*: train on the window before *d*, test on *d*, promote the candidate if it is
really better than the champion. Every midnight in UTC the day that has just ended is run; a
backfill or a manual run of a day does the same work, and a run that was done before returns at
once.

{flow}
{red_notes()}"""


def red_notes() -> str:
    """What to do when a run of a day is red, in Markdown."""
    return f"""
## When it is red

Open the first red task and read the end of its log: it names the error class.

{error_table()}

Clearing a task is always safe: a step that is done returns at once, one that is not leaves
nothing half-written. A training that lost its task goes on, and the next attempt finds it.
"""


def error_table() -> str:
    """What each error means and wants, in Markdown."""
    errors = "\n".join(
        _error_row(code, cls)
        for code, cls in sorted(error_classes().items())
        # Others are of commands around the steps, and known only where those are imported.
        if cls.__module__ == TailtowerError.__module__
    )
    return f"""| Error | Exit status | Retried | What to do |
|---|---|---|---|
{errors}
| ended by a signal | above 128 | yes | 137: look at the machine's memory |
| others | | yes | an error nobody foresaw: the traceback is in the log |"""


def _error_row(code: int, cls: type[TailtowerError]) -> str:
    retried = "yes" if cls.transient else "no"
    return f"| `{cls.__name__}` | {code} | {retried} | {_DO.get(cls.__name__, _READ)} |"
