"""Protects: the form refuses what the configuration would refuse, and its answers arrive there."""

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Param
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError

from dags.trigger_form import KNOBS, overrides, trigger_form
from tasks.config_file import load_config

DEMO = Path(__file__).resolve().parents[2] / "conf/demo.yaml"

GOOD: dict[str, list[Any]] = {
    "day": [None, "2026-03-09"],
    "config": [None, "", "conf/demo.yaml", "/etc/tailtower/shop.yml"],
    "force": [True, False],
    "dry_run": [True, False],
    "warm_start": [None, "none", "champion", "latest"],
    "nodes": [None, "", "1", "2:8"],
    "window_days": [None, 1, 365],
    "min_count": [None, 1, 100],
    "tail_buckets": [None, 1, 4096],
    "hashes": [None, 1],
    "table_dim": [None, 4, 128],
    "dim": [None, 4, 1024],
    "epochs": [None, 1, 20],
    "learning_rate": [None, 1e-5, 0.5],
    "sparse_lr_scale": [None, 1, 10.5],
    "nproc": [None, 1, 8],
    "baselines": [None, [], ["popularity"], ["popularity", "traditional"]],
    "promote": [None, "auto", "ask", "never"],
}
BAD: dict[str, list[Any]] = {
    "day": ["yesterday", "2026-02-30", "09.03.2026", 20260309],
    "config": ["conf/demo.json", 3],
    "force": ["yes", None],
    "dry_run": ["yes", None],
    "warm_start": ["yes", False, "newest"],
    "nodes": [2, "two", "1:", "2-8", "-1"],
    "window_days": [0, 1.5, "14", 3651],
    "min_count": [0, -1, "ten"],
    "tail_buckets": [0],
    "hashes": [0, 3, "2"],
    "table_dim": [2, 6, 2000],
    "dim": [3, 1025],
    "epochs": [0, 1.5],
    "learning_rate": [0, -0.1, "fast"],
    "sparse_lr_scale": [0],
    "nproc": [0],
    "baselines": ["popularity", ["random"]],
    "promote": ["yes", True, ""],
}


def answer(name: str, value: Any) -> Any:
    form = ParamsDict(trigger_form())
    form[name] = value
    return form.validate()[name]


def cases(table: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, values in table.items() for value in values]


@pytest.mark.parametrize(("name", "value"), cases(GOOD))
def test_good_answers_are_taken(name: str, value: Any):
    assert answer(name, value) == value


@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_bad_answers_are_refused(name: str, value: Any):
    with pytest.raises(ParamValidationError, match=name):
        answer(name, value)


def test_every_field_has_good_and_bad_cases():
    assert set(trigger_form()) == set(GOOD) == set(BAD)


def test_an_untouched_form_changes_nothing():
    assert overrides(ParamsDict(trigger_form()).validate()) == []


@pytest.mark.parametrize("param", trigger_form().values(), ids=trigger_form())
def test_every_field_has_title_section_and_help(param: Param):
    assert param.schema["title"]
    assert param.schema["section"] in {
        "Run",
        "Vocabulary",
        "Model and training",
        "Comparison and decision",
    }
    assert param.description
    assert len(param.description) > 20
    assert param.value in (None, False)


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_good_answers_reach_the_setting_they_name(knob):
    for value in GOOD[knob.name]:
        if value in (None, [], ""):
            continue
        more = ["launch.kind=dask", "dask.scheduler=tcp://127.0.0.1:8786"] if value == "2:8" else []
        config = load_config(DEMO, overrides({knob.name: value}) + more).model_dump(mode="json")
        found = [config]
        for part in knob.key.split("."):
            found = [v for node in found for v in (node.values() if part == "*" else [node[part]])]
        assert found == [value] * (len(config["tables"]) if "*" in knob.key else 1)


def test_a_default_of_the_form_is_an_answer():
    """What a scheduled run of a DAG with other defaults changes."""
    assert overrides(ParamsDict(trigger_form(warm_start="none")).validate()) == [
        "training.warm_start.model=none"
    ]


def test_answers_become_yaml_in_the_order_of_the_form():
    answers = {"promote": "never", "learning_rate": 1e-05, "baselines": ["popularity"], "day": "x"}
    assert overrides(answers) == [
        "training.optimizer.learning_rate=1.0e-05",
        "baselines=[popularity]",
        "gate.promote=never",
    ]
