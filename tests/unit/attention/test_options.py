"""Options of Bernoulli attention that are mappings: what is taken, and what is refused in one line."""

from __future__ import annotations

import keras
import pytest

from hooks.attention.options import (
    BranchOptions,
    KeepRate,
    Supervision,
    parse_branch,
    parse_keep_rate,
    parse_supervision,
)
from trainer.errors import UserError


def test_defaults_and_given_values():
    assert parse_branch("auto") == BranchOptions()
    assert parse_branch({"filters": [8, 4], "kernel_size": 5}) == BranchOptions((8, 4), 5, (1, 2))
    assert parse_branch({"filters": []}) == BranchOptions((), 3, ())
    layer = keras.layers.Conv2D(1, 1)
    assert parse_branch(layer) is layer
    assert parse_keep_rate(None) is None
    assert parse_keep_rate("auto") == KeepRate(0.5, 0.1)
    assert parse_keep_rate({"target": 0.25, "weight": 2}) == KeepRate(0.25, 2.0)
    assert parse_supervision(None) is None
    assert parse_supervision({}) == Supervision("map", 1.0, None)
    assert parse_supervision({"key": "box", "weight": 3, "epochs": 2}) == Supervision("box", 3.0, 2.0)


@pytest.mark.parametrize(
    ("parse", "value", "message"),
    [
        (parse_branch, "big", "Invalid branch: 'big'. Expected auto, such as"),
        (parse_branch, {"filter": [3]}, "Unknown key of branch 'filter'. Did you mean 'filters'?"),
        (parse_branch, {"filters": 16}, "Invalid branch.filters: 16. Expected a list of whole numbers"),
        (parse_branch, {"filters": [0]}, "Invalid branch.filters: 0"),
        (parse_branch, {"kernel_size": 2.5}, "Invalid branch.kernel_size: 2.5"),
        (parse_branch, {"filters": [3], "dilations": [1, 2]}, r"branch.dilations=\[1, 2\] received for filters=\[3\]"),
        (parse_branch, {"activation": "rellu"}, "Unknown branch.activation 'rellu'. Did you mean 'relu'?"),
        (parse_branch, {"initial_keep_rate": 1.0}, "Invalid branch.initial_keep_rate: 1.0. Expected a probability"),
        (parse_keep_rate, 0.3, "Invalid keep_rate: 0.3. Expected a mapping with target, weight"),
        (parse_keep_rate, {"weight": 1.0}, "has no target. Expected such as {target: 0.3"),
        (parse_keep_rate, {"target": 0.0}, "Invalid keep_rate.target: 0.0"),
        (parse_keep_rate, {"target": 0.3, "weight": 0}, "Invalid keep_rate.weight: 0"),
        (parse_keep_rate, {"rate": 0.3}, "Unknown key of keep_rate 'rate'"),
        (parse_supervision, "map", "Invalid supervision: 'map'. Expected a mapping with key, weight, epochs"),
        (parse_supervision, {"key": 3}, "Invalid supervision.key: 3"),
        (parse_supervision, {"epochs": 0}, "Invalid supervision.epochs: 0"),
        (parse_supervision, {"weight": -1.0}, "Invalid supervision.weight: -1.0"),
    ],
)
def test_bad_values_are_refused(parse, value, message: str):
    with pytest.raises(UserError, match=message):
        parse(value)
