"""What checking one day of one data set found, as a contract's reader would list it."""

from __future__ import annotations

from datetime import date

from pydantic import BaseModel, ConfigDict

from data_contracts.rules import Severity


class RuleResult(BaseModel):
    """One rule on one day."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = ""
    """The rule within its contract; empty for those of the footers, which every contract has."""
    rule: str
    """Name of the rule."""
    column: str = ""
    """The column, or several for a key."""
    file: str = ""
    """The file, or the first of several."""
    found: str
    """What the data has."""
    number: float | None = None
    """The number that was found, where the rule is about one."""
    expected: str
    """What the contract wants."""
    rows: int = 0
    """Rows, or values of lists, that break it; the file's rows when the whole file does."""
    sample: tuple[str, ...] = ()
    """Some of the values, hashed when the contract calls the column personal."""
    severity: Severity = "block"
    """What breaking it does."""
    passed: bool = False
    """Whether the rule is kept."""


class ContractResult(BaseModel):
    """All rules on one day of one data set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str
    """The data set."""
    day: date | None
    """The day; None for files outside a partition."""
    contract_version: str
    """Version that the contract states."""
    contract_digest: str
    """Identity of the contract and the checks."""
    partition_digest: str | None = None
    """Digest of the partition's manifest."""
    files: int
    """Files of the day."""
    rows: int
    """Rows of the readable files."""
    types: dict[str, str] = {}
    """Type of every column."""
    complete: bool = True
    """Whether all rules were checked; False when the files' footers already broke blocking ones."""
    rules: tuple[RuleResult, ...] = ()
    """The rules, in the contract's order, those of the footers first."""

    @property
    def broken(self) -> tuple[RuleResult, ...]:
        """Rules that are not kept, most severe first."""
        return tuple(sorted((r for r in self.rules if not r.passed), key=severest_first))

    @property
    def blocked(self) -> bool:
        """Whether a blocking rule is broken."""
        return any(rule.severity == "block" for rule in self.broken)

    @property
    def warnings(self) -> int:
        """Number of broken rules that only warn."""
        return sum(rule.severity == "warn" for rule in self.broken)


def severest_first(rule: RuleResult) -> tuple[bool, int]:
    """Sort key: blocking rules first, then by the rows that break them."""
    return (rule.severity == "warn", -rule.rows)
