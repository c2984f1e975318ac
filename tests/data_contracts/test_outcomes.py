"""Every input of the list has its stated outcome: in the library, by the command, and in a run.

Protects training from bad data, and people from a wrong or missing explanation: exactly the stated
rules break, with the stated severity and number of rows, and the exit status says whether to go on.
The same list through Airflow's operators is in `tests/dags/test_contract_outcomes.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_contracts.check import check_days
from data_contracts.contract import load_contract
from data_contracts.result import ContractResult, RuleResult
from tasks.errors import ContractError
from tasks.run_spec import StepResult
from tests.data_contracts.days_of_data import BIG
from tests.data_contracts.outcome_ways import (
    assert_outcome,
    broken_of,
    by_command,
    by_run,
    day_of_data,
    empty_lakes,
    folder_of,
    is_shown,
    reading,
    run_spec,
    written,
)
from tests.data_contracts.outcome_writers import contracts_for_tests
from tests.data_contracts.outcomes import INPUTS, Input

BY_NAME = {entry.name: entry for entry in INPUTS}
pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def contracts() -> Iterator[Path]:
    with empty_lakes(["contracts"]) as found:
        found["contracts"].mkdir()
        yield contracts_for_tests(found["contracts"])


@pytest.fixture(scope="module")
def lakes() -> Iterator[dict[str, Path]]:
    """A lake for each input, written."""
    with empty_lakes(list(BY_NAME)) as found:
        for name, lake in found.items():
            written(BY_NAME[name], lake)
        yield found


@pytest.fixture(scope="module")
def results(lakes: dict[str, Path], contracts: Path) -> dict[str, ContractResult]:
    """What the library finds, for the inputs that stay as they are: all checked in one call."""
    found: dict[str, ContractResult] = {}
    for dataset in ("interactions", "items"):
        entries = [e for e in INPUTS if e.dataset == dataset and not (e.during or e.denied)]
        contract = load_contract(contracts / f"{dataset}.odcs.yaml")
        checked = check_days(contract, [day_of_data(e, lakes[e.name]) for e in entries])
        found |= dict(zip([e.name for e in entries], checked, strict=True))
    return found


def test_names_differ() -> None:
    assert len(BY_NAME) == len(INPUTS)


@pytest.mark.parametrize("name", [e.name for e in INPUTS if not (e.during or e.denied)])
def test_by_the_library(name: str, results: dict[str, ContractResult]) -> None:
    entry = BY_NAME[name]
    assert broken_of(results[name]) == sorted(entry.broken)
    assert results[name].blocked == entry.blocked


@pytest.mark.parametrize("name", BY_NAME)
def test_by_the_command(
    name: str, lakes: dict[str, Path], contracts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, lake = BY_NAME[name], lakes[name]
    with reading(entry, lake, monkeypatch):
        result, said = by_command(entry, lake, contracts)
    if entry.refused:
        kind, words = entry.refused
        assert said.status == kind.exit_code
        assert words in said.err
        return
    assert result is not None
    assert broken_of(result) == sorted(entry.broken)
    assert said.status == (ContractError.exit_code if entry.blocked else 0)
    assert all(is_shown(rule, said.err) for rule in entry.broken)
    assert ("contract kept" in said.err) != entry.blocked


@pytest.mark.parametrize("name", BY_NAME)
def test_in_a_run(name: str, contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = BY_NAME[name]
    with empty_lakes([name]) as lakes:
        _run(entry, lakes[name], contracts, monkeypatch)


def _run(entry: Input, lake: Path, contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = None
    if entry.before is not None:
        entry.before(folder_of(entry, lake))
        first = by_run(run_spec(entry, lake, contracts))
    written(entry, lake)
    spec = run_spec(entry, lake, contracts)
    with reading(entry, lake, monkeypatch):
        said = by_run(spec)
    assert_outcome(entry, lake, said.status, said.err)
    if said.status == 0:
        step = StepResult.model_validate_json(said.out.splitlines()[-1])
        assert step.facts["warnings"] == len(entry.broken)
        if first is not None:
            assert step.facts["days_checked_now"] == 1
            assert step.digests != json.loads(first.out.splitlines()[-1])["digests"]


def _only(result: ContractResult, severity: str = "block") -> RuleResult:
    (rule,) = [rule for rule in result.broken if rule.severity == severity]
    return rule


@pytest.mark.parametrize(
    ("name", "file", "found"),
    [
        ("half a Parquet file", "1.parquet", "cut off: "),
        ("a CSV named `.parquet`", "1.parquet", "not Parquet: starts with b'user'"),
        ("a file of 0 bytes", "1.parquet", "the file has 0 bytes"),
        ("int64 in one file, string in another", "1.parquet", "string"),
        ("one null in an int64 ID column above 2⁵³", "0.parquet", "1 nulls"),
        ("a column renamed", "0.parquet", "no such column, but 'itemid'"),
        ("one file under two names", "1.parquet", "content of 0.parquet"),
        ("an event of the day before", "0.parquet", "1 outside"),
    ],
)
def test_the_file_and_the_finding_are_named(
    name: str, file: str, found: str, results: dict[str, ContractResult]
) -> None:
    rule = _only(results[name])
    assert rule.file == file
    assert rule.found.startswith(found)


def test_a_sample_of_the_values_is_shown(results: dict[str, ContractResult]) -> None:
    assert _only(results["an event of the day before"]).sample == ("2026-01-01 23:00:00",)
    late = _only(results["an event one second after the day's end"], "warn")
    assert late.sample == ("2026-01-03 00:00:01",)
    (sample,) = _only(results["an ID of a megabyte"]).sample
    assert sample.startswith("xxx")
    assert len(sample) < 60
    assert _only(results["a zero-width space"], "warn").sample == ("item\\u200b1",)


def test_personal_values_are_hashed(results: dict[str, ContractResult]) -> None:
    user, item, moment = _only(results["one event twice in one file"], "warn").sample[0].split("/")
    assert user.startswith("#")
    assert str(BIG) not in user
    assert (item, moment[:19]) == ("item 3", "2026-01-02 00:00:30")


def test_rows_against_the_days_before_are_explained(results: dict[str, ContractResult]) -> None:
    rule = _only(results["a third of the usual rows"], "warn")
    assert rule.found == "0.333 times: 1,000 rows, usually 3,000"


def test_broken_footers_leave_the_values_unread(results: dict[str, ContractResult]) -> None:
    assert not results["half a Parquet file"].complete
    assert results["a column more"].complete


def test_a_result_survives_json(results: dict[str, ContractResult]) -> None:
    for result in results.values():
        assert ContractResult.model_validate_json(result.model_dump_json()) == result
