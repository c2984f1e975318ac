"""The form for triggering a run by hand, and what its answers change in the configuration.

Types, limits and help texts come from the settings' own declarations, so the form refuses what
the configuration would refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from airflow.sdk import Param

from models.config import (
    EmbeddingTableSettings,
    ModelSettings,
    OptimizerSettings,
    Settings,
    TrainingSettings,
    WarmStartSettings,
)
from tasks.config import DataSettings, GateSettings, PipelineConfig, VocabularySettings
from tasks.launch_settings import LaunchSettings

_EMPTY = "Empty: the value of the pipeline file."


@dataclass(frozen=True)
class Knob:
    """A setting that the form offers."""

    name: str
    """Name of the form's field."""
    key: str
    """Key path in the pipeline file; `*` stands for every entry."""
    settings: type[Settings]
    """Where the setting is declared."""
    title: str
    """Label of the form's field."""
    section: str
    """Section of the form."""

    def param(self, default: str | None = None) -> Param:
        """The form's field, typed and limited like the setting.

        Args:
            default: Value of an untouched form; None leaves the pipeline file's.
        """
        schema = self.settings.model_json_schema()["properties"][self.key.split(".")[-1]]
        schema.pop("default", None)
        # The form shows its help as it is, without Markdown.
        description = " ".join(schema.pop("description").replace("`", "").split())
        description = f"{description} {_limits(schema)}".rstrip()
        schema["title"] = self.title
        schema["type"] = ["null", schema["type"]]
        if "enum" in schema:
            schema["enum"] = [*schema["enum"], None]
            schema["values_display"] = {None: "as in the pipeline file"}
        if "items" in schema:
            # The form draws a list with examples as a multiple choice.
            schema["examples"] = schema["items"]["enum"]
        if "pattern" in schema:
            # A text field that was emptied again holds an empty text.
            schema["pattern"] = f"^$|{schema['pattern']}"
        schema["section"] = self.section
        return Param(default, description=f"{description} {_EMPTY}", schema=schema)


def _limits(schema: Mapping[str, Any]) -> str:
    """What a number may be, in words."""
    words = [
        f"{word} {schema[key]:g}"
        for key, word in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "more than"),
            ("maximum", "at most"),
            ("multipleOf", "a multiple of"),
        )
        if key in schema
    ]
    text = ", ".join(words)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


_VOCABULARY = "Vocabulary"
_MODEL = "Model and training"
_DECISION = "Comparison and decision"

KNOBS: tuple[Knob, ...] = (
    Knob("window_days", "data.window_days", DataSettings, "Training window (days)", "Run"),
    Knob(
        "warm_start",
        "training.warm_start.model",
        WarmStartSettings,
        "Continue from an earlier model",
        "Run",
    ),
    Knob(
        "min_count",
        "tables.*.vocabulary.min_count",
        VocabularySettings,
        "Occurrences for a row of its own (all tables)",
        _VOCABULARY,
    ),
    Knob(
        "tail_buckets",
        "tables.*.vocabulary.tail_buckets",
        VocabularySettings,
        "Tail buckets (all tables)",
        _VOCABULARY,
    ),
    Knob(
        "hashes",
        "tables.*.vocabulary.hashes",
        VocabularySettings,
        "Hashes of a tail ID (all tables)",
        _VOCABULARY,
    ),
    Knob(
        "table_dim",
        "tables.*.dim",
        EmbeddingTableSettings,
        "Width of a row (all tables)",
        _MODEL,
    ),
    Knob("dim", "model.dim", ModelSettings, "Width of the towers' vectors", _MODEL),
    Knob("epochs", "training.epochs", TrainingSettings, "Epochs", _MODEL),
    Knob(
        "learning_rate",
        "training.optimizer.learning_rate",
        OptimizerSettings,
        "Learning rate of the towers",
        _MODEL,
    ),
    Knob(
        "sparse_lr_scale",
        "training.optimizer.sparse_lr_scale",
        OptimizerSettings,
        "Learning rate of the tables, as a multiple",
        _MODEL,
    ),
    Knob("nproc", "training.nproc", TrainingSettings, "Ranks on each host", _MODEL),
    Knob("nodes", "launch.nodes", LaunchSettings, "Hosts", _MODEL),
    Knob("baselines", "baselines", PipelineConfig, "Baselines", _DECISION),
    Knob("promote", "gate.promote", GateSettings, "Promotion", _DECISION),
)


DRY_RUN = "dry_run"
"""Name of the field that asks for the plan alone."""


def trigger_form(**defaults: str) -> dict[str, Param]:
    """All fields of the form; none of their defaults depends on the calendar.

    Args:
        defaults: Values of fields of `KNOBS` that an untouched form has.
    """
    fields = {
        DRY_RUN: Param(
            False,
            type="boolean",
            title="Dry run",
            description="Show what would be run, with its memory and time, in the run's note; "
            "nothing is trained and nothing is written.",
            section="Run",
        ),
        "day": Param(
            None,
            type=["null", "string"],
            format="date",
            title="Day",
            description="Day to test on; the window before it is trained on. Empty: the day of "
            "the partition, else yesterday in UTC.",
            section="Run",
        ),
        "config": Param(
            None,
            type=["null", "string"],
            pattern=r"^$|\.ya?ml$",
            title="Pipeline file",
            description="YAML file of the pipeline, a path on the worker. Empty: "
            "TAILTOWER_CONFIG, else conf/demo.yaml.",
            section="Run",
        ),
        "force": Param(
            False,
            type="boolean",
            title="Start again",
            description="Start a new run even if this day was done with these settings.",
            section="Run",
        ),
    }
    return fields | {knob.name: knob.param(defaults.get(knob.name)) for knob in KNOBS}


def overrides(answers: Mapping[str, Any]) -> list[str]:
    """What the answers change in the pipeline file, as `key.path=value` with YAML values.

    Args:
        answers: Values of the form's fields by name; empty ones change nothing.
    """
    given = ((knob, answers.get(knob.name)) for knob in KNOBS)
    return [f"{knob.key}={_as_yaml(value)}" for knob, value in given if value not in (None, "", [])]


def _as_yaml(value: Any) -> str:
    """One line of YAML; JSON would not do, since YAML reads its `1e-05` as a word."""
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"))
    return text.removesuffix("...\n").strip()
