"""Which hooks of a run keep averages, and a config in which evaluations use them or not."""

from __future__ import annotations

import copy

from hookline.hooks import catalogue
from hookline.scripts.averages import EMA, evaluate_averages, keeps_averages

NODE = {"_target_": EMA, "decay": 0.9, "evaluate": True, "network": "model"}
HOOKS = {"slow": NODE, "others": {**NODE, "network": "gen*"}, "prune": {"_target_": "p"}, "gone": None}


def test_averages_belong_to_networks_and_the_choice_changes_in_a_copy() -> None:
    assert catalogue()["ema"].target == EMA
    config = {"seed": 0, "hooks": HOOKS}
    before = copy.deepcopy(config)
    assert [keeps_averages(config, name) for name in ("model", "generator", "student")] == [True, True, False]
    for network, hook in (("model", "slow"), ("generator", "others")):
        changed = evaluate_averages(config, network, evaluate=False)
        assert changed == {"seed": 0, "hooks": {**HOOKS, hook: {**HOOKS[hook], "evaluate": False}}}
    assert config == before
