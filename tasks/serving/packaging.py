"""Packing a bundle as an MLflow model: no pickle, requirements stated, code included."""

from __future__ import annotations

import ast
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from models.bundle import CORPUS, USERS, read_bundle
from models.config import FeatureSettings
from tasks.errors import TrackingError
from tasks.serving.by_id import attributes_of
from tasks.version import PROJECT_ROOT

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.models import ModelSignature

_REQUIREMENTS = (
    "mlflow",
    "numpy",
    "pandas",
    "polars",
    "polars-hash",
    "pyarrow",
    "pydantic",
    "safetensors",
    "torch",
    "xxhash",
)


def save_model(target: Path, bundle: Path) -> None:
    """Writes a folder in MLflow's model format.

    The modules that it is made of travel with it, so the model answers with the code that it was
    evaluated with, on a host that has only the requirements.

    Args:
        target: New folder; a folder beside it, `<name>-code`, is left behind.
        bundle: Folder of the bundle; it is copied.
    """
    script = Path(__file__).with_name("pyfunc_model.py")
    code = target.with_name(f"{target.name}-code")
    for module in imported_by(script):
        copy = code / module.relative_to(PROJECT_ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(module, copy)
    with quiet_pyfunc() as pyfunc:
        pyfunc.save_model(
            path=str(target),
            python_model=str(script),
            artifacts={"bundle": str(bundle)},
            code_paths=[str(path) for path in sorted(code.iterdir())],
            signature=signature(bundle),
            input_example=_example(bundle),
            pip_requirements=[f"{name}=={_public(version(name))}" for name in _REQUIREMENTS],
        )


@contextmanager
def quiet_pyfunc() -> Iterator[ModuleType]:
    """The module `mlflow.pyfunc`, without warnings that only its own authors could heed.

    Loading a model puts the model's code in front of everything this process, and every process
    it starts, imports later, and leaves compiled files in the artifacts: both are undone.
    """
    search_path, no_bytecode = list(sys.path), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        with warnings.catch_warnings():
            # MLflow 3.17 warns about the type hints of its own agents when it is imported, and
            # compares pandas indices in a way that pandas 3 has deprecated.
            warnings.filterwarnings("ignore", "(?s).*Any type hint is inferred", UserWarning)
            warnings.filterwarnings("ignore", "Operation with range is deprecated")
            import mlflow.pyfunc

            yield mlflow.pyfunc
    finally:
        sys.path = search_path
        sys.dont_write_bytecode = no_bytecode


def imported_by(script: Path) -> set[Path]:
    """Files of this product that a script imports, at any depth and anywhere in a module."""
    found: set[Path] = set()
    waiting = [script]
    while waiting:
        tree = ast.parse(waiting.pop().read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                # `from package import module` names a module, too.
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            fresh = {path for name in names for path in _files_of(name)} - found
            found |= fresh
            waiting += fresh
    return found


def _files_of(module: str) -> list[Path]:
    """Files that importing a module of this product runs: its packages' and its own."""
    parts = module.split(".")
    if parts[0] not in ("models", "tasks"):
        return []
    packages = [PROJECT_ROOT.joinpath(*parts[:n], "__init__.py") for n in range(1, len(parts) + 1)]
    own = PROJECT_ROOT.joinpath(*parts[:-1], f"{parts[-1]}.py")
    return [path for path in (*packages, own) if path.is_file()]


def bundle_in(model: Path) -> Path:
    """The bundle inside a folder that `save_model` wrote; MLflow chooses its name.

    Raises:
        TrackingError: The folder is no such model.
    """
    try:
        described = yaml.safe_load((model / "MLmodel").read_text(encoding="utf-8"))
        path: str = described["flavors"]["python_function"]["artifacts"]["bundle"]["path"]
    except (OSError, KeyError, TypeError, yaml.YAMLError) as error:
        raise TrackingError(
            "the registered model holds no bundle",
            where=str(model),
            fix="check the artifact store, then register the model again with a new run",
        ) from error
    return model / path


def signature(bundle: Path) -> ModelSignature:
    """Columns that the model takes and answers; IDs have the types of the bundle."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array

    def mlflow_type(file: Path, column: str) -> DataType:
        integer = pa.types.is_integer(pq.read_schema(file).field(column).type)
        return DataType.long if integer else DataType.string

    def attribute(name: str, f: FeatureSettings) -> ColSpec:
        if f.kind == "numeric":
            return ColSpec(DataType.double, name, required=False)
        table = f"vocabulary/{f.table}.parquet"
        kind = mlflow_type(bundle / table, "id")
        return ColSpec(Array(kind) if f.kind == "list" else kind, name, required=False)

    item = mlflow_type(bundle / CORPUS, "item_id")
    users = bundle / USERS
    user = mlflow_type(users, "user_id") if users.exists() else DataType.string
    return ModelSignature(
        inputs=Schema(
            [
                ColSpec(user, "user_id", required=False),
                ColSpec(Array(item), "history", required=False),
                *(attribute(name, f) for name, f in attributes_of(read_bundle(bundle)).items()),
            ]
        ),
        outputs=Schema(
            [
                ColSpec(Array(item), "item_id"),
                ColSpec(Array(DataType.double), "score"),
                ColSpec(DataType.string, "origin"),
                ColSpec(DataType.long, "unknown"),
            ]
        ),
        params=ParamSchema(
            [
                ParamSpec("k", DataType.integer, 10),
                ParamSpec("exclude_seen", DataType.boolean, True),
                ParamSpec("candidates", item, [], (-1,)),
                ParamSpec("where", DataType.string, [], (-1,)),
            ]
        ),
    )


def _example(bundle: Path) -> pd.DataFrame:
    """A request for a user that the model knows, or else for nobody in particular."""
    import pandas as pd

    users = bundle / USERS
    known = pq.read_table(users, columns=["user_id"]).column("user_id") if users.exists() else []
    return pd.DataFrame({"user_id": [known[0].as_py()] if len(known) else [""]})


def _public(released: str) -> str:
    """A version without its local part (`+cpu`), which no index serves."""
    return released.partition("+")[0]
