"""The benchmark of skew trains what it says it does: bursts of a hot table and a hot ID come in
every eighth macro-batch, are blamed on that table, and cutting it into columns evens ranks out."""

import json

import numpy as np
import pytest
import torch

from benchmarks import skew
from models.reader import ExampleReader

ITEMS, BATCH = 3000, 32


@pytest.mark.parametrize("way", skew.WAYS.values())
def test_every_eighth_macro_batch_is_a_burst(tmp_path, way):
    files = skew.make_world(tmp_path, ITEMS, BATCH, 24)
    job = skew.job_of(tmp_path, files, ITEMS, BATCH, way, 2)
    assert job.tables["item"].sharding == way
    macros = list(ExampleReader(job, ITEMS).read())
    assert len(macros) == 24
    for macro in macros:
        (micro,) = macro.micro
        history = micro.local.users.history
        hot = float((history.values == 0).float().mean())
        if macro.step % skew.BURST_EVERY == 0:
            assert set(history.lengths.tolist()) == {skew.HISTORY}
            assert hot == 0.5
            others = history.values[history.values > 0]
            assert torch.unique(others).numel() > 0.6 * ITEMS * (1 - np.exp(-len(others) / ITEMS))
        else:
            assert set(history.lengths.tolist()) == {skew.CALM_HISTORY}
            assert hot < 0.5


@pytest.mark.slow
@pytest.mark.integration
def test_columns_even_the_ranks_out(tmp_path, capsys):
    skew.main(["--items", "3000", "--batch", "64", "--turns", "2", "--turn", "32"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    before, after = result["bytes_max_over_mean"]
    assert before > 1.5
    assert after < 1.2
    assert result["before"]["hot_row"] == 2
    assert result["before"]["hot_row_share_of_codes"] == pytest.approx(0.5, abs=0.05)
    assert 0 < result["deduplicated_over_all"] < 0.9
    assert ("hot table", "item") in [(f["cause"], f["table"]) for f in result["before"]["findings"]]
