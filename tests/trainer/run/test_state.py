"""The run's variables by key, assigning them, and the answers of hooks after training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import Declaration
from hookline.trainer.run.state import assign_variables, evaluation_keys, trainer_variables, values_by_key
from hookline.trainer.step.trainer import Trainer
from tests.support.refusals import assert_refused
from tests.support.toy import StatelessHook, ToyObjective, toy_network

KERNEL = "network/model/toy/hidden/kernel"


class Stateful(StatelessHook):
    count = None

    def declare(self):
        self.count = self.count if self.count is not None else tf.Variable([1.0, 2.0])
        return Declaration({"count": self.count})


def variables():
    network = toy_network(optimizer=keras.optimizers.Adam(), dropout=0.5)
    return trainer_variables(Trainer([network], [ToyObjective()], [Stateful("probe")], seed=0))


def test_every_kind_of_variable_has_a_key_and_values_round_trip():
    first, second = variables(), variables()
    keys = set(first)
    assert {"hook/probe/count", "network/model/toy/norm/moving_mean", "optimizer/model/iteration"} <= keys
    assert any(key.startswith("network/model/") and key.endswith("seed_generator_state") for key in keys)
    assert any(key.startswith("optimizer/model/") and "momentum" in key for key in keys)
    assert evaluation_keys(first) == {key for key in keys if key.startswith(("network/", "hook/"))}
    values = {key: value + 1 for key, value in values_by_key(first).items()}
    assign_variables(second, values, "there")
    np.testing.assert_equal(values_by_key(second), values)
    early = values_by_key(first)
    first["hook/probe/count"].assign([9.0, 9.0])
    assert early["hook/probe/count"].tolist() == [1.0, 2.0]


def test_missing_variables_and_other_shapes_are_named_and_nothing_changes():
    some = variables()
    before = values_by_key(some)
    others = {key: value + 1 for key, value in before.items()}
    with pytest.raises(UserError, match=f"'{KERNEL}'.* \\[2, 2\\] in the old run, but \\[6, 8\\]"):
        assign_variables(some, {**others, KERNEL: np.zeros((2, 2), np.float32)}, "the old run")
    del others[KERNEL]
    assert_refused(f"the old run has no variable '{KERNEL}'", assign_variables, some, others, "the old run")
    np.testing.assert_equal(values_by_key(some), before)
