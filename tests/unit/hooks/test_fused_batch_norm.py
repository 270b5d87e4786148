"""Fused batch norm: what Keras computes, wherever a model holds the layer, and nothing of the model changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks.fused_batch_norm import FusedBatchNorm
from hooks.gradients.op_types import override_ops
from hooks.normalization.fused_call import calls_replaced
from hooks.normalization.fused_layers import why_call_stays
from tests.support.toy import BATCH, ToyObjective, build_context, toy_batch, toy_loop, toy_model, toy_network, values_of
from tests.support.two_networks import NAMES, fresh, traced_loop
from trainer.errors import UserError
from trainer.hook import GraphHook
from trainer.network import Network
from trainer.ops.backwards import identity
from trainer.step.context import StepContext
from trainer.step.evaluate import Evaluator
from trainer.step.gradient_probe import compare_gradients

LAYER = keras.layers.BatchNormalization
STEPS = 30
OF_KERAS = {"Mean", "SquaredDifference", "StopGradient", "Rsqrt", "RsqrtGrad"}


def hook_of(model: keras.Model, **options) -> tuple[FusedBatchNorm, Network]:
    """Return the built hook, which leaves nothing to Keras for its size, and its network."""
    hook = FusedBatchNorm(**{"min_entries": 0, **options})
    hook.name, hook.network = "fused_batch_norm", "model"
    network = Network("model", model, keras.optimizers.SGD(0.1))
    hook.build(build_context(network))
    return hook, network


def run(model: keras.Model, inputs: tf.Tensor, hook: GraphHook | None, network: Network, *, training: bool = True):
    """Return outputs, new state values, and the gradients of inputs and weights of a loss."""
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
    """Compare a training and an evaluation pass with those of Keras; return the hook."""
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
@settings(max_examples=30)
def test_outputs_gradients_and_statistics_are_those_of_keras(shape, batch, momentum, epsilon, center, scale, half):
    layer = LAYER(momentum=momentum, epsilon=epsilon, center=center, scale=scale, dtype=half, name="norm")
    tolerance = {"float32": 2e-5, "mixed_float16": 4e-3, "mixed_bfloat16": 3e-2}[half]
    if batch == 1 and len(shape) == 1:
        tolerance *= 50  # x - mean is 0, and its rounding is divided by sqrt(epsilon)
    hook = assert_same(model_of(layer, shape), inputs_of(batch, *shape), tolerance)
    everything = {"fused": ["norm"], "left_to_keras": {}}
    assert hook.summary() == {"training": everything, "evaluation": everything}


def test_new_statistics_come_from_the_biased_variance():
    model = model_of(LAYER(momentum=0.0, name="norm"), (2,))
    hook, network = hook_of(model)
    inputs = np.array([[1.0, 2.0], [3.0, 8.0]], np.float32)
    _, (mean, variance), _ = run(model, tf.constant(inputs), hook, network)
    np.testing.assert_allclose(mean, [2.0, 5.0], rtol=1e-6)
    np.testing.assert_allclose(variance, [1.0, 9.0], rtol=1e-6)  # the kernel itself returns 2 and 18


class Block(keras.layers.Layer):
    """A layer that holds a batch norm layer and calls it twice."""

    def __init__(self, **options) -> None:
        """Make the layers."""
        super().__init__(**options)
        self.norm = LAYER(momentum=0.5, name="norm")

    def build(self, shape) -> None:
        """Build the layers."""
        self.norm.build(shape)

    def call(self, inputs, training=None):
        """Return inputs normalized twice."""
        return self.norm(tf.tanh(self.norm(inputs, training=training)), training=training)


class Subclassed(keras.Model):
    """A subclassed model."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.block, self.last = Block(name="block"), keras.layers.Dense(2, name="last")

    def call(self, inputs, training=None):
        """Return outputs."""
        return self.last(self.block(inputs, training=training))


def subclassed() -> keras.Model:
    model = Subclassed()
    model(tf.zeros([2, 4]))
    return model


def nested() -> keras.Model:
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), LAYER(name="norm")], name="inner")
    x = keras.Input((4,))
    return keras.Model(x, LAYER(name="outer")(inner(x)))


@pytest.mark.parametrize(
    ("make", "paths"), [(subclassed, ["block/norm"]), (nested, ["inner/norm", "outer"])], ids=["subclassed", "nested"]
)
def test_layers_inside_of_others_run_fused(make: Callable, paths: list[str]):
    hook = assert_same(make(), inputs_of(8, 4), 1e-4)
    assert hook.summary()["training"] == {"fused": paths, "left_to_keras": {}}


def test_a_layer_that_is_not_trainable_uses_its_moving_statistics_in_training():
    layer = LAYER(name="norm", trainable=False)
    model = model_of(layer, (3, 3, 2))
    hook = assert_same(model, inputs_of(4, 3, 3, 2))
    assert hook.summary()["training"]["fused"] == ["norm"]
    _, new_state, _ = run(model, tf.constant(inputs_of(4, 3, 3, 2)), *hook_of(model))
    for variable, value in zip(model.non_trainable_variables, new_state, strict=True):
        np.testing.assert_array_equal(variable, value)


class Shifted(LAYER):
    """A batch norm layer that computes something of its own."""

    def call(self, inputs, training=None, mask=None):
        """Return more than batch norm does."""
        return super().call(inputs, training=training, mask=mask) + 1.0


def masked() -> keras.Model:
    return keras.Sequential([keras.Input((3, 2)), keras.layers.Masking(), LAYER(name="norm")])


@pytest.mark.parametrize(
    ("make", "shape", "reason"),
    [
        (lambda: model_of(LAYER(axis=1, name="norm"), (3, 4, 2)), (4, 3, 4, 2), "axis 1 is not the last"),
        (lambda: model_of(LAYER(renorm=True, name="norm"), (3,)), (4, 3), "renorm"),
        (lambda: model_of(LAYER(synchronized=True, name="norm"), (3,)), (4, 3), "synchronized"),
        (lambda: model_of(LAYER(epsilon=1e-5, name="norm"), (3,)), (4, 3), "epsilon below 1.001e-05"),
        (lambda: model_of(Shifted(name="norm"), (3,)), (4, 3), "Shifted computes something of its own"),
        (lambda: model_of(LAYER(name="norm", dtype="float64"), (3,)), (4, 3), "float64 inputs, computed in float64"),
        (
            lambda: model_of(LAYER(name="norm", dtype="mixed_float16", autocast=False), (3,)),
            (4, 3),
            "float32 inputs, computed in float16",
        ),
        (masked, (4, 3, 2), "a mask"),
    ],
)
def test_what_the_kernel_does_not_do_is_left_to_keras_and_listed(make: Callable, shape: tuple[int, ...], reason: str):
    inputs = inputs_of(*shape)
    if reason == "a mask":
        inputs[0, 1:] = 0.0
    hook = assert_same(make(), inputs, 1e-12)
    left = {"fused": [], "left_to_keras": {"norm": reason}}
    assert hook.summary() == {"training": left, "evaluation": left}


@pytest.mark.parametrize(
    ("min_entries", "training", "evaluation"),
    [
        (24, "", ""),
        (25, "", "48 entries, below 50"),
        (48, "", "48 entries, below 96"),
        (49, *["48 entries, below {}"] * 2),
    ],
)
def test_small_inputs_are_left_to_keras_sooner_in_evaluation(min_entries: int, training: str, evaluation: str):
    hook = assert_same(model_of(LAYER(name="norm"), (2, 3, 2)), inputs_of(4, 2, 3, 2), min_entries=min_entries)
    for phase, reason, needed in (("training", training, 49), ("evaluation", evaluation, 98)):
        left = {"norm": reason.format(needed)} if reason else {}
        assert hook.summary()[phase] == {"fused": [] if reason else ["norm"], "left_to_keras": left}


@pytest.mark.parametrize(
    ("channels", "min_entries", "reason"),
    [(64, 32, ""), (64, 33, "64 entries, below 66"), (65, 1, ""), (65, 2, "65 entries, below 100")],
)
def test_wide_layers_are_left_to_keras_longer_in_evaluation(channels: int, min_entries: int, reason: str):
    layer = LAYER(name="norm")
    layer.build((None, channels))
    inputs = tf.zeros([1, channels])
    assert why_call_stays(layer, inputs, None, by_batch=False, min_entries=min_entries) == (reason or None)
    assert why_call_stays(layer, inputs, None, by_batch=True, min_entries=channels) is None


def traced_types(function: Callable, *specs: tf.TensorSpec, jit: bool = False) -> Counter[str]:
    traced = tf.function(function, autograph=False, jit_compile=jit, input_signature=specs).get_concrete_function()
    return Counter(operation.type for operation in traced.graph.get_operations())


@pytest.mark.parametrize(
    ("spec", "jit", "reason"),
    [
        (tf.TensorSpec([None, 3]), False, "its batch has no fixed size"),
        (tf.TensorSpec([4, 3]), True, "XLA, which fuses the ops of Keras itself"),
        (tf.TensorSpec([4, 3]), False, None),
    ],
)
def test_the_trace_decides(spec: tf.TensorSpec, jit: bool, reason: str | None):
    model = model_of(LAYER(name="norm"), (3,))
    hook, network = hook_of(model)

    def compute(inputs: tf.Tensor) -> tf.Tensor:
        inner = tf.function(lambda inputs: run(model, inputs, hook, network)[0], autograph=False)
        return inner.get_concrete_function(tf.TensorSpec(inputs.shape))(inputs)  # as a step in micro batches does

    traced_types(compute, spec, jit=jit)
    assert hook.summary()["training"]["left_to_keras"] == ({"norm": reason} if reason else {})


def test_gradients_that_are_overridden_by_op_type_are_those_of_the_ops_of_keras():
    model = model_of(LAYER(name="norm"), (3,))
    hook, network = hook_of(model)

    def compute(inputs: tf.Tensor) -> tf.Tensor:
        context = StepContext(tf.constant(0, tf.int64), 0, True, "objective", network, {})
        with hook.around_forward(context), override_ops("Rsqrt", identity(), "own"):
            return model(inputs, training=True)

    types = traced_types(compute, tf.TensorSpec([4, 3]))
    assert types["Rsqrt"] == 1
    assert hook.summary()["training"]["left_to_keras"] == {"norm": "gradients of op types are overridden"}


def test_layers_are_themselves_again_when_tracing_fails():
    model = keras.Sequential([keras.Input((3,)), LAYER(name="norm"), LAYER(name="own")])
    own = vars(model.layers[1])["call"] = lambda inputs, training=None, mask=None: 1 / 0
    hook, network = hook_of(model)
    assert hook.summary()["training"]["left_to_keras"] == {"own": "BatchNormalization computes something of its own"}
    with pytest.raises(ZeroDivisionError):
        run(model, tf.constant(inputs_of(4, 3)), hook, network)
    assert "call" not in vars(model.layers[0])
    assert vars(model.layers[1])["call"] is own
    assert model.layers[0].call.__func__ is LAYER.call


def loop_with(*hooks: GraphHook, network: Network, **options):
    for hook in hooks:
        hook.name, hook.network = "fused_batch_norm", "model"
    return toy_loop(hooks, network=network, **options)


@pytest.mark.parametrize("parts", [1, 2], ids=["whole", "micro batches"])
def test_training_is_that_without_the_hook(parts: int):
    values, loops = [], []
    for hooks in ([FusedBatchNorm(min_entries=0)], []):
        keras.utils.set_random_seed(0)
        network = toy_network(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), dropout=0.2)
        loops.append(loop_with(*hooks, network=network, accumulation_steps=parts))
        losses = []
        for step in range(0, STEPS, 10):
            assert loops[-1].run(step, 10) == (step + 10, [])
            losses.append(loops[-1].accumulators.read()["loss/total"])
            loops[-1].accumulators.reset()
        values.append({**values_of(network), "losses": np.array(losses)})
    fused, plain = values
    assert fused.keys() == plain.keys()
    assert plain["losses"][0] > 1.2 * plain["losses"][-1]
    for key, value in plain.items():
        np.testing.assert_allclose(fused[key], value, rtol=1e-5, atol=1e-5, err_msg=key)


def test_the_traced_step_and_the_evaluation_hold_the_kernels_and_no_moments():
    hook, network = FusedBatchNorm(min_entries=0), toy_network()
    loop = loop_with(hook, network=network)
    step = Counter(operation.type for operation in loop.graph.get_operations())
    assert step["FusedBatchNormV3"] == step["FusedBatchNormGradV3"] == 1
    assert not OF_KERAS & step.keys()
    evaluation = Evaluator(loop.trainer, toy_batch, 1)
    types = Counter(operation.type for operation in evaluation.graph.get_operations())
    assert types["FusedBatchNormV3"] == 1
    assert hook.summary()["evaluation"]["fused"] == ["norm"]
    without = Evaluator(loop_with(network=network).trainer, toy_batch, 1)
    assert evaluation.run(0)["loss/total"] == pytest.approx(without.run(0)["loss/total"], rel=1e-6)


def test_the_check_of_gradients_knows_what_the_kernel_differentiates():
    trainer = loop_with(FusedBatchNorm(min_entries=0), network=toy_network()).trainer
    (found,) = compare_gradients(trainer, toy_batch)
    assert (found.name, found.surrogate) == ("fused_batch_norm", "declared")
    assert found.declared < 1e-5


def test_by_default_small_layers_stay_with_keras():
    hook = FusedBatchNorm()
    loop = loop_with(hook, network=toy_network())
    assert not any(operation.type.startswith("FusedBatchNorm") for operation in loop.graph.get_operations())
    assert hook.summary()["training"]["left_to_keras"] == {"norm": f"{BATCH * 8} entries, below 100,000"}


def test_each_network_has_an_instance_of_its_own():
    networks = fresh(toy_model)

    def make(key: str) -> GraphHook:
        hook = FusedBatchNorm(min_entries=0)
        hook.name = key
        return hook

    loop = traced_loop(networks, [ToyObjective(each, f"train_{each}") for each in NAMES], make, batch=toy_batch)
    types = Counter(operation.type for operation in loop.graph.get_operations())
    assert types["FusedBatchNormV3"] == types["FusedBatchNormGradV3"] == 2
    assert all(hook.summary()["training"]["fused"] == ["norm"] for hook in loop.trainer.hooks)


def test_patterns_choose_layers_and_a_network_without_any_is_no_mistake():
    hook = assert_same(nested(), inputs_of(8, 4), layers="outer")
    assert hook.summary()["training"] == {"fused": ["outer"], "left_to_keras": {}}
    plain = model_of(keras.layers.Dense(2), (3,))
    assert assert_same(plain, inputs_of(4, 3)).summary() == {}
    with pytest.raises(UserError, match=r"The pattern 'outr' matches no batch norm layer.* mean 'outer'\?"):
        hook_of(nested(), layers="outr")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_entries": -1}, "Invalid min_entries: -1. Expected a whole number of at least 0"),
        ({"min_entries": "many"}, "Invalid min_entries: 'many'"),
        ({"layers": []}, r"Invalid layers: \[\]"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: dict, message: str):
    with pytest.raises(UserError, match=message):
        FusedBatchNorm(**options)


def test_calls_replaced_one_around_the_other_end_in_turn() -> None:
    layer, other = LAYER(name="norm"), LAYER(name="other")
    outer, inner = (lambda *_, **__: "outer"), (lambda *_, **__: "inner")
    with calls_replaced([(layer, outer)]):
        with calls_replaced([(other, inner), (layer, inner)]):
            assert (layer.call(), other.call()) == ("inner", "inner")
        assert layer.call() == "outer"
        assert "call" not in vars(other)
    assert "call" not in vars(layer)
