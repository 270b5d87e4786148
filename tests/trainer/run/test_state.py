"""The run's variables by key, and assigning them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import Declaration
from hookline.trainer.run.checkpoint_files import tensors_digest
from hookline.trainer.run.state import VariableValues, assign_variables, evaluation_keys, trainer_variables
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import StatelessHook, ToyObjective, toy_network

KERNEL = "network/model/toy/hidden/kernel"


class Stateful(StatelessHook):
    """Keep one variable."""

    count = None

    def declare(self):
        self.count = self.count if self.count is not None else tf.Variable([1.0, 2.0])
        return Declaration({"count": self.count})


def variables():
    network = toy_network(optimizer=keras.optimizers.Adam(), dropout=0.5)
    return trainer_variables(Trainer([network], [ToyObjective()], [Stateful("probe")], seed=0))


def values_of(variables):
    return dict(VariableValues(variables))


def test_every_kind_of_variable_has_a_key() -> None:
    keys = set(variables())
    assert {"hook/probe/count", "network/model/toy/norm/moving_mean"} <= keys
    assert any(key.startswith("network/model/") and key.endswith("seed_generator_state") for key in keys)
    assert any(key.startswith("optimizer/model/") and "momentum" in key for key in keys)
    assert "optimizer/model/iteration" in keys
    assert evaluation_keys(variables()) == {key for key in keys if key.startswith(("network/", "hook/"))}


def test_values_round_trip_and_are_copies_unless_they_are_read_late() -> None:
    first, second = variables(), variables()
    values = {key: value + 1 for key, value in values_of(first).items()}
    assign_variables(second, values, "there")
    for key, value in values_of(second).items():
        np.testing.assert_array_equal(value, values[key], err_msg=key)
    early, late = values_of(first), VariableValues(first)
    first["hook/probe/count"].assign([9.0, 9.0])
    assert (early["hook/probe/count"].tolist(), late["hook/probe/count"].tolist()) == ([1.0, 2.0], [9.0, 9.0])
    assert list(late) == list(first)
    assert tensors_digest(late) == tensors_digest(values_of(first))


def test_missing_variables_and_other_shapes_are_named_and_nothing_changes() -> None:
    some = variables()
    before = values_of(some)
    others = {key: value + 1 for key, value in before.items()}
    with pytest.raises(UserError, match=f"'{KERNEL}'.* \\[2, 2\\] in the old run, but \\[6, 8\\]"):
        assign_variables(some, {**others, KERNEL: np.zeros((2, 2), np.float32)}, "the old run")
    del others[KERNEL]
    with pytest.raises(UserError, match=f"the old run has no variable '{KERNEL}'"):
        assign_variables(some, others, "the old run")
    for key, value in values_of(some).items():
        np.testing.assert_array_equal(value, before[key])
