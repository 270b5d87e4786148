"""Which hooks of a run keep averages, and a config in which evaluations use them or not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hooks import catalogue
from scripts.averages import EMA, evaluate_averages, keeps_averages

EMA_NODE = {"_target_": EMA, "decay": 0.9, "evaluate": True, "network": "model"}
CONFIG: dict[str, Any] = {
    "seed": 0,
    "hooks": {"slow": EMA_NODE, "other": {**EMA_NODE, "network": "teacher"}, "prune": {"_target_": "p"}, "gone": None},
}


def test_the_hook_is_known_by_its_class() -> None:
    assert catalogue()["ema"].target == EMA


@pytest.mark.parametrize(("network", "found"), [("model", True), ("teacher", True), ("student", False)])
def test_averages_belong_to_a_network(network: str, found: bool) -> None:
    assert keeps_averages(CONFIG, network) == found
    assert not keeps_averages({"hooks": {"prune": CONFIG["hooks"]["prune"], "gone": None}}, network)


def test_pattern_of_networks_counts_for_each_that_matches() -> None:
    config = {"hooks": {"slow": {**EMA_NODE, "network": "gen*"}}}
    assert keeps_averages(config, "generator")
    assert not keeps_averages(config, "discriminator")
    changed = evaluate_averages(config, "generator", evaluate=False)
    assert changed["hooks"]["slow"] == {**EMA_NODE, "network": "gen*", "evaluate": False}


@pytest.mark.parametrize("evaluate", [True, False])
def test_the_choice_changes_for_one_network_in_a_copy(evaluate: bool) -> None:
    before = copy.deepcopy(CONFIG)
    changed = evaluate_averages(CONFIG, "model", evaluate=evaluate)
    assert before == CONFIG
    expected = {**before["hooks"], "slow": {**EMA_NODE, "evaluate": evaluate}}
    assert changed == {"seed": 0, "hooks": expected}
