"""Contracts and the files that they are about, as a pipeline's folders hold them.

A wrong contract is a wrong configuration.
"""

from __future__ import annotations

from pathlib import Path

import data_contracts
from data_contracts.contract import Contract, load_contract
from data_contracts.data_files import DataFile, DataFiles
from data_contracts.errors import ContractFileError
from tasks.config import DataSettings
from tasks.errors import ConfigError
from tasks.lake import MANIFEST, Lake, Published

SUFFIX = ".odcs.yaml"
_SHIPPED = Path(data_contracts.__file__).parent
_OF_THE_PIPELINE = ("examples",)


def contract_of(dataset: str, settings: DataSettings) -> Contract:
    """The contract of a data set.

    A folder of one's own may leave out the contract of what the pipeline itself writes.

    Raises:
        ConfigError: There is none, or it is not understood.
    """
    path = contracts_folder(settings) / f"{dataset}{SUFFIX}"
    if dataset in _OF_THE_PIPELINE and not path.is_file():
        path = _SHIPPED / path.name
    if not path.is_file():
        raise ConfigError(
            f"the data set {dataset} has no contract",
            where=str(path),
            fix="write one, or name the folder that holds it in data.contracts",
        )
    return read_contract(path)


def read_contract(path: Path) -> Contract:
    """Reads a contract.

    Raises:
        ConfigError: It is not ODCS, or says something that cannot be checked.
    """
    try:
        return load_contract(path)
    except ContractFileError as error:
        raise ConfigError(error.what, where=error.where, fix=error.fix) from error


def contracts_folder(settings: DataSettings) -> Path:
    """Folder of the contracts: as set, or those that come with the product.

    The shipped ones serve the default setting when the working folder is not the repository.
    """
    folder = Path(settings.contracts)
    is_default = settings.contracts == DataSettings.model_fields["contracts"].default
    if is_default and not folder.is_dir():
        return _SHIPPED
    return folder


def files_of(lake: Lake, published: Published) -> DataFiles:
    """The Parquet files that a manifest names, or that a marked folder holds."""
    files = tuple(
        DataFile(
            entry.path, lake.abspath(f"{published.path}/{entry.path}"), entry.bytes, entry.digest
        )
        for entry in published.manifest.files
        if entry.path.endswith(".parquet")
    )
    names = {entry.path for entry in published.manifest.files}
    return DataFiles(lake.fs, files, _left_out(lake, published.path, names))


def files_in(lake: Lake, folder: str) -> DataFiles:
    """The Parquet files of a folder: those its manifest names or, without one, all there are."""
    published = lake.find(folder)
    if published is not None:
        return files_of(lake, published)
    prefix = f"{folder}/" if folder else ""
    files = tuple(
        DataFile(info.base_name, lake.abspath(f"{prefix}{info.base_name}"))
        for info in lake.list_files(folder)
        if info.base_name.endswith(".parquet") and not info.base_name.startswith((".", "_"))
    )
    return DataFiles(lake.fs, files, _left_out(lake, folder, {file.name for file in files}))


def _left_out(lake: Lake, folder: str, read: set[str]) -> tuple[str, ...]:
    """Files of a folder that nobody reads, but for those that are hidden on purpose."""
    names = [info.base_name for info in lake.list_files(folder)]
    return tuple(
        name
        for name in names
        if name not in read and name != MANIFEST and not name.startswith((".", "_"))
    )
