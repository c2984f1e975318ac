"""The documented contract of a web shop finds what is known about its real invoices.

The contract is read from the page itself; expected counts are taken with Python's own regular
expressions. Left out where the data is not at hand.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from data_contracts.result import ContractResult
from tasks.contract_commands import app
from tests.data_contracts.outcomes_page import PAGE

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("TAILTOWER_SHARED_DATA", ROOT.parent / "shared" / "data"))
SHOP = SHARED / "online-retail" / "onlineretail.parquet"

pytestmark = pytest.mark.skipif(not SHOP.is_file(), reason="data set online-retail is not there")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[ContractResult, str]:
    """What the command finds and says about the shop, under the page's contract."""
    text = PAGE.read_text(encoding="utf-8")
    contract = tmp_path_factory.mktemp("shop") / "shop.odcs.yaml"
    block = text.partition("<!-- shop: start -->\n```yaml\n")[2].partition("```\n<!-- shop: end")[0]
    contract.write_text(block)
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        app(["check", str(SHOP), "--contract", str(contract), "--json"], standalone_mode=False)
    return ContractResult.model_validate_json(out.getvalue()), said.getvalue()


def test_cancellations_customers_and_codes_are_counted(
    found: tuple[ContractResult, str],
) -> None:
    columns = pq.read_table(SHOP, columns=["InvoiceNo", "StockCode", "CustomerID"])
    cancelled = sum(number.startswith("C") for number in columns["InvoiceNo"].to_pylist())
    product = re.compile(r"^[0-9]{5}[A-Za-z]*$")
    others = sum(not product.match(code) for code in columns["StockCode"].to_pylist())
    assert (cancelled, columns["CustomerID"].null_count) == (9_288, 135_080)
    broken = {(rule.column, rule.severity): rule.rows for rule in found[0].broken}
    assert broken[("InvoiceNo", "warn")] == cancelled
    assert broken[("CustomerID", "warn")] == 135_080
    assert broken[("StockCode", "warn")] == others


def test_the_page_shows_what_the_command_says(found: tuple[ContractResult, str]) -> None:
    lines = [line.rstrip() for line in found[1].splitlines() if line.strip()]
    assert lines[-1].startswith("contract kept, 3 warnings: 541,909 rows")
    page = PAGE.read_text(encoding="utf-8")
    for line in lines:
        assert line in page
