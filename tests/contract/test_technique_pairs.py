"""Every pair of technique hooks trains together, or says in one line why it cannot."""

from __future__ import annotations

import itertools
import json
import math

import pytest

from hookline.hooks import catalogue, load
from hookline.trainer.errors import UserError
from hookline.trainer.hook import GraphHook
from tests.support.command import overrides_for, run_small

EVERYWHERE = {"fused_batch_norm", "nan_guard"}  # every run has them, so every pair trains beside them
TECHNIQUES = [name for name in sorted(catalogue()) if issubclass(load(name), GraphHook) and name not in EVERYWHERE]
SYNCHRONIZED = "synchronized_batch_norm"  # takes the layers in training: the kernel has those of evaluations
FUSED = ("hooks.fused_batch_norm.min_entries=0",)  # these networks are too small for it otherwise
PAIRS = list(itertools.combinations(TECHNIQUES, 2))
INTERACTING = {
    *(("bernoulli_attention", "bnn_rounding"), ("bernoulli_attention", "prune"), ("bnn_rounding", "ema")),
    *(("bnn_rounding", "incremental_quantization"), ("bnn_rounding", "prune"), ("ema", "freeze_layers")),
    *(("ema", "frozen_mask"), ("ema", "incremental_quantization"), ("ema", "synchronized_batch_norm")),
    *(("incremental_quantization", "prune"), ("bnn_rounding", "quantization_aware_training")),
}
"""Pairs that work on the same weights or statistics; tests/resume and tests/hookline/test_running.py have others."""


def cases():
    for pair in PAIRS:
        yield pytest.param(*pair, id="+".join(pair), marks=[] if pair in INTERACTING else [pytest.mark.long])


@pytest.mark.parametrize(("first", "second"), list(cases()))
def test_pair_trains_together_or_says_why_not(first, second, tmp_path):
    overrides = [f"+hooks=[{first},{second}]", *overrides_for(first, second), *FUSED, "hooks.tensorboard=null"]
    refusal = ""
    try:
        summary = run_small("baseline", *overrides, run_dir=tmp_path / "run")
    except UserError as error:
        refusal = str(error)
    if refusal:
        assert "\n" not in refusal
        assert first in refusal or second in refusal
        assert not (tmp_path / "run").exists()
        return
    assert summary["status"] == "completed"
    assert {first, second, *EVERYWHERE} <= set(summary["hooks"])
    normalizing = summary["hooks"].get(SYNCHRONIZED) or summary["hooks"]["fused_batch_norm"]["training"]
    assert normalizing["layers" if SYNCHRONIZED in (first, second) else "fused"]
    assert all(math.isfinite(value) for value in summary["final"].values())
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["test"] == summary["test"]
