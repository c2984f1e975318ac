"""The `tailtower` command: puts the commands together and turns errors into exit statuses.

The command modules are light to import (a test holds them to it); torch, Dask, Great Expectations
and MLflow are imported by the command that needs them when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape

from tasks.answer_command import answer_command
from tasks.compare_command import compare_command
from tasks.config_command import config_command
from tasks.contract_commands import app as contract_app
from tasks.demo_command import demo_command
from tasks.demo_data.command import demo_data_command
from tasks.errors import TailtowerError
from tasks.explain_command import explain_id_command
from tasks.export_command import export_items_command, export_towers_command
from tasks.ingest.command import ingest_command
from tasks.local_stack.commands import down_command, status_command, up_command
from tasks.plan_command import plan_command
from tasks.profile_command import profile_command
from tasks.progress import console, quiet_libraries
from tasks.recommend_all_command import recommend_all_command
from tasks.recommend_command import recommend_command
from tasks.rollback_command import rollback_command
from tasks.run_command import run_command, step_command
from tasks.serve_command import serve_command
from tasks.version import code_version

app = typer.Typer(
    name="tailtower",
    help="Daily retraining of two-tower recommendation models for long-tail IDs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", rich_help_panel="Runs")(run_command)
app.command("step", rich_help_panel="Runs")(step_command)
app.command("compare", rich_help_panel="Runs")(compare_command)
app.command("answer", rich_help_panel="Runs")(answer_command)
app.command("rollback", rich_help_panel="Runs")(rollback_command)
app.command("recommend", rich_help_panel="Runs")(recommend_command)
app.command("recommend-all", rich_help_panel="Runs")(recommend_all_command)
app.command("serve", rich_help_panel="Runs")(serve_command)
app.command("export-items", rich_help_panel="Runs")(export_items_command)
app.command("export-towers", rich_help_panel="Runs")(export_towers_command)
app.command("profile", rich_help_panel="Runs")(profile_command)
app.command("plan", rich_help_panel="Runs")(plan_command)
app.command("ingest", rich_help_panel="Data")(ingest_command)
app.command("demo-data", rich_help_panel="Data")(demo_data_command)
app.command("explain-id", rich_help_panel="Data")(explain_id_command)
app.add_typer(contract_app, name="contract", rich_help_panel="Data")
app.command("demo", rich_help_panel="Local stack")(demo_command)
app.command("up", rich_help_panel="Local stack")(up_command)
app.command("down", rich_help_panel="Local stack")(down_command)
app.command("status", rich_help_panel="Local stack")(status_command)
app.command("config", rich_help_panel="Reference")(config_command)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(code_version())
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status (see `tasks/errors.py`)."""
    quiet_libraries()
    try:
        status = app(args=arguments, standalone_mode=False)
    except TailtowerError as error:
        console.print(f"[bold red]error[/bold red] [dim]{type(error).__name__}[/dim]")
        console.print(escape(str(error)), highlight=False, soft_wrap=True)
        return error.exit_code
    except typer.Abort:
        console.print("stopped")
        return 130
    except typer.Exit as leave:
        return leave.exit_code
    except Exception as error:  # click's own usage errors carry their message and status
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            return int(error.exit_code)
        raise
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    raise SystemExit(main())
