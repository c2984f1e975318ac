"""Where a refused delivery is put on record, and the page of what was found.

The raw files stay where they are, untouched: a delivery that breaks a blocking rule is never
counted or trained on, because the step that would read it does not start.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from data_contracts.contract import Contract
from data_contracts.result import ContractResult
from tasks.lake import Lake, Published, partition_name

QUARANTINE = "quarantine"
DATA_DOCS = "data_docs.html"


def quarantine(lake: Lake, result: ContractResult, partition: Published) -> str:
    """Puts a refused delivery's manifest on record, once.

    Returns:
        Path of the record: the partition's manifest and the rules that it broke. A delivery that
        replaces it has another digest, and the record of the refused one stays.
    """
    assert result.day is not None
    folder = f"{QUARANTINE}/{result.dataset}/{partition_name(result.day)}"
    path = f"{folder}/{partition.digest[:12]}.json"
    if not lake.exists(path):
        record = {
            "partition": partition.path,
            "manifest_digest": partition.digest,
            "contract_version": result.contract_version,
            "contract_digest": result.contract_digest,
            "broken": [rule.model_dump(mode="json") for rule in result.broken],
            "manifest": partition.manifest.model_dump(mode="json"),
        }
        lake.write_text(path, json.dumps(record, indent=1, ensure_ascii=False))
    return path


def write_data_docs(
    lake: Lake, folder: str, checked: Sequence[tuple[Contract, ContractResult]]
) -> str:
    """Writes Great Expectations' Data Docs of checked days.

    Returns:
        Path of the page, in the lake.
    """
    from data_contracts.data_docs import page

    path = f"{folder}/{DATA_DOCS}"
    lake.write_text(path, page(checked))
    return path
