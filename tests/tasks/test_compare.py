"""Protects: one comparison in every place that people look at, recomputed from per-user rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from models.bootstrap import paired_bootstrap
from tasks import compare, gate
from tasks.errors import ConfigError
from tasks.evaluation.across_runs import compare_across
from tasks.evaluation.decision import ServingParity, decide
from tasks.evaluation.per_user import metrics_of, rows_of
from tasks.evaluation.stored import read_comparison, read_per_user
from tasks.evaluation.stored_runs import NamedModel, find_model, newest_run
from tasks.lake import Lake, Output
from tasks.tracking import client, current_champion
from tasks.tracking.runs import parent_of
from tests.tasks.small_runs import TwoDays, rerun


def test_differences_come_from_the_rows_of_the_same_users(two_days: TwoDays) -> None:
    spec = two_days.second
    rows = read_per_user(spec.lake(), spec.output("evaluate", "evaluation"))
    ours, theirs = (metrics_of(rows_of(rows, name)) for name in ("candidate", "champion"))
    found = read_comparison(spec).differences["champion"]
    # Everybody has a recall: the same resamples as for one metric alone.
    expected = paired_bootstrap(
        ours["recall_at_5"], theirs["recall_at_5"], samples=200, confidence=0.95
    )
    overall = found["recall_at_5"]
    assert (overall.lower, overall.upper) == pytest.approx((expected.lower, expected.upper))
    assert (overall.difference, overall.users) == pytest.approx(
        (expected.difference, expected.users)
    )
    # Not everybody has a target in the tail.
    tail = found["recall_at_5/tail"]
    applies = np.isfinite(ours["recall_at_5/tail"])
    assert tail.users == applies.sum() < overall.users
    assert tail.difference == pytest.approx(
        np.nanmean(ours["recall_at_5/tail"]) - np.nanmean(theirs["recall_at_5/tail"])
    )


def test_mlflow_shows_the_same_numbers_under_the_same_names_every_day(two_days: TwoDays) -> None:
    mlflow = client(two_days.config)
    names = []
    for spec in (two_days.first, two_days.second):
        compared = read_comparison(spec)
        parent = mlflow.get_run(parent_of(spec)).data
        for name, value in compared.candidate.metrics.items():
            assert parent.metrics[f"eval/{name}"] == pytest.approx(value)
        names.append({name for name in parent.metrics if name.startswith("eval/")})
        child = spec.require("train.popularity").facts["mlflow_run_id"]
        popularity = compared.model("popularity")
        assert popularity is not None
        recall = mlflow.get_run(child).data.metrics["eval/recall_at_5"]
        assert recall == pytest.approx(popularity.metrics["recall_at_5"])
    assert {"eval/recall_at_5", "eval/recall_at_5/tail", "eval/coverage_at_5"} <= names[0]
    assert names[0] == names[1]


def test_the_run_describes_itself_and_its_inputs(two_days: TwoDays) -> None:
    spec = two_days.second
    run = client(two_days.config).get_run(parent_of(spec))
    assert "| `recall_at_5` |" in run.data.tags["mlflow.note.content"]
    digest = spec.output("examples", "examples").digest
    assert run.data.tags["tailtower.data_digest"] == digest
    assert run.inputs is not None
    assert {i.dataset.digest for i in run.inputs.dataset_inputs} == {digest}


def test_comparing_again_gives_the_same_files(two_days: TwoDays) -> None:
    spec = two_days.second
    assert rerun(spec, "compare").outputs == spec.require("compare").outputs


def test_both_reports_link_what_the_validation_found(
    two_days: TwoDays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = two_days.second
    lake = spec.lake()
    for module in (compare, gate):
        monkeypatch.setattr(module, "report_links", lambda _, folder: {"Docs": f"{folder}/x"})
    evaluation, compared = spec.output("evaluate", "evaluation"), read_comparison(spec)
    compare._write(spec, lake, evaluation, Output(Lake(str(tmp_path)), "compare"))
    decision = decide(compared, spec.config.gate, ServingParity(users=1, different=0))
    version = current_champion(two_days.config)
    assert version is not None
    published = spec.output("compare", "comparison")
    output = Output(Lake(str(tmp_path)), "gate")
    gate._write(spec, published, compared, decision, version, output)
    for folder in ("compare", "gate"):
        page = (tmp_path / folder / "report.html").read_text()
        assert f'<a href="{folder}/x">Docs</a>' in page


def test_runs_are_found_by_id_day_and_mlflow_id(two_days: TwoDays) -> None:
    spec, config = two_days.first, two_days.config
    assert find_model(config, spec.run_id).spec == spec
    assert find_model(config, "2026-01-03").spec == spec
    assert find_model(config, "2026-01-03:popularity").role == "popularity"
    assert find_model(config, str(spec.mlflow_run_id)) == NamedModel(spec, "candidate")
    child = spec.require("train.popularity").facts["mlflow_run_id"]
    assert find_model(config, child) == NamedModel(spec, "popularity")
    assert newest_run(config) == two_days.second
    with pytest.raises(ConfigError, match="there is no run '2031-01-01'") as caught:
        find_model(config, "2031-01-01")
    assert two_days.second.run_id in str(caught.value)


def test_models_of_one_day_are_paired_over_common_users(two_days: TwoDays) -> None:
    spec = two_days.second
    found = compare_across([NamedModel(spec, "popularity"), NamedModel(spec, "candidate")])
    assert found.paired
    stored = read_comparison(spec).differences["popularity"]["recall_at_5"]
    mirrored = found.differences[spec.run_id]["recall_at_5"]
    assert mirrored.difference == pytest.approx(-stored.difference)
    assert mirrored.users == stored.users


def test_models_of_different_days_are_not_called_paired(two_days: TwoDays) -> None:
    found = compare_across([NamedModel(two_days.second), NamedModel(two_days.first)])
    assert not found.paired
    ours = read_comparison(two_days.second).candidate.metrics["recall_at_5"]
    theirs = read_comparison(two_days.first).candidate.metrics["recall_at_5"]
    difference = found.differences[two_days.first.run_id]["recall_at_5"]
    assert difference.difference == pytest.approx(ours - theirs)


@pytest.mark.parametrize("roles", [["candidate"], ["candidate", "candidate"], ["candidate", "x"]])
def test_comparisons_that_make_no_sense_are_refused(two_days: TwoDays, roles: list[str]) -> None:
    with pytest.raises(ConfigError):
        compare_across([NamedModel(two_days.second, role) for role in roles])


def test_the_command_prints_json_and_writes_a_page(two_days: TwoDays, tmp_path: Path) -> None:
    import typer

    from tasks.compare_command import compare_command

    app = typer.Typer()
    app.command()(compare_command)
    path = tmp_path / "tiny.yaml"
    path.write_text(two_days.config.model_dump_json())  # JSON is YAML
    page = tmp_path / "out" / "page.html"
    options = ["--config", str(path), "--run", "2026-01-04", "--run", "2026-01-03"]
    result = CliRunner().invoke(app, [*options, "--json", "--html", str(page)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["paired"] is False
    assert "not paired: the test sets differ" in page.read_text()
    shown = CliRunner().invoke(app, ["--config", str(path)])
    assert two_days.second.run_id in shown.stdout
    assert "minus champion" in shown.stdout
