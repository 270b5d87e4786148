"""A hook finds its own values in a report under the names that it gave."""

from __future__ import annotations

from tests.support.toy import StatelessHook, ToyObjective
from trainer.run.own_values import own_values

VALUES = {
    "first/g/ema/distance": 1.0,
    "first/d/ema/distance": 2.0,
    "first/loss/g/center": 3.0,
    "second/d/ema/distance": 4.0,
    "second/metric/d/within": 5.0,
    "opt/learning_rate": 6.0,
}


class Named(ToyObjective):
    """An objective that changes some networks."""

    def __init__(self, name, *changes):
        self.name, self.changes = name, changes


OBJECTIVES = [Named("first", "g", "d"), Named("second", "d")]


def hook(name, network, objective="*"):
    found = StatelessHook(name)
    found.network, found.objective = network, objective
    return found


def test_prefixes_of_objective_and_network_are_left_out():
    (view,) = own_values(hook("ema@g", "g"), VALUES, OBJECTIVES)
    assert view == {**VALUES, "ema/distance": 1.0, "loss/center": 3.0}


def test_each_objective_that_the_hook_takes_part_in_is_a_view():
    first, second = own_values(hook("ema@d", "d"), VALUES, OBJECTIVES)
    assert first["ema/distance"] == 2.0
    assert second["ema/distance"] == 4.0
    assert second["metric/within"] == 5.0
    assert own_values(hook("ema@d", "d", "sec*"), VALUES, OBJECTIVES) == [second]


def test_only_instance_of_the_only_objective_sees_the_report_as_it_is():
    values = {"ema/distance": 1.0, "loss/total": 2.0, "metric/accuracy": 0.5}
    assert own_values(hook("ema", "model"), values, [ToyObjective()]) == [values]
