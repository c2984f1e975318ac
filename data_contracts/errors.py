"""The error of a contract file that is wrong; errors of the data are results, not exceptions."""

from __future__ import annotations


class ContractFileError(Exception):
    """A contract cannot be used: not valid YAML, not ODCS, or not understood.

    Args:
        what: What is wrong, as a sentence.
        where: File and line.
        fix: What the reader should do.
    """

    def __init__(self, what: str, *, where: str, fix: str) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(f"{what} ({where}; {fix})")
