"""The popularity that a prior adds: interactions weighted by age, against a loop over the log; the
same however the users are spread over parts."""

import pytest

from tasks.longtail import build_examples
from tests.tasks.longtail.raw_lake import at, run_steps, spec_of
from tests.tasks.longtail.world import RICH_MODEL, RICH_TABLES, World, outputs

HALF_LIFE = 1.5


def spec_with_prior(lake):
    model = {**RICH_MODEL, "prior": {"half_life_days": HALF_LIFE}}
    return spec_of(lake, 4, tables=RICH_TABLES, model=model)


def test_recent_counts_equal_a_loop_over_the_log_in_any_parts(tmp_path, monkeypatch):
    found = []
    for number in range(2):
        world = World(tmp_path / str(number))
        spec = spec_with_prior(world.lake)
        run_steps(spec)
        found.append(outputs(spec)["items"])
        monkeypatch.setattr(build_examples, "PART_BYTES", 30 * build_examples._ROW_BYTES)
    assert spec.output("examples", "examples").manifest.meta["parts"] > 1
    assert found[0].equals(found[1])
    expected: dict[str, float] = {}
    for _, item, time in world.train:
        days = (at(4) - time).total_seconds() / 86_400
        expected[item] = expected.get(item, 0.0) + 0.5 ** (days / HALF_LIFE)
    corpus = found[0].to_pydict()
    for item, recent in zip(corpus["item_id"], corpus["recent_count"], strict=True):
        assert recent == pytest.approx(expected.get(item, 0.0), abs=1e-5 * len(world.train))


def test_nobody_asks_and_nothing_is_written(tmp_path):
    world = World(tmp_path)
    spec = world.spec()
    run_steps(spec)
    assert "recent_count" not in outputs(spec)["items"].column_names
