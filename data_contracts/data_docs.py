"""Great Expectations' Data Docs of the days that one run checked: one page, without network.

The page needs nothing from elsewhere: Great Expectations' own asks for scripts, style sheets and a
picture of five hosts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from data_contracts.contract import Contract
from data_contracts.result import ContractResult, RuleResult
from data_contracts.rules import NONE, Bound

_FROM_ELSEWHERE = re.compile(
    r"<script\b[^>]*\bsrc=.*?</script>|<link\b[^>]*>|<img\b[^>]*>|<footer\b.*?</footer>",
    re.DOTALL,
)
_STYLE = """<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; color: #24292f }
table { border-collapse: collapse; width: 100% } td, th { padding: .4rem .7rem; text-align: left;
border-bottom: 1px solid #d0d7de; vertical-align: top } a { color: #0969da }
nav, .modal, .navbar, .btn { display: none }
</style></head>"""


def page(checked: Sequence[tuple[Contract, ContractResult]]) -> str:
    """The page: a section for each rule of each column, a row for each day."""
    from data_contracts.aggregate_checks import as_judged, expectation
    from data_contracts.expectations import Expectation, FrameValidation

    import pandas as pd  # isort: skip

    bounds: dict[str, Bound] = {}
    cells: dict[str, dict[int, float]] = {}
    for day, (contract, result) in enumerate(checked):
        by_key = {rule.key: rule for rule in contract.rules}
        for rule in result.rules:
            known = by_key.get(rule.key)
            title = _title(contract, rule)
            bounds[title] = known.bound if known else NONE
            number = float(not rule.passed)  # of the footers' rules, which have no bound
            if known is not None and rule.number is not None:
                number = as_judged(known.bound, rule.number)
            cells.setdefault(title, {})[day] = number
    frame = pd.DataFrame(
        {
            title: pd.array([found.get(day) for day in range(len(checked))], "Float64")
            for title, found in cells.items()
        }
    )
    expectations = [Expectation(t, *expectation(b, t)) for t, b in bounds.items()]
    html = FrameValidation(expectations, sample=20).data_docs(frame)
    return _FROM_ELSEWHERE.sub("", html).replace("</head>", _STYLE, 1)


def _title(contract: Contract, rule: RuleResult) -> str:
    where = f"{contract.dataset} {rule.column}".strip()
    return f"{where}: {rule.rule} ({rule.expected})"
