"""A run is fixed once: same day and settings, same run; days never leak across the cut."""

from datetime import date

import pytest

from tasks.config_file import load_config
from tasks.errors import ConfigError, NothingToDoError, UpstreamError
from tasks.lake import Lake
from tasks.resolve_run import resolve
from tasks.run_spec import load_run_spec
from tasks.version import PROJECT_ROOT


@pytest.fixture
def config(tmp_path, mlflow_uri):
    def make(*overrides):
        return load_config(
            PROJECT_ROOT / "conf" / "demo.yaml",
            [
                f"lake={tmp_path / 'lake'}",
                f"tracking.uri={mlflow_uri}",
                *overrides,
            ],
        )

    return make


def _days(config, *days):
    lake = Lake(config.lake)
    for day in days:
        lake.write_text(f"raw/interactions/dt=2026-01-{day:02d}/_SUCCESS", "")


def test_trains_before_the_day_and_tests_on_it(config):
    settings = config("data.window_days=3")
    _days(settings, 1, 2, 3, 4, 5, 6)
    spec = resolve(settings, date(2026, 1, 6))
    assert [d.day for d in spec.train_days] == [3, 4, 5]
    assert [d.day for d in spec.test_days] == [6]
    assert resolve(settings).day == date(2026, 1, 6)


def test_longer_test_windows_and_gaps(config):
    settings = config("data.window_days=9", "data.test_days=2", "data.allow_gaps=true")
    _days(settings, 1, 2, 5, 6)
    spec = resolve(settings, date(2026, 1, 6))
    assert [d.day for d in spec.train_days] == [1, 2]
    assert [d.day for d in spec.test_days] == [5, 6]
    waiting = config("data.window_days=9", "data.test_days=2")
    assert [d.day for d in resolve(waiting, date(2026, 1, 6)).train_days] == [1, 2, 3, 4]


def test_same_day_and_settings_are_the_same_run(config):
    settings = config()
    _days(settings, 1, 2, 3)
    first = resolve(settings, date(2026, 1, 3))
    assert resolve(settings, date(2026, 1, 3)) == first
    assert load_run_spec(first.uri) == first
    other = resolve(config("training.epochs=9"), date(2026, 1, 3))
    assert other.run_id != first.run_id
    forced = resolve(settings, date(2026, 1, 3), force=True)
    assert forced.run_id == f"{first.run_id}-2"
    assert resolve(settings, date(2026, 1, 3), force=True).run_id == f"{first.run_id}-3"


def test_nothing_to_train_on_is_said(config):
    settings = config()
    with pytest.raises(NothingToDoError, match="holds no interactions"):
        resolve(settings)
    _days(settings, 1)
    with pytest.raises(ConfigError, match="no day to train on") as caught:
        resolve(settings, date(2026, 1, 1))
    assert "2026-01-02" in str(caught.value)
    with pytest.raises(NothingToDoError, match="ends 11 days before 2026-01-12"):
        resolve(settings, date(2026, 1, 12))


def test_missing_upstream_and_run_spec_are_named(config):
    settings = config()
    _days(settings, 1, 2)
    spec = resolve(settings)
    with pytest.raises(UpstreamError, match="'count' has not finished"):
        spec.require("count")
    with pytest.raises(ConfigError, match="no run spec there"):
        load_run_spec(spec.uri + ".bak")
