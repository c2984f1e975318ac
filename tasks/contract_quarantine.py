"""Where a refused delivery is put on record.

The raw files stay where they are, untouched: a delivery that breaks a blocking rule is never
counted or trained on, because the step that would read it does not start.
"""

from __future__ import annotations

import json

from data_contracts.result import ContractResult
from tasks.lake import Lake, Published, partition_name

QUARANTINE = "quarantine"


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
