"""Protects the server against what its OpenAPI document allows: generated requests, good and bad,
get an answer that the document describes, and never a 5xx."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tasks.serving.server.app import create_app
from tasks.serving.server.champion_watch import ChampionWatch
from tests.tasks.small_runs import TwoDays


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(600)
def test_every_answer_is_described(two_days: TwoDays) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

    app = create_app(ChampionWatch(two_days.config, 60.0))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    operations = [found.ok() for found in schema.get_all_operations()]
    assert {(one.method.upper(), one.path) for one in operations} == {
        ("GET", "/recommendations"),
        ("POST", "/recommendations"),
        ("GET", "/items"),
        ("GET", "/health"),
        ("GET", "/metrics"),
    }
    for operation in operations:
        # Whether there is such an attribute, and such a value, is the model's to say; and in an
        # address everything is text, so a number is a list of one text.
        excluded = [positive_data_acceptance]
        excluded += [negative_data_rejection] if operation.query else []
        for mode in schemathesis.GenerationMode:
            if mode.is_negative and not operation.query and not operation.body:
                continue  # there is nothing to ask wrongly

            _ask(operation, mode, excluded)


def _ask(operation: Any, mode: Any, excluded: list[Any]) -> None:
    """Sends requests of an operation, and checks what comes back."""

    # By hand, since the plugin for pytest lags behind pytest's own versions.
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        case.call_and_validate(excluded_checks=excluded)

    ask()
