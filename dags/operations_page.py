"""docs/operations.md: made from the notes that Airflow shows, so that the two say the same.

python -m dags.operations_page > docs/operations.md
"""

from __future__ import annotations

from dags.triage import error_table, task_notes
from tasks.steps import RECONCILE, RESOLVE, STEPS

_HEAD = """# Operations

Made by `python -m dags.operations_page` from the notes that Airflow shows beside the DAG and its
tasks.

## It is 03:00 and the run is red

1. Open the first red task of the run in Airflow, and the end of its log. Its last lines say what
   happened, where, and how to fix it, and name one of the errors below.
2. The champion is served as before: a red run changes nothing that is served.
3. Clearing a task is always safe. A step that is done returns at once, one that is not leaves
   nothing half-written; a training that lost its task goes on, and the next attempt finds it.

"""

_REST = """## A bad model is served

```
tailtower rollback --reason "odd items since this morning"
```

serves the champion before this one again: the registry's alias and the pointer in the lake move,
and the version that is left keeps the reason in its tag `tailtower.rolled_back` and the alias
`previous`. `--to VERSION` names any other version. The next day's candidate is compared with what
is served then.

## A person decides

With `gate.promote: ask` (in the pipeline file or the trigger form) a candidate that passes the gate
is proposed, not promoted. The task `approve` waits under *Required actions* in Airflow with the
comparison's table, *Approve* and *Reject*; without an answer in `TAILTOWER_ANSWER_HOURS` (12) it
rejects. Without Airflow, or for a run that ended as proposed:

```
tailtower answer 2026-01-08 approve --reason "checked the tail by hand"
```

A yes is refused when another model became champion since the comparison. The answer is an artifact
of the MLflow run (`approval.json`) and the reason on the model's version.

## Before a run: its plan

*Dry run* in the trigger form resolves the run and stops there. The run's note in Airflow (the
pencil opens it) then says which days would be trained on, what the candidate continues from, what
it would have to beat, and how much memory and time its training takes by the formula of
[planning.md](planning.md). Without Airflow:

```
tailtower step resolve_run --config conf/demo.yaml --day 2026-01-08 --dry-run
```

![The section Run of the trigger form](images/airflow-form.png)

## Notes and buttons

A run's note says its day and window, and later what was decided and why. Tasks write it through
Airflow's REST API, as the user of the Airflow connection `tailtower_airflow` (type HTTP); `make up`
defines it, elsewhere set `AIRFLOW_CONN_TAILTOWER_AIRFLOW`. A note that a person wrote stays.
Without the connection there are no notes, and nothing else is missing.

Buttons of a task work from the moment that the step knows the address, while it still runs.

| Task | Button | Leads to |
|---|---|---|
| `resolve_run` | MLflow run | the day's run |
| `validate` | Data Docs | what the contracts found |
| `count`, `vocabulary`, `examples` | Dask dashboard | the cluster (needs `bokeh`) |
| `train` | MLflow run | the model's run |
| | Training log | what its ranks wrote; before its end, see the task's log |
| `compare`, `gate`, `approve`, `publish` | Comparison in MLflow | the day's models side by side |

## Starting anew every week

`full_refresh` runs the same steps on Mondays at 06:00 UTC for Sunday, with a candidate that starts
anew. It is paused at first: switch it on where daily runs continue the champion
(`training.warm_start`).

## Who is told

`TAILTOWER_ALERTS` names receivers, separated by spaces: `slack+https://hooks.slack.com/services/…`,
`https://…` (the message as JSON), `mailto:team@example.org` (through Airflow's connection
`smtp_default`). They hear of a task that failed after its retries, of a candidate that was rejected
or waits for an answer, and of a run that has not ended `TAILTOWER_DEADLINE_HOURS` (8) after it was
queued. A receiver that does not answer changes nothing for the run. Steps do not get these
variables.
"""


def operations_page() -> str:
    """The page, in Markdown."""
    notes = "\n".join(task_notes(step) for step in (RESOLVE, *STEPS, RECONCILE))
    return f"{_HEAD}{error_table()}\n\n{notes}\n{_REST}"


if __name__ == "__main__":
    print(operations_page(), end="")
