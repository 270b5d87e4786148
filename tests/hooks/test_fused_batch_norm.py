"""Fused batch norm matches Keras wherever a model contains the layer, and leaves the model unchanged."""

from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.hooks.fused_batch_norm import FusedBatchNorm
from hookline.scripts.gradient_probe import compare_gradients
from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.step.context import StepContext
from hookline.trainer.step.evaluate import Evaluator
from tests.support.hooked import built, hooked
from tests.support.refusals import assert_refused
from tests.support.toy import build_context, toy_batch, toy_network

LAYER = keras.layers.BatchNormalization


def hook_of(model: keras.Model, **options) -> tuple[FusedBatchNorm, Network]:
    """Return the built hook, which fuses layers of any size, and its network."""
    hook = FusedBatchNorm(**{"min_entries": 0, **options})
    hook.name, hook.network = "fused_batch_norm", "model"
    network = Network("model", model, keras.optimizers.SGD(0.1))
    hook.build(build_context(network))
    return hook, network


def run(model: keras.Model, inputs: tf.Tensor, hook: GraphHook | None, network: Network, *, training: bool = True):
    """Return outputs, new state values, and the gradients of a loss for inputs and weights."""
    context = StepContext(tf.constant(0, tf.int64), 0, training, "objective", network, {})
    weights = [tf.convert_to_tensor(each.value) for each in model.trainable_variables]
    state = [tf.convert_to_tensor(each.value) for each in model.non_trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch([inputs, *weights])
        with hook.around_forward(context) if hook else tf.name_scope("plain"):
            outputs, new_state = model.stateless_call(weights, state, inputs, training=training)
        wide = tf.cast(outputs, tf.float32)
        loss = tf.reduce_sum(tf.sin(wide) * tf.random.stateless_normal(tf.shape(outputs), [1, 2]))
    return outputs, new_state, tape.gradient(loss, [inputs, *weights])


def assert_same(model: keras.Model, inputs: np.ndarray, tolerance: float = 2e-5, **options) -> FusedBatchNorm:
    """Compare a training and an evaluation pass with Keras; return the hook."""
    hook, network = hook_of(model, **options)
    for training in (True, False):
        found = run(model, tf.constant(inputs), hook, network, training=training)
        expected = run(model, tf.constant(inputs), None, network, training=training)
        for each, right in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
            assert each.dtype == right.dtype
            scale = max(1.0, float(np.abs(right).max()))
            np.testing.assert_allclose(np.float64(each), np.float64(right), rtol=0, atol=tolerance * scale)
    assert not any("call" in vars(layer) for layer in model._flatten_layers())
    return hook


def model_of(layer: keras.Layer, shape: tuple[int, ...], dtype: str = "float32") -> keras.Model:
    model = keras.Sequential([keras.Input(shape, dtype=dtype), layer])
    generator = np.random.default_rng(0)
    for variable in model.variables:
        variable.assign(generator.uniform(0.5, 1.5, variable.shape))
    return model


def inputs_of(*shape: int, mean: float = 1.0) -> np.ndarray:
    return np.random.default_rng(1).normal(mean, 2.0, shape).astype(np.float32)


@given(
    shape=st.tuples(st.lists(st.integers(2, 4), max_size=3), st.integers(1, 4)).map(lambda each: (*each[0], each[1])),
    batch=st.integers(1, 6),
    momentum=st.floats(0.0, 0.999),
    epsilon=st.sampled_from([1.1e-5, 1e-3, 0.5]),
    center=st.booleans(),
    scale=st.booleans(),
    half=st.sampled_from(["float32", "float32", "mixed_float16", "mixed_bfloat16"]),
)
@settings(max_examples=12)
def test_outputs_gradients_and_statistics_match_keras(shape, batch, momentum, epsilon, center, scale, half):
    layer = LAYER(momentum=momentum, epsilon=epsilon, center=center, scale=scale, dtype=half, name="norm")
    tolerance = {"float32": 2e-5, "mixed_float16": 4e-3, "mixed_bfloat16": 3e-2}[half]
    if batch == 1 and len(shape) == 1:
        tolerance *= 50  # x - mean is 0, and its rounding is divided by sqrt(epsilon)
    hook = assert_same(model_of(layer, shape), inputs_of(batch, *shape), tolerance)
    everything = {"fused": ["norm"], "left_to_keras": {}}
    assert hook.summary() == {"training": everything, "evaluation": everything}


class Block(keras.layers.Layer):
    """Contain a batch norm layer and call it twice."""

    def build(self, shape) -> None:
        self.norm = LAYER(momentum=0.5, name="norm")
        self.norm.build(shape)

    def call(self, inputs, training=None):
        return self.norm(tf.tanh(self.norm(inputs, training=training)), training=training)


def nested() -> keras.Model:
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), LAYER(name="norm")], name="inner")
    x = keras.Input((4,))
    return keras.Model(x, LAYER(name="outer")(Block(name="block")(inner(x))))


def test_nested_layers_are_fused_and_patterns_select_them():
    for options, fused in (({}, ["inner/norm", "block/norm", "outer"]), ({"layers": "outer"}, ["outer"])):
        hook = assert_same(nested(), inputs_of(8, 4), 1e-4, **options)
        assert sorted(hook.summary()["training"]["fused"]) == sorted(fused)
    assert assert_same(model_of(keras.layers.Dense(2), (3,)), inputs_of(4, 3)).summary() == {}
    assert_refused("outr", hook_of, nested(), layers="outr")
    assert_refused("min_entries", FusedBatchNorm, min_entries=-1)


class Shifted(LAYER):
    """A batch norm layer that overrides the computation."""

    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=training, mask=mask) + 1.0


def test_unsupported_layers_are_left_to_keras_and_listed():
    masked = keras.Sequential([keras.Input((3, 2)), keras.layers.Masking(), LAYER(name="norm")])
    for model, shape, reason in (
        (model_of(LAYER(axis=1, name="norm"), (3, 4, 2)), (4, 3, 4, 2), "axis 1"),
        (model_of(LAYER(renorm=True, name="norm"), (3,)), (4, 3), "renorm"),
        (model_of(LAYER(synchronized=True, name="norm"), (3,)), (4, 3), "synchronized"),
        (model_of(LAYER(epsilon=1e-5, name="norm"), (3,)), (4, 3), "epsilon"),
        (model_of(Shifted(name="norm"), (3,)), (4, 3), "Shifted"),
        (model_of(LAYER(name="norm", dtype="float64"), (3,)), (4, 3), "float64"),
        (masked, (4, 3, 2), "a mask"),
    ):
        inputs = inputs_of(*shape)
        inputs[0, 1:] *= reason != "a mask"
        summary = assert_same(model, inputs, 1e-12).summary()
        assert summary["training"] == summary["evaluation"]
        assert (summary["training"]["fused"], reason in summary["training"]["left_to_keras"]["norm"]) == ([], True)


def test_nontrainable_layer_uses_its_moving_statistics():
    layer = LAYER(name="norm", trainable=False)
    model = model_of(layer, (3, 3, 2))
    hook = assert_same(model, inputs_of(4, 3, 3, 2))
    assert hook.summary()["training"]["fused"] == ["norm"]
    _, new_state, _ = run(model, tf.constant(inputs_of(4, 3, 3, 2)), *hook_of(model))
    for variable, value in zip(model.non_trainable_variables, new_state, strict=True):
        np.testing.assert_array_equal(variable, value)


@pytest.mark.parametrize(("size", "jit"), [(None, False), (4, True)])
def test_unknown_batch_sizes_and_xla_are_left_to_keras(size: int | None, jit: bool):
    model = model_of(LAYER(name="norm"), (3,))
    hook, network = hook_of(model)

    def compute(inputs: tf.Tensor) -> tf.Tensor:
        inner = tf.function(lambda inputs: run(model, inputs, hook, network)[0], autograph=False)
        return inner.get_concrete_function(tf.TensorSpec(inputs.shape))(inputs)  # as a step in micro batches does

    tf.function(compute, [tf.TensorSpec([size, 3])], autograph=False, jit_compile=jit).get_concrete_function()
    assert list(hook.summary()["training"]["left_to_keras"]) == ["norm"]


def test_step_and_evaluation_contain_the_fused_kernels():
    hook, network = FusedBatchNorm(min_entries=0, network="model"), toy_network()
    loop = hooked(network, hook)
    step = Counter(operation.type for operation in loop.graph.get_operations())
    assert step["FusedBatchNormV3"] == step["FusedBatchNormGradV3"] == 1
    assert not {"Mean", "SquaredDifference", "Rsqrt", "RsqrtGrad"} & step.keys()
    evaluation = Evaluator(loop.trainer, toy_batch, 1)
    functions = evaluation.graph.as_graph_def().library.function
    assert Counter(node.op for each in functions for node in each.node_def)["FusedBatchNormV3"] == 1
    assert hook.summary()["evaluation"]["fused"] == ["norm"]
    without = Evaluator(built(network), toy_batch, 1)
    assert evaluation.run(0)["loss/total"] == pytest.approx(without.run(0)["loss/total"], rel=1e-6)
    (found,) = compare_gradients(loop.trainer, toy_batch)
    assert (found.surrogate, found.declared < 1e-5) == ("declared", True)
    small = hooked(toy_network(), FusedBatchNorm(network="model"))  # by default small layers stay with Keras
    assert not any(operation.type.startswith("FusedBatchNorm") for operation in small.graph.get_operations())
