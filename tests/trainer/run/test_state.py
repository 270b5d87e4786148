"""Variables by key, fingerprints of data and tensors, and state that no checkpoint contains."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import Declaration
from hookline.trainer.input.data import ArraySource, Split
from hookline.trainer.run.checkpoint_files import tensors_digest
from hookline.trainer.run.state import (
    SAMPLES,
    assign_variables,
    data_fingerprint,
    refuse_unsaved_state,
    trainer_variables,
    unrepeatable,
    values_by_key,
)
from hookline.trainer.step.trainer import Trainer
from tests.support.refusals import assert_refused
from tests.support.toy import CountingHook, StatelessHook, ToyObjective, toy_loop, toy_network

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
    values = {key: value + 1 for key, value in values_by_key(first).items()}
    assign_variables(second, values, "there")
    np.testing.assert_equal(values_by_key(second), values)
    early = values_by_key(first)
    first["hook/probe/count"].assign([9.0, 9.0])
    assert early["hook/probe/count"].tolist() == [1.0, 2.0]


def test_missing_variables_and_wrong_shapes_are_refused_and_nothing_changes():
    some = variables()
    before = values_by_key(some)
    others = {key: value + 1 for key, value in before.items()}
    with pytest.raises(UserError, match=f"'{KERNEL}'.* \\[2, 2\\] in the old run, but \\[6, 8\\]"):
        assign_variables(some, {**others, KERNEL: np.zeros((2, 2), np.float32)}, "the old run")
    del others[KERNEL]
    assert_refused(f"the old run has no variable '{KERNEL}'", assign_variables, some, others, "the old run")
    np.testing.assert_equal(values_by_key(some), before)


def fingerprint(name="train", size=10, rows=None, change=None):
    inputs = np.arange(size * 3, dtype=np.float32).reshape(size, 3)
    if change is not None:
        inputs[change] += 1.0
    source = ArraySource({"inputs": inputs, "targets": np.arange(size) % 4}, lambda batch: batch)
    return data_fingerprint([Split(name, source, np.array(range(size) if rows is None else rows, np.int64))])


def test_different_data_has_a_different_fingerprint_even_if_sampled():
    others = [{"change": (4, 2)}, {"rows": [1, 0, *range(2, 10)]}, {"rows": range(9)}, {"size": 11, "rows": range(10)}]
    found = {fingerprint(**other) for other in [*others, {"name": "validation"}, {}]}
    assert len(found) == 6
    assert fingerprint() in found
    size = 100 * SAMPLES
    ends = [None, (0, 0), (size - 1, 2)]
    assert len({fingerprint(size=size, change=change) for change in ends}) == 3


def test_digest_distinguishes_names_dtypes_shapes_and_bits():
    base = {"a": np.array([1.0, 2.0], np.float32), "b": np.array(3)}
    assert tensors_digest(base) == tensors_digest(dict(reversed(base.items())))
    changed = [base["a"].astype(np.float64), base["a"][None], np.nextafter(base["a"], np.float32(9)), base["a"] * -1]
    others = [{"a": base["a"], "c": base["b"]}, *({**base, "a": each} for each in changed)]
    zeros = [{"a": np.array([zero], np.float32)} for zero in (0.0, -0.0)]
    assert len({tensors_digest(each) for each in [base, *others, *zeros]}) == 8


class Draws(StatelessHook):
    def build(self, context):
        self.generator = tf.random.Generator.from_seed(0)

    def transform_gradients(self, gradients, context):
        return {name: value + self.generator.normal(value.shape) for name, value in gradients.items()}


class Counts(ToyObjective):
    def compute(self, forward, batch):
        self.count.assign_add(1.0)
        return super().compute(forward, batch)


def test_state_written_by_a_step_but_in_no_checkpoint_is_reported():
    writes = "'own@model' writes a variable at 'transform_gradients/own_model/.*Rng.* `state`"
    assert_refused(writes, refuse_unsaved_state, toy_loop([Draws("own@model")]))
    objective = Counts()
    objective.count = tf.Variable(0.0, trainable=False)
    loop = toy_loop(objectives=[objective])
    refuse_unsaved_state(loop)  # it belongs to no hook
    (wrote,) = unrepeatable(loop)
    assert "variable at 'losses/AssignAddVariableOp' that no checkpoint holds" in wrote


def test_nothing_is_reported_if_the_checkpoint_contains_everything():
    optimizer = keras.optimizers.Adam(use_ema=True, ema_overwrite_frequency=2)
    network = toy_network(optimizer=keras.optimizers.LossScaleOptimizer(optimizer), dropout=0.5)
    loop = toy_loop([CountingHook("own")], network=network, accumulation_steps=2)
    refuse_unsaved_state(loop)
    assert unrepeatable(loop) == []
