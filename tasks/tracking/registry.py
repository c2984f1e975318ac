"""The model registry: versions of the bundle and the aliases that say which one is served."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from tasks.config import PipelineConfig
from tasks.errors import ConfigError
from tasks.lake import Published
from tasks.run_spec import ModelReference
from tasks.tracking.location import client, experiment_id, tracking_errors, tracking_uri
from tasks.tracking.runs import DAY, RUN_ID

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

CHAMPION = "champion"
CHALLENGER = "challenger"
PREVIOUS = "previous"
BUNDLE = "tailtower.bundle"
BUNDLE_DIGEST = "tailtower.bundle_digest"


def current_champion(config: PipelineConfig) -> ModelReference | None:
    """The registered version that is served, or None before the first promotion."""
    return by_alias(config, CHAMPION)


def by_alias(config: PipelineConfig, alias: str) -> ModelReference | None:
    """The registered version that an alias points to.

    Raises:
        TrackingError: The registry cannot be reached.
        ConfigError: The version was not registered by this product.
    """
    from mlflow.exceptions import MlflowException

    name = config.tracking.model_name
    with tracking_errors(f"reading the alias '{alias}' of '{name}'", tracking_uri(config)):
        try:
            return _reference(client(config).get_model_version_by_alias(name, alias))
        except MlflowException as error:
            # MLflow answers an unknown alias of a known model with "invalid parameter".
            unknown_alias = error.error_code == "INVALID_PARAMETER_VALUE" and "alias" in str(error)
            if error.error_code == "RESOURCE_DOES_NOT_EXIST" or unknown_alias:
                return None
            raise


def by_version(config: PipelineConfig, version: str) -> ModelReference:
    """A registered version by its number.

    Raises:
        TrackingError: The registry cannot be reached.
        ConfigError: There is no such version, or it was not registered by this product.
    """
    from mlflow.exceptions import MlflowException

    name = config.tracking.model_name
    with tracking_errors(f"reading version {version} of '{name}'", tracking_uri(config)):
        try:
            return _reference(client(config).get_model_version(name, version))
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
    raise ConfigError(
        f"'{name}' has no version {version}",
        where=f"models:/{name}",
        fix="MLflow's page of the model lists its versions",
    )


def version_tags(config: PipelineConfig, version: str) -> dict[str, str]:
    """Tags of a version."""
    name = config.tracking.model_name
    with tracking_errors(f"reading version {version} of '{name}'", tracking_uri(config)):
        return dict(client(config).get_model_version(name, version).tags)


def find_version(config: PipelineConfig, run_id: str, bundle_digest: str) -> ModelReference | None:
    """The version that a tailtower run registered from a bundle, if it did."""
    name = config.tracking.model_name
    query = (
        f"name = '{name}' and tags.`{RUN_ID}` = '{run_id}' "
        f"and tags.`{BUNDLE_DIGEST}` = '{bundle_digest}'"
    )
    with tracking_errors(f"looking for versions of '{name}'", tracking_uri(config)):
        found = client(config).search_model_versions(query, max_results=1)
    return _reference(found[0]) if found else None


def register(
    config: PipelineConfig,
    folder: Path,
    *,
    run_id: str,
    day: date,
    bundle: Published,
    mlflow_run_id: str,
    description: str,
    tags: Mapping[str, str],
) -> ModelReference:
    """Registers an MLflow model folder as a version; a run that did so gets the same version.

    Args:
        config: The settings.
        folder: Local folder in MLflow's model format.
        run_id: Tailtower run that trained the model.
        day: Day it was tested on.
        bundle: Its bundle in the lake.
        mlflow_run_id: MLflow run of the candidate.
        description: What a person reads on the version's page.
        tags: More tags for the version.
    """
    from mlflow.exceptions import MlflowException

    existing = find_version(config, run_id, bundle.digest)
    if existing is not None:
        return existing
    name = config.tracking.model_name
    mlflow = client(config)
    labels = {
        RUN_ID: run_id,
        DAY: day.isoformat(),
        BUNDLE: bundle.path,
        BUNDLE_DIGEST: bundle.digest,
        **tags,
    }
    with tracking_errors(f"registering a version of '{name}'", tracking_uri(config)):
        try:
            mlflow.create_registered_model(
                name, description="Two-tower retrieval models of the daily runs; `champion` serves."
            )
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        model = mlflow.create_logged_model(
            experiment_id(config),
            name=name,
            source_run_id=mlflow_run_id,
            tags=labels,
            model_type="two_tower",
        )
        mlflow.log_model_artifacts(model.model_id, str(folder))
        mlflow.finalize_logged_model(model.model_id, "READY")
        # The location and not `models:/<id>`: MLflow resolves that with its global tracking URI.
        version = mlflow.create_model_version(
            name,
            source=model.artifact_location,
            run_id=mlflow_run_id,
            tags=labels,
            description=description,
            model_id=model.model_id,
        )
    return _reference(version)


def set_alias(config: PipelineConfig, alias: str, version: str) -> None:
    """Points an alias at a version."""
    name = config.tracking.model_name
    with tracking_errors(f"moving the alias '{alias}' of '{name}'", tracking_uri(config)):
        client(config).set_registered_model_alias(name, alias, version)


def set_version_tags(config: PipelineConfig, version: str, tags: Mapping[str, str]) -> None:
    """Sets tags of a version."""
    name = config.tracking.model_name
    with tracking_errors(f"tagging version {version} of '{name}'", tracking_uri(config)):
        for key, value in tags.items():
            client(config).set_model_version_tag(name, version, key, value)


def remove_alias(config: PipelineConfig, alias: str) -> None:
    """Takes an alias away; nothing happens when nothing has it."""
    name = config.tracking.model_name
    with tracking_errors(f"removing the alias '{alias}' of '{name}'", tracking_uri(config)):
        client(config).delete_registered_model_alias(name, alias)


@contextmanager
def local_copy(config: PipelineConfig, version: str) -> Iterator[Path]:
    """Folder of a version's model on this machine, for reading inside the block.

    Artifacts that lie on this machine's disk are read where they are; others are fetched.
    """
    from mlflow.artifacts import download_artifacts

    name = config.tracking.model_name
    uri = tracking_uri(config)
    with tempfile.TemporaryDirectory(prefix="tailtower-version-") as scratch:
        with tracking_errors(f"fetching version {version} of '{name}'", uri):
            source = client(config).get_model_version_download_uri(name, version)
            if source.startswith("file:"):
                folder = Path(url2pathname(urlsplit(source).path))
            else:
                folder = Path(
                    download_artifacts(artifact_uri=source, dst_path=scratch, tracking_uri=uri)
                )
        yield folder


def _reference(version: ModelVersion) -> ModelReference:
    tags = version.tags
    missing = [tag for tag in (RUN_ID, DAY, BUNDLE) if tag not in tags]
    if missing:
        raise ConfigError(
            f"version {version.version} of '{version.name}' was not registered by tailtower: "
            f"it has no tag {missing[0]}",
            where=f"models:/{version.name}/{version.version}",
            fix="remove its alias, or choose another tracking.model_name",
        )
    return ModelReference(
        version=str(version.version),
        run_id=tags[RUN_ID],
        day=date.fromisoformat(tags[DAY]),
        bundle=tags[BUNDLE],
    )
