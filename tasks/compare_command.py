"""`tailtower compare`: models of any runs side by side, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tasks.command_options import DEFAULT_CONFIG, ConfigOption, SetOption
from tasks.config_file import load_config


def compare_command(
    config: ConfigOption = DEFAULT_CONFIG,
    run: Annotated[
        list[str] | None,
        typer.Option(
            help="Run id, day or MLflow run id; `:ROLE` at the end (as in 2026-01-03:popularity) "
            "chooses another model than the candidate. Give it twice or more; the first is "
            "compared with the others. Without it: the newest run with its baselines and champion."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a self-contained HTML report there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    settings: SetOption = None,
) -> None:
    """Compare models, with bootstrap intervals from their stored per-user results."""
    from rich.console import Console

    from tasks.evaluation.across_runs import compare_across
    from tasks.evaluation.stored import read_comparison
    from tasks.evaluation.stored_runs import find_model, newest_run
    from tasks.report.terminal import show

    loaded = load_config(config, settings or ())
    names = run or []
    if len(names) >= 2:
        comparison = compare_across([find_model(loaded, name) for name in names])
    elif names:
        comparison = read_comparison(find_model(loaded, names[0]).spec)
    else:
        comparison = read_comparison(newest_run(loaded))
    if html is not None:
        from tasks.report.figures import draw
        from tasks.report.page import render

        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(render(comparison, draw(comparison)), encoding="utf-8")
    if as_json:
        print(comparison.model_dump_json(indent=1))
    else:
        show(comparison, Console())
