"""The popularity that a prior adds: interactions weighted by age, against a loop over the log; the
same however the users are spread over parts."""

import pyarrow as pa
import pytest

from tasks.longtail import build_examples
from tests.tasks.longtail.raw_lake import (
    MODEL,
    at,
    day_of,
    events,
    run_steps,
    spec_of,
    write_partition,
)
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


def test_ages_of_a_split_of_the_rows_are_measured_from_its_last_train_row(tmp_path):
    """Test rows on later days make nothing older: the same counts as without them."""
    rows = [("a", 1, at(1)), ("b", 1, at(3)), ("b", 2, at(3)), ("a", 3, at(4)), ("b", 3, at(6))]
    for (number, role), some in {
        (1, "train"): rows[:1],
        (3, "train"): rows[1:3],
        (4, "test"): rows[3:4],
        (6, "test"): rows[4:],
    }.items():
        table = events(some).append_column("part", pa.array([role] * len(some)))
        write_partition(tmp_path, "interactions", number, table)
    data = {"split": "part", "allow_gaps": True}
    spec = spec_of(tmp_path, 6, data=data, model={**MODEL, "prior": {"half_life_days": 2}})
    days = tuple(map(day_of, (1, 3, 4, 6)))
    spec = spec.model_copy(update={"train_days": days, "test_days": days})
    run_steps(spec)
    corpus = outputs(spec)["items"].to_pydict()
    found = dict(zip(corpus["item_id"], corpus["recent_count"], strict=True))
    # Midnight of day 4: three days and one day after the events.
    assert found[1] == pytest.approx(0.5**1.5 + 0.5**0.5, abs=1e-5)
    assert found[2] == pytest.approx(0.5**0.5, abs=1e-5)
