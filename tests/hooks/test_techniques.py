"""Which hooks are the technique of a run."""

from __future__ import annotations

from hookline.hooks.techniques import technique_hooks


def test_monitors_removed_hooks_and_those_of_every_run_are_none():
    hooks = {
        "prune": {"_target_": "hookline.hooks.prune.Prune"},
        "split_guard": {"_target_": "hookline.hooks.monitors.split_guard.SplitGuard"},
        "fused_batch_norm": {"_target_": "hookline.hooks.fused_batch_norm.FusedBatchNorm"},
        "noise": {"_target_": "my_hooks.WeightNoise"},
        "ema": None,
    }
    assert list(technique_hooks(hooks)) == ["prune", "noise"]
