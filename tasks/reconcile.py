"""Makes MLflow say what became of a run that stopped before its last step."""

from __future__ import annotations

from tasks.progress import log
from tasks.run_spec import RunSpec
from tasks.tracking.runs import end_open_runs


def reconcile(spec: RunSpec, *, killed: bool = False) -> int:
    """Ends the MLflow runs of a run that failed and that nothing will end.

    A run that is taken up again opens them and ends them itself. A training whose ranks are
    still at work goes on; its run is opened when the training is followed again.

    Args:
        spec: The run.
        killed: Whether a person stopped it.

    Returns:
        How many MLflow runs were ended.

    Raises:
        TrackingError: MLflow cannot be reached.
    """
    ended = end_open_runs(spec.config, spec.run_id, "KILLED" if killed else "FAILED")
    log("reconciled", mlflow_runs=ended)
    return ended
