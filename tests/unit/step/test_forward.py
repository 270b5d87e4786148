"""What a forward pass starts from: the hooks' weights and statistics, and what they hold."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.toy import BATCH, SIZE, StatelessHook, ToyObjective, toy_batch, toy_loop, toy_network, values_of
from trainer.errors import UserError
from trainer.step.context import StepContext
from trainer.step.evaluate import Evaluator
from trainer.step.trainer import Trainer

MEAN = "toy/norm/moving_mean"


class Shift(StatelessHook):
    """Start from another moving mean."""

    def __init__(self, name: str = "shift", by: float = 1.0, *, evaluation_only: bool = False) -> None:
        super().__init__(name)
        self.by, self.evaluation_only = by, evaluation_only

    def transform_statistics(self, state, context):
        if self.evaluation_only and context.training:
            return state
        return {**state, MEAN: self.by * (state[MEAN] + 1.0)}


def read(*hooks: StatelessHook, training: bool = False):
    network = toy_network(dropout=0.5)
    trainer = Trainer([network], [ToyObjective()], hooks, seed=0)
    return network, trainer.forward(tf.constant(0, tf.int64), {}, objective="", training=training).passes["model"]


def test_statistics_pass_through_the_hooks_in_order_and_are_known_as_they_were_read() -> None:
    network, found = read(Shift("first", 2.0), Shift("second", 3.0))
    np.testing.assert_allclose(found.state[MEAN], np.full(8, 9.0))
    assert found.state.keys() == found.context.state.keys() == network.state_variables.keys()
    np.testing.assert_array_equal(found.context.state[MEAN], np.zeros(8))
    assert found.changed == set()


def test_without_a_hook_that_transforms_them_statistics_are_the_tensors_that_were_read() -> None:
    _, found = read(StatelessHook())
    assert all(found.state[name] is tensor for name, tensor in found.context.state.items())


def test_an_evaluation_uses_the_transformed_statistics_and_leaves_the_variables() -> None:
    network = toy_network()
    network.state_variables[MEAN].assign(np.linspace(-1, 1, 8))
    loop = toy_loop([Shift(evaluation_only=True)], network=network)
    before = values_of(network)
    found = Evaluator(loop.trainer, toy_batch, SIZE // BATCH).run(0)
    for name, value in values_of(network).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    network.state_variables[MEAN].assign(before[MEAN] + 1.0)
    plain = Trainer([network], [ToyObjective()], [], seed=0)
    assert found == Evaluator(plain, toy_batch, SIZE // BATCH).run(0)


def test_in_training_what_is_written_follows_from_the_transformed_statistics() -> None:
    plain, shifted = toy_network(), toy_network()
    shifted.model.set_weights(plain.model.get_weights())
    toy_loop(network=plain).run(0, 1)
    toy_loop([Shift()], network=shifted).run(0, 1)
    moved = shifted.state_variables[MEAN].numpy() - plain.state_variables[MEAN].numpy()
    np.testing.assert_allclose(moved, 0.99, rtol=1e-5)


@pytest.mark.parametrize("fault", ["name", "shape"])
def test_transformed_statistics_must_keep_names_and_shapes(fault: str) -> None:
    class Renamed(StatelessHook):
        def transform_statistics(self, state, context):
            return {} if fault == "name" else {name: value[..., :1] for name, value in state.items()}

    wrong = "must keep the names" if fault == "name" else "changed the shape of toy/norm/"
    with pytest.raises(ValueError, match=f"transform_statistics {wrong}") as caught:
        toy_loop([Renamed("wrong")])
    assert "in hook wrong, stage transform_statistics, while the step was traced" in caught.value.__notes__


class Hold(StatelessHook):
    """Hold some entries."""

    def __init__(self, name: str, held: dict) -> None:
        super().__init__(name)
        self.entries = held

    def held(self, context: StepContext):
        assert context.latent, "hooks find the values in the context"
        assert not context.training
        return {name: tf.constant(entries) for name, entries in self.entries.items()}


def test_entries_that_any_hook_holds_are_held() -> None:
    rows, columns = np.zeros((6, 8), bool), np.zeros((6, 8), bool)
    rows[:2], columns[:, 3] = True, True
    first = Hold("first", {"toy/hidden/kernel": rows, MEAN: False})
    second = Hold("second", {"toy/hidden/kernel": columns, "toy/logits/bias": True})
    _, found = read(first, second)
    held = {name: tensor.numpy() for name, tensor in found.context.held.items()}
    assert held.keys() == {"toy/hidden/kernel", MEAN, "toy/logits/bias"}
    np.testing.assert_array_equal(held["toy/hidden/kernel"], rows | columns)
    assert (bool(held[MEAN]), bool(held["toy/logits/bias"])) == (False, True)
    assert read(first, training=True)[1].context.held == {}


@pytest.mark.parametrize(
    ("held", "error", "message"),
    [
        ({"toy/hidden/kernl": True}, UserError, "Unknown variable 'toy/hidden/kernl'. Did you mean"),
        ({"toy/hidden/kernel": np.ones(8, bool)}, ValueError, r"gave toy/hidden/kernel the shape \(8,\). Expected"),
    ],
)
def test_held_entries_must_fit_a_variable(held: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        read(Hold("wrong", held))
    assert "in hook wrong, stage held, while the step was traced" in caught.value.__notes__


def test_a_hook_of_another_network_is_not_asked() -> None:
    first, second = toy_network("first"), toy_network("second", keras.optimizers.SGD(0.1))
    hook = Shift()
    hook.network = "second"
    second.fixed = True
    trainer = Trainer([first, second], [ToyObjective("first")], [hook], seed=0)
    passes = trainer.forward(tf.constant(0, tf.int64), {}, objective="", training=False).passes
    assert (passes["first"].state[MEAN].numpy() == 0.0).all()
    assert (passes["second"].state[MEAN].numpy() == 1.0).all()
