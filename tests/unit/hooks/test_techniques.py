"""Which hooks are the technique of a run."""

from __future__ import annotations

import pytest

from hooks.techniques import technique_hooks
from trainer.config.command import Command
from trainer.config.preflight import preflight


def test_monitors_removed_hooks_and_those_of_every_run_are_none():
    hooks = {
        "prune": {"_target_": "hooks.prune.Prune"},
        "split_guard": {"_target_": "hooks.monitors.split_guard.SplitGuard"},
        "fused_batch_norm": {"_target_": "hooks.fused_batch_norm.FusedBatchNorm"},
        "noise": {"_target_": "my_hooks.WeightNoise"},
        "ema": None,
    }
    assert list(technique_hooks(hooks)) == ["prune", "noise"]


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [("baseline", set()), ("bnn", {"bnn_rounding"}), ("frozen_mask", {"prune", "frozen_mask"}), ("gan", {"ema"})],
)
def test_recipes_have_their_technique(recipe, expected):
    (job,) = preflight(Command((f"recipe={recipe}",)))
    assert set(technique_hooks(job.config["hooks"])) == expected
