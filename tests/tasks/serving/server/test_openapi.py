"""Protects the server against what its OpenAPI document allows: generated requests, good and bad,
get an answer that the document describes, and never a 5xx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tasks.serving.server.app import create_app
from tasks.serving.server.champion_watch import ChampionWatch
from tests.tasks.small_runs import TwoDays

if TYPE_CHECKING:
    import schemathesis
else:
    schemathesis = pytest.importorskip("schemathesis")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def api_schema(two_days: TwoDays) -> Any:
    app = create_app(ChampionWatch(two_days.config, 60.0))
    return schemathesis.openapi.from_asgi("/openapi.json", app)


schema = schemathesis.pytest.from_fixture("api_schema")


@schema.parametrize()
def test_every_answer_is_described(case: Any) -> None:
    case.call_and_validate()
