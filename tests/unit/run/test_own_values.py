"""A hook finds its own values in a report under the names that it gave."""

from __future__ import annotations

from hookline.trainer.run.control import own_values
from tests.support.toy import StatelessHook, ToyObjective

VALUES = {
    "first/g/ema/distance": 1.0,
    "first/d/ema/distance": 2.0,
    "first/loss/g/center": 3.0,
    "second/d/ema/distance": 4.0,
    "second/metric/d/within": 5.0,
    "opt/learning_rate": 6.0,
}


def objective(name, *changes):
    found = ToyObjective()
    found.name, found.trains = name, changes
    return found


OBJECTIVES = [objective("first", "g", "d"), objective("second", "d")]


def hook(name, network, objective="*"):
    found = StatelessHook(name)
    found.network, found.objective = network, objective
    return found


def test_prefixes_are_left_out_and_each_objective_is_a_view():
    (view,) = own_values(hook("ema@g", "g"), VALUES, OBJECTIVES)
    assert view == {**VALUES, "ema/distance": 1.0, "loss/center": 3.0}
    first, second = own_values(hook("ema@d", "d"), VALUES, OBJECTIVES)
    assert first == {**VALUES, "ema/distance": 2.0}
    assert second == {**VALUES, "ema/distance": 4.0, "metric/within": 5.0}
    assert own_values(hook("ema@d", "d", "sec*"), VALUES, OBJECTIVES) == [second]
    values = {"ema/distance": 1.0, "loss/total": 2.0, "metric/accuracy": 0.5}
    assert own_values(hook("ema", "model"), values, [ToyObjective()]) == [values]
