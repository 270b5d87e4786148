"""Options of Bernoulli attention that are mappings: what is taken, and what is refused in one line."""

from __future__ import annotations

import keras
import pytest

from hookline.hooks.attention import options
from hookline.trainer.errors import UserError


def test_defaults_and_given_values():
    assert options.parse_branch("auto") == options.BranchOptions()
    assert options.parse_branch({"filters": [8, 4], "kernel_size": 5}) == options.BranchOptions((8, 4), 5, (1, 2))
    assert options.parse_branch({"filters": []}) == options.BranchOptions((), 3, ())
    layer = keras.layers.Conv2D(1, 1)
    assert options.parse_branch(layer) is layer
    assert options.parse_keep_rate(None) is None
    assert options.parse_keep_rate("auto") == options.KeepRate(0.5, 0.1)
    assert options.parse_keep_rate({"target": 0.25, "weight": 2}) == options.KeepRate(0.25, 2.0)
    assert options.parse_supervision(None) is None
    assert options.parse_supervision({}) == options.Supervision("map", 1.0, None)
    assert options.parse_supervision({"key": "box", "weight": 3, "epochs": 2}) == options.Supervision("box", 3.0, 2.0)


def test_wrong_values_are_refused_by_name():
    for parse, value, word in (
        (options.parse_branch, "big", "branch"),
        (options.parse_branch, {"filter": [3]}, "filter"),
        (options.parse_branch, {"filters": [0]}, "branch.filters"),
        (options.parse_branch, {"filters": [3], "dilations": [1, 2]}, "branch.dilations"),
        (options.parse_branch, {"activation": "rellu"}, "branch.activation"),
        (options.parse_branch, {"initial_keep_rate": 1.0}, "branch.initial_keep_rate"),
        (options.parse_keep_rate, {"weight": 1.0}, "target"),
        (options.parse_keep_rate, {"target": 0.0}, "keep_rate.target"),
        (options.parse_supervision, "map", "supervision"),
        (options.parse_supervision, {"epochs": 0}, "supervision.epochs"),
    ):
        with pytest.raises(UserError, match=word):
            parse(value)
