"""Protects `tailtower plan`: a file is enough, options count, mistakes are named, sums add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.cli import main
from tasks.errors import ConfigError
from tasks.plan_command import amount, host_counts

CONFIG = str(Path(__file__).parents[2] / "conf/demo.yaml")


def _json(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["plan", "--config", CONFIG, "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_file_alone_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--config", CONFIG]) == 0
    shown = capsys.readouterr().err
    assert "table user: 1,000,000 rows are assumed" in shown
    for part in ("by number of hosts", "scores and loss", "exchanging rows", "tables", "GiB"):
        assert part in shown
    assert "1,000" in shown, "up to a thousand hosts"


def test_numbers_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(
        capsys, "--hosts", "6", "--rows", "user=2M", "--rows", "item=1M", "--price", "3.6"
    )
    assert [one["hosts"] for one in found["hosts"]] == [1, 2, 4, 6]
    assert set(found["assumed_rows"]) == {"category", "tag", "country", "interest"}
    first = found["hosts"][0]
    # Rows of the IDs, buckets and padding; widths of conf/demo.yaml.
    sizes = {
        "user": (2_000_000 + 64, 32),
        "item": (1_000_000 + 256, 32),
        "category": (1_000_000 + 1, 16),
        "tag": (1_000_000 + 16, 16),
        "country": (1_000_000 + 1, 8),
        "interest": (1_000_000 + 16, 16),
    }
    assert first["memory"]["tables"] == sum((n + 1) * d * 4 for n, d in sizes.values())
    for one in found["hosts"]:
        assert one["step_seconds"] == pytest.approx(sum(one["seconds"].values()))
        rate = one["examples_per_step"] / one["step_seconds"]
        assert one["examples_per_second"] == pytest.approx(rate)
        # 3.6 an hour is a thousandth a second.
        price = 1e-3 * one["hosts"] / rate * 1e6
        assert one["price_per_million_examples"] == pytest.approx(price)
        assert one["examples_per_step"] == 1024 * 4 * one["ranks"]


def test_options_count(capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--hosts", "8")
    plain = _json(capsys, *few)["hosts"]
    quick = _json(capsys, *few, "--flops", "450G", "--memory-bandwidth", "140G")["hosts"]
    assert quick[0]["step_seconds"] < 0.5 * plain[0]["step_seconds"]
    slow = _json(capsys, *few, "--link-bandwidth", "10M")["hosts"]
    assert slow[0] == plain[0]
    assert slow[-1]["efficiency"] < 0.5 * plain[-1]["efficiency"]
    spread = _json(capsys, *few, "--set", "tables.*.sharding=row_wise")["hosts"]
    assert spread[-1]["exchanged_bytes"] < plain[-1]["exchanged_bytes"]
    assert spread[-1]["memory"]["tables"] < plain[-1]["memory"]["tables"]
    crowded = _json(capsys, "--hosts", "1", "--ranks", "4", "--cores", "2")["hosts"]
    roomy = _json(capsys, "--hosts", "1", "--ranks", "4")["hosts"]
    assert crowded[0]["seconds"]["encoding"] == 2 * roomy[0]["seconds"]["encoding"]
    shorter = _json(capsys, *few, "--elements", "history=2")["hosts"]
    assert shorter[0]["seconds"]["encoding"] < plain[0]["seconds"]["encoding"]


@pytest.mark.parametrize(
    "wrong", [["--rows", "nobody=5M"], ["--rows", "user=many"], ["--elements", "user=3"]]
)
def test_mistakes_are_named(capsys: pytest.CaptureFixture[str], wrong: list[str]) -> None:
    assert main(["plan", "--config", CONFIG, *wrong]) == ConfigError.exit_code
    assert wrong[1].split("=")[-1 if "many" in wrong[1] else 0] in capsys.readouterr().err


def test_amounts_and_hosts() -> None:
    assert amount("1.5G") == 1.5e9
    assert amount("20M") == 2e7
    assert amount("7") == 7
    assert host_counts(1) == [1]
    assert host_counts(8) == [1, 2, 4, 8]
    assert host_counts(1000)[-3:] == [256, 512, 1000]


@pytest.mark.slow
@pytest.mark.integration
def test_a_machine_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [
        *("--rows", "user=2000", "--rows", "item=1000", "--rows", "category=50"),
        *("--rows", "tag=50", "--rows", "country=50", "--rows", "interest=50"),
    ]
    found = _json(capsys, "--measure", "--hosts", "2", *sizes)
    assert 1e7 < found["cluster"]["local_bandwidth"] < 1e12
    assert all(value > 0 for value in found["cluster"]["costs"].values())
    assert found["hosts"][0]["examples_per_second"] > 1000
