"""A network as a plain Keras model: refused where it could not load, or would not be the same."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.masking import masked_loop, small_network
from tests.support.toy import StatelessHook, toy_network
from trainer.errors import UserError
from trainer.hook import Tensors
from trainer.run.finished import FinishedRun
from trainer.run.plain_model import assigned, check_plain, compare, save_plain_model, strip_model
from trainer.run.precision import computing_in
from trainer.step.context import StepContext
from trainer.step.evaluate import Evaluator
from trainer.step.trainer import Trainer

layers = keras.layers


class Double(layers.Layer):
    """Double its input."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return 2.0 * inputs


def double(x: tf.Tensor) -> tf.Tensor:
    return 2.0 * x


def with_layer(layer: keras.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(3, name="dense"), layer], name="net")


class Subclassed(keras.Model):
    """Be no functional model."""

    def __init__(self) -> None:
        super().__init__(name="own")
        self.dense = layers.Dense(3)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.dense(inputs)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: with_layer(Double(name="twice")), "twice (Double)"),
        (lambda: with_layer(layers.Activation(double, name="activation")), "double"),
        (lambda: with_layer(layers.Lambda(double, name="lambda")), "double"),
        (lambda: keras.Sequential([keras.Input((4,)), with_layer(Double(name="twice"))], name="net"), "twice (Double)"),
        (Subclassed, "own (Subclassed)"),
    ],
)
def test_what_is_not_of_keras_is_named(make, named: str):
    with pytest.raises(UserError, match="A plain Keras model holds parts of Keras alone.") as caught:
        check_plain(make())
    assert f"also has: {named}." in str(caught.value)


@pytest.mark.parametrize(
    "layer",
    [
        layers.Activation("relu"),
        layers.Activation(keras.activations.gelu),
        layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.1), kernel_initializer="he_normal"),
        layers.Bidirectional(layers.LSTM(2)),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_what_is_of_keras_is_taken(layer: keras.Layer):
    reshaped = [layers.Reshape((3, 1))] if isinstance(layer, layers.Bidirectional) else []
    check_plain(keras.Sequential([keras.Input((4,)), layers.Dense(3), *reshaped, layer]))


def test_assigned_values_are_taken_back_even_when_the_block_fails():
    network = toy_network()
    before = {name: variable.numpy() for name, variable in network.variables.items()}
    name = "toy/hidden/kernel"

    def failing() -> None:
        with assigned(network, {name: np.full((6, 8), 3.0)}):
            assert (network.variables[name].numpy() == 3.0).all()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    for key, variable in network.variables.items():
        np.testing.assert_array_equal(variable.numpy(), before[key])


class Halve(StatelessHook):
    """Use half of every weight."""

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        return {name: 0.5 * value for name, value in weights.items()}


class Wrap(StatelessHook):
    """Put an activation behind the model, and take it away again."""

    def __init__(self, name: str, order: list[str]) -> None:
        super().__init__(name)
        self.order = order

    def strip_model(self, model: keras.Model) -> keras.Model:
        self.order.append(self.name)
        return model


def finished(*hooks: StatelessHook) -> FinishedRun:
    from tests.support.toy import toy_batch

    loop = masked_loop(hooks, small_network(keras.optimizers.SGD(0.1)))

    class Parts:
        trainer = loop.trainer
        test = Evaluator(loop.trainer, lambda index: {**toy_batch(index), "weights": tf.ones([16])}, 4)

    return FinishedRun(Parts(), "last", 7)  # type: ignore[arg-type]


def test_the_file_holds_what_evaluation_uses_and_the_run_is_left_as_it_was(tmp_path: Path):
    run = finished(Halve())
    network = run.parts.trainer.networks["model"]
    before = {name: variable.numpy() for name, variable in network.variables.items()}
    save_plain_model(run, "model", tmp_path / "a.keras")
    loaded = keras.saving.load_model(tmp_path / "a.keras")
    for weight in loaded.weights:
        np.testing.assert_array_equal(weight.numpy(), 0.5 * before[weight.path])
    for name, variable in network.variables.items():
        np.testing.assert_array_equal(variable.numpy(), before[name])
    assert compare(run, "model", loaded) == {"metric/accuracy": run.parts.test.run(7)["metric/accuracy"]}


def test_a_run_in_half_precision_ships_a_model_in_float32_that_is_compared_in_its_own(tmp_path: Path):
    with computing_in("bfloat16"):
        run = finished()
    path = tmp_path / "a.keras"
    save_plain_model(run, "model", path)
    loaded = keras.saving.load_model(path)
    own = run.parts.trainer.networks["model"].model
    assert {layer.compute_dtype for layer in own.layers} == {"bfloat16"}
    assert {layer.compute_dtype for layer in loaded.layers} == {"float32"}
    metrics = compare(run, "model", loaded)
    assert metrics["metric/accuracy"] == pytest.approx(run.parts.test.run(7)["metric/accuracy"], abs=0.05)
    loaded.get_layer("logits").kernel.assign(-loaded.get_layer("logits").kernel)
    with pytest.raises(UserError, match="a hook changes what evaluation sees"):
        compare(run, "model", loaded)


def test_hooks_take_out_what_they_put_in_the_other_way_round():
    order: list[str] = []
    run = finished(Wrap("first", order), Wrap("second", order))
    assert [hook.name for hook in run.parts.trainer.hooks] == ["first", "second"]
    assert strip_model(run.parts.trainer, "model") is run.parts.trainer.networks["model"].model
    assert order == ["second", "first"]


def test_a_model_that_is_not_as_good_as_the_run_is_refused(tmp_path: Path):
    run = finished()
    save_plain_model(run, "model", tmp_path / "a.keras")
    loaded = keras.saving.load_model(tmp_path / "a.keras")
    compare(run, "model", loaded)
    kernel = loaded.get_layer("logits").kernel
    kernel.assign(-kernel.numpy())
    with pytest.raises(UserError, match=r"The plain model has metric/accuracy=.* but the run has .* a hook changes"):
        compare(run, "model", loaded)


def test_an_unwritable_place_is_one_line(tmp_path: Path):
    with pytest.raises(UserError, match=r"a\.keras cannot be written: .* Expected a place that can\."):
        save_plain_model(finished(), "model", tmp_path / "absent" / "a.keras")


def test_the_evaluation_of_another_trainer_is_of_the_same_split():
    run = finished()
    trainer = run.parts.trainer
    other = Trainer(list(trainer.networks.values()), trainer.objectives, [], seed=0)
    assert run.parts.test.of(other).run(7) == run.parts.test.run(7)
