"""What one run does, fixed once, and what each of its steps produced.

`resolve_run` writes `runs/<run id>/run_spec.json`; every later step reads that file and the
results of the steps before it, and nothing else.
"""

from __future__ import annotations

from datetime import date
from typing import Any

from pydantic import Field, ValidationError

from models.config import Settings
from tasks.config import PipelineConfig
from tasks.errors import ConfigError, LakeError, UpstreamError
from tasks.lake import Lake, Published

RUN_SPEC = "run_spec.json"


class ModelReference(Settings):
    """A registered model version and the run that made it."""

    version: str
    """Version in the registry."""
    run_id: str
    """Tailtower run that trained it."""
    day: date
    """Day it was tested on."""
    bundle: str
    """Lake path of its bundle."""


class EarlierRun(Settings):
    """The run whose model a training continues from."""

    run_id: str
    """The run."""
    day: date
    """Its last test day."""
    trained_until: date
    """Last day that the model was trained on."""
    bundle: str
    """Lake path of the model's bundle."""
    version: str | None = None
    """Version in the registry, when the model was champion."""


class RunSpec(Settings):
    """One run, completely resolved."""

    run_id: str
    """Deterministic name: day and digest of the configuration."""
    day: date
    """Day of the run: the last test day."""
    train_days: tuple[date, ...]
    """Days that are trained on, oldest first; all of them before the first test day, unless the
    data brings its own split (`data.split`)."""
    test_days: tuple[date, ...]
    """Days that are tested on, oldest first; `(day,)` unless `data.test_days` asks for more."""
    config: PipelineConfig
    """All settings."""
    champion: ModelReference | None = None
    """The model that was champion when the run was resolved."""
    warm_start: EarlierRun | None = None
    """What the candidate's training continues from; None for a new model."""
    code_version: str
    """Version of the product and git revision."""
    mlflow_run_id: str | None = None
    """The MLflow parent run."""

    def lake(self) -> Lake:
        """The lake of this run."""
        return Lake(self.config.lake)

    @property
    def folder(self) -> str:
        """Lake path of the run's own files."""
        return f"runs/{self.run_id}"

    @property
    def path(self) -> str:
        """Lake path of this file."""
        return f"{self.folder}/{RUN_SPEC}"

    @property
    def uri(self) -> str:
        """Location that a step in another process is given."""
        return f"{self.lake().url}/{self.path}"

    def save(self) -> None:
        """Writes the run spec into the lake."""
        self.lake().write_text(self.path, self.model_dump_json(indent=1))

    def result(self, step: str) -> StepResult | None:
        """What a step of this run produced, if it has finished."""
        lake = self.lake()
        path = f"{self.folder}/{step}.json"
        if not lake.exists(path):
            return None
        try:
            return StepResult.model_validate_json(lake.read_text(path))
        except ValidationError as error:
            raise LakeError(
                "the step's result file is damaged",
                where=f"{lake.url}/{path}",
                fix="remove the file and run the step again",
            ) from error

    def require(self, step: str) -> StepResult:
        """What a step of this run produced.

        Raises:
            UpstreamError: The step has not finished.
        """
        result = self.result(step)
        if result is None:
            raise UpstreamError(
                f"step '{step}' has not finished",
                where=f"run {self.run_id}",
                fix=f"first run `tailtower step {step.partition('.')[0]} --run-spec {self.uri}`",
            )
        return result

    def output(self, step: str, name: str) -> Published:
        """A published output of an earlier step."""
        result = self.require(step)
        if name not in result.outputs:
            raise UpstreamError(
                f"step '{step}' has no output '{name}'",
                where=f"run {self.run_id}",
                fix="run the step again with this version",
            )
        return self.lake().open_published(result.outputs[name])


class StepResult(Settings):
    """What a step produced: where, with which digest, and the numbers worth showing."""

    step: str
    """Name of the step; `train.candidate` for a step that runs once for each role."""
    outputs: dict[str, str] = Field(default_factory=dict)
    """Lake path of each published output, by name."""
    digests: dict[str, str] = Field(default_factory=dict)
    """Digest of each output's manifest, by the same names."""
    facts: dict[str, Any] = Field(default_factory=dict)
    """Numbers and words worth showing: counts, decisions, addresses."""
    upstream: dict[str, str] = Field(default_factory=dict)
    """Digest of each earlier step's result that this one was made from."""
    seconds: float | None = Field(default=None, exclude_if=lambda value: value is None)
    """How long the step took, where it is printed for a scheduler; the lake keeps no times."""

    @classmethod
    def of(cls, step: str, outputs: dict[str, Published], **facts: Any) -> StepResult:
        """A result from published outputs."""
        return cls(
            step=step,
            outputs={name: published.path for name, published in outputs.items()},
            digests={name: published.digest for name, published in outputs.items()},
            facts=facts,
        )


def load_run_spec(uri: str) -> RunSpec:
    """Reads a run spec from its location.

    Raises:
        ConfigError: There is no valid run spec.
    """
    folder, _, name = uri.rpartition("/")
    lake = Lake(folder or ".")
    if not lake.exists(name):
        raise ConfigError(
            "no run spec there",
            where=uri,
            fix="make one with `tailtower step resolve_run --config conf/demo.yaml --day …`",
        )
    try:
        return RunSpec.model_validate_json(lake.read_text(name))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"not a run spec of this version: {first['msg']}",
            where=f"{uri} key {'.'.join(map(str, first['loc']))}",
            fix="resolve the run again",
        ) from error
