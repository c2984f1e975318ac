"""Commands about the champion, for the DAGs that are triggered by a new one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context

from dags.operators.process_task import ProcessTask, require_result


class ChampionCommand(ProcessTask):
    """Runs a command of `tailtower` for the pipeline whose new champion triggered the DAG.

    Args:
        command: Its name; it takes `--run-spec`, and its last line is a result.
        run_spec: Location of the `run_spec.json` of the champion's run.
    """

    template_fields: Sequence[str] = ("run_spec",)

    def __init__(self, *, command: str, run_spec: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.command = command
        self.run_spec = run_spec

    def execute(self, context: Context) -> dict[str, Any]:
        """Runs the command.

        Returns:
            Its result.

        Raises:
            AirflowFailException: It failed in a way that comes again.
            AirflowException: It failed in a way that may go away.
        """
        ended = self.run_process(
            context, [self.command, "--run-spec", self.run_spec], module="tasks.cli"
        )
        return self.keep(context, require_result(self.command, ended))
