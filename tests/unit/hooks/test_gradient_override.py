"""The hook that overrides gradients of layers and of op types: exactly those, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.gradient_override import GradientOverride
from tests.support.toy import CLASSES, FEATURES, ToyObjective, toy_batch, toy_loop
from trainer.errors import UserError
from trainer.graph import layer_input, layer_output
from trainer.hook import GraphHook
from trainer.network import Network
from trainer.ops.backward import Backward
from trainer.step.trainer import Trainer

Gradients = dict[str, np.ndarray]


def hook_on(**options: Any) -> GradientOverride:
    hook = GradientOverride(**{"layers": None, **options})
    hook.name = "gradient_override"
    return hook


def model() -> keras.Model:
    """Return three dense layers with a relu and a branch, with the same weights every time."""
    keras.utils.set_random_seed(5)
    inputs = keras.Input((FEATURES,), name="inputs")
    first = keras.layers.Dense(8, name="first")(inputs)
    active = keras.layers.ReLU(name="relu")(first)
    second = keras.layers.Dense(8, activation="tanh", name="second")(active)
    both = keras.layers.Add(name="both")([active, second])
    return keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(both), name="toy")


def network_of(given: keras.Model, hooks: list[GraphHook]) -> Network:
    for hook in hooks:
        given = hook.rebuild_model(given)
    network = Network("model", given, keras.optimizers.SGD(1.0))
    network.optimizer.build(given.trainable_variables)
    return network


def gradients_with(hooks: list[GraphHook], given: keras.Model | None = None, batch: Any = None) -> Gradients:
    """Return the gradients of a step, by the names of the variables; nothing is trained."""
    network = network_of(given or model(), hooks)
    trainer = Trainer([network], [ToyObjective()], hooks, seed=0)

    @tf.function(autograph=False)
    def gradients() -> dict[str, tf.Tensor]:
        step = tf.constant(0, tf.int64)
        examples = batch or toy_batch(step)
        forward = trainer.forward(step, examples, objective="objective", training=True)
        losses = trainer.losses(trainer.objectives[0], forward, examples).losses
        return trainer.compute_gradients(losses["total"], forward.passes)["model"]

    return {name.rpartition("toy/")[2]: value.numpy() for name, value in gradients().items()}


def by_hand(build: Callable[[tf.Tensor, Callable[[str, tf.Tensor], tf.Tensor]], tf.Tensor]) -> Gradients:
    """Return the gradients of a network that is written out: `build(inputs, dense)` returns logits."""
    weights = {f"{layer.name}/{w.name}": tf.constant(w.numpy()) for layer in model().layers for w in layer.weights}

    def dense(name: str, x: tf.Tensor) -> tf.Tensor:
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    batch = toy_batch(tf.constant(0, tf.int64))
    with tf.GradientTape() as tape:
        tape.watch(weights)
        logits = build(batch["inputs"], dense)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits))
    return {name: value.numpy() for name, value in tape.gradient(loss, weights).items()}


def assert_equal(found: Gradients, expected: Gradients) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)


def network_with(function: Callable[[tf.Tensor], tf.Tensor], gradient: Callable[..., tf.Tensor]) -> Any:
    """Return a network by hand in which the relu is another function with another gradient."""

    def build(inputs: tf.Tensor, dense: Callable[[str, tf.Tensor], tf.Tensor]) -> tf.Tensor:
        op = tf.custom_gradient(lambda x: (function(x), lambda upstream: gradient(upstream, x)))
        active = op(dense("first", inputs))
        return dense("logits", active + tf.tanh(dense("second", active)))

    return build


CASES: dict[str, tuple[Any, Callable[..., tf.Tensor]]] = {
    "identity": ("identity", lambda g, x: g),
    "round_through": ("round_through", lambda g, x: g),
    "guided_relu": ("guided_relu", lambda g, x: tf.where((x > 0) & (g > 0), g, 0.0)),
    "hard_tanh_through": (
        {"name": "hard_tanh_through", "limit": 0.5},
        lambda g, x: tf.where(tf.abs(x) <= 0.5, g, 0.0),
    ),
    "reverse": ({"name": "reverse", "factor": 0.5}, lambda g, x: -0.5 * tf.where(x > 0, g, 0.0)),
    "scale": ({"name": "scale", "factor": 3}, lambda g, x: 3.0 * tf.where(x > 0, g, 0.0)),
    "clip": ({"name": "clip", "limit": 0.01}, lambda g, x: tf.clip_by_value(tf.where(x > 0, g, 0.0), -0.01, 0.01)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_a_layer_is_that_of_the_backward(case: str) -> None:
    backward, gradient = CASES[case]
    found = gradients_with([hook_on(layers="relu", backward=backward)])
    assert_equal(found, by_hand(network_with(tf.nn.relu, gradient)))


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_an_op_type_is_that_of_the_backward(case: str) -> None:
    backward, gradient = CASES[case]
    found = gradients_with([hook_on(op_type="Relu", backward=backward)])
    assert_equal(found, by_hand(network_with(tf.nn.relu, gradient)))


def test_the_forward_pass_and_the_variables_stay() -> None:
    given, inputs = model(), toy_batch(tf.constant(0, tf.int64))["inputs"]
    for backward in ("identity", "reverse"):
        rebuilt = hook_on(layers=["relu", "second"], backward=backward).rebuild_model(given)
        np.testing.assert_array_equal(rebuilt(inputs), given(inputs))
        assert [id(v) for v in rebuilt.variables] == [id(v) for v in given.variables]
        assert [v.path for v in rebuilt.variables] == [v.path for v in given.variables]


def test_the_weights_of_a_layer_keep_their_gradients_when_that_of_its_input_is_replaced() -> None:
    plain = gradients_with([])
    for backward in ("identity", "reverse"):
        found = gradients_with([hook_on(layers="second", backward=backward)])
        for name in ("second/kernel", "second/bias", "logits/kernel", "logits/bias"):
            np.testing.assert_allclose(found[name], plain[name], atol=1e-7)
        assert np.abs(found["first/kernel"] - plain["first/kernel"]).max() > 1e-3


def test_a_branch_beside_the_layer_keeps_its_gradient() -> None:
    def build(inputs: tf.Tensor, dense: Callable[[str, tf.Tensor], tf.Tensor]) -> tf.Tensor:
        active = tf.nn.relu(dense("first", inputs))
        turned = tf.custom_gradient(lambda x: (tf.identity(x), lambda upstream: -upstream))(active)
        return dense("logits", active + tf.tanh(dense("second", turned)))

    assert_equal(gradients_with([hook_on(layers="second", backward="reverse")]), by_hand(build))


def test_an_op_type_changes_the_gradients_of_all_inputs_of_every_such_op() -> None:
    hook = hook_on(op_type="MatMul", backward={"name": "scale", "factor": 2})
    plain, found = gradients_with([]), gradients_with([hook])
    # Each product doubles, so a kernel's gradient grows with the products from its own to the loss.
    np.testing.assert_allclose(found["logits/bias"], plain["logits/bias"], atol=1e-7)
    np.testing.assert_allclose(found["logits/kernel"], 2 * plain["logits/kernel"], atol=1e-7)
    np.testing.assert_allclose(found["second/bias"], 2 * plain["second/bias"], atol=1e-7)
    np.testing.assert_allclose(found["second/kernel"], 4 * plain["second/kernel"], atol=1e-7)


def test_a_layer_that_is_called_twice_and_layers_in_inner_models_are_overridden() -> None:
    def twice() -> keras.Model:
        keras.utils.set_random_seed(5)
        inner_input = keras.Input((8,))
        shared = keras.layers.Dense(8, name="shared")
        inner = keras.Model(inner_input, keras.layers.ReLU(name="relu")(shared(shared(inner_input))), name="inner")
        inputs = keras.Input((FEATURES,))
        x = inner(keras.layers.Dense(8, name="first")(inputs))
        return keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(x), name="toy")

    plain = gradients_with([], twice())
    found = gradients_with([hook_on(layers="inner/shared", backward={"name": "scale", "factor": 3})], twice())
    np.testing.assert_allclose(found["first/bias"], 9 * plain["first/bias"], atol=1e-6)
    np.testing.assert_allclose(found["logits/bias"], plain["logits/bias"], atol=1e-7)


def test_several_inputs_of_a_layer_are_all_overridden() -> None:
    plain, found = gradients_with([]), gradients_with([hook_on(layers="both", backward={"name": "scale", "factor": 3})])
    for name in ("first/kernel", "first/bias", "second/kernel", "second/bias"):
        np.testing.assert_allclose(found[name], 3 * plain[name], atol=1e-6)

    def halves(upstream: Any, inputs: Any) -> list[Any]:
        assert len(inputs) == 2
        return [0.5 * upstream, 5.0 * upstream]

    found = gradients_with([hook_on(layers="both", backward=Backward("halves", halves, ("inputs",)))])
    np.testing.assert_allclose(found["second/bias"], 5 * plain["second/bias"], atol=1e-6)


def test_integer_inputs_and_masks_go_on() -> None:
    keras.utils.set_random_seed(5)
    inputs = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(5, 3, mask_zero=True, name="embedding")(inputs)
    mixed = keras.layers.Dense(3, name="mixed")(embedded)
    gru = keras.layers.GRU(3, name="gru")(mixed)
    given = keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(gru), name="toy")
    tokens = np.array([[1, 2, 0, 0], [3, 4, 1, 0]])
    before = given(tokens).numpy()
    np.testing.assert_allclose(given(tokens[:1, :2]), before[:1], atol=1e-6)  # so the mask counts
    hook = hook_on(layers="*", backward={"name": "scale", "factor": 3})
    np.testing.assert_allclose(hook.rebuild_model(given)(tokens), before, atol=1e-6)
    assert hook.summary()["layers_overridden"] == ["mixed", "gru", "logits"]
    rebuilt = hook_on(layers="mixed", backward="identity").rebuild_model(given)
    np.testing.assert_allclose(rebuilt(tokens), before, atol=1e-6)


def test_the_stripped_model_is_as_it_was_given_without_a_layer_of_ours() -> None:
    given = model()
    for backward in ("identity", "reverse"):
        hook = hook_on(layers=["second", "relu"], backward=backward)
        rebuilt = hook.rebuild_model(given)
        stripped = hook.strip_model(rebuilt)
        assert len(rebuilt.layers) > len(given.layers)
        assert [layer.name for layer in stripped.layers] == [layer.name for layer in given.layers]
        assert [id(v) for v in stripped.variables] == [id(v) for v in given.variables]
        inputs = toy_batch(tf.constant(0, tf.int64))["inputs"]
        np.testing.assert_array_equal(stripped(inputs), given(inputs))


def test_two_hooks_are_both_counted_and_taken_off_one_by_one() -> None:
    first, second = hook_on(layers="relu", backward="reverse"), hook_on(layers="relu", backward="reverse")
    second.name = "gradient_override_again"
    assert_equal(gradients_with([first, second]), gradients_with([]))
    rebuilt = second.rebuild_model(first.rebuild_model(model()))
    names = [layer.name for layer in first.strip_model(rebuilt).layers]
    assert "gradient_override_again_relu" in names
    assert "gradient_override_relu" not in names


@pytest.mark.parametrize("backward", ["identity", "reverse"])
def test_other_hooks_find_the_tensors_before_and_behind_an_overridden_layer(backward: str) -> None:
    given = model()
    second = given.get_layer("second")
    rebuilt = hook_on(layers="second", backward=backward).rebuild_model(given)
    again = hook_on(layers="second", backward=backward)
    again.name = "again"
    rebuilt = again.rebuild_model(rebuilt)
    relu = layer_output(rebuilt, rebuilt.get_layer("relu"))
    assert layer_input(rebuilt, second) is relu
    behind = layer_output(rebuilt, second)
    (add,) = (node for level in rebuilt._nodes_by_depth.values() for node in level if node.operation.name == "both")
    assert any(tensor is behind for tensor in add.input_tensors)


def test_evaluation_and_xla_are_as_they_were() -> None:
    for options in ({"layers": "relu"}, {"op_type": "Relu"}):
        trained = []
        for xla in (False, True):
            hook = hook_on(backward="guided_relu", **options)
            network = network_of(model(), [hook])
            loop = toy_loop([hook], network=network, xla=xla)
            loop.run(0, 2)
            trained.append(network.model.get_weights())
        for left, right in zip(*trained, strict=True):
            np.testing.assert_allclose(left, right, atol=1e-5)


@pytest.mark.long
def test_one_layer_of_mobilenet_changes_exactly_what_comes_before_it() -> None:
    batch = {
        "inputs": tf.random.stateless_normal([4, 32, 32, 3], [1, 2]),
        "targets": tf.constant([0, 1, 2, 1], tf.int64),
    }

    def gradients(layer: str | None) -> tuple[Gradients, keras.Model]:
        keras.utils.set_random_seed(5)
        options = {"input_shape": (32, 32, 3), "classes": CLASSES, "classifier_activation": None}
        given = keras.applications.MobileNetV2(weights=None, alpha=0.35, **options)
        hooks = [] if layer is None else [hook_on(layers=layer, backward="reverse")]
        return gradients_with(hooks, given, batch), given

    plain, given = gradients(None)
    found, _ = gradients("block_3_expand")  # no shortcut goes by its input
    names = [each.name for each in given.layers]
    layers = given.layers[: names.index("block_3_expand")]
    before = {variable.path for each in layers for variable in each.trainable_variables}
    assert found.keys() == plain.keys()
    assert len(plain) == 158
    assert len(before & plain.keys()) == len(before) == 27
    for name, value in plain.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(found[name], -value if name in before else value, atol=1e-4 * scale, err_msg=name)
        assert scale > 0.0


# Mistakes.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Neither layers nor op_type was given"),
        ({"layers": "relu", "op_type": "Relu"}, "layers=relu and op_type=Relu received. Expected one of them"),
        ({"op_type": "not an op"}, "Invalid op_type: 'not an op'"),
        ({"layers": []}, "Invalid layers"),
        ({"layers": "*", "backward": "revers"}, "Unknown backward 'revers'. Did you mean 'reverse'"),
        ({"layers": "*", "backward": {"name": "clip", "limits": 1}}, "Unknown argument of backward clip 'limits'"),
        ({"layers": "*", "backward": {"name": "clip", "limit": -1}}, "Invalid limit -1 for clip"),
        ({"layers": "*", "backward": {"limit": 1}}, "Invalid backward: .* Expected a name such as reverse"),
        ({"layers": "*", "backward": 3}, "Invalid backward: 3"),
    ],
)
def test_wrong_options_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        hook_on(**options)
    assert "\n" not in str(caught.value)


def test_a_layer_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UserError, match="matches no layer. Did you mean 'relu'. Expected one of: first, relu, second"):
        hook_on(layers="relus").rebuild_model(model())


def test_a_layer_with_nothing_to_train_before_it_is_refused() -> None:
    with pytest.raises(UserError, match="no layer with weights comes before first"):
        hook_on(layers="first").rebuild_model(model())


def test_an_op_type_that_does_not_occur_is_refused_with_those_that_do() -> None:
    with pytest.raises(UserError, match="op_type=Matmul received.*Did you mean 'MatMul'.*Expected one of: .*Relu"):
        gradients_with([hook_on(op_type="Matmul")])


def test_an_op_inside_a_loop_is_refused_where_the_map_does_not_reach() -> None:
    class Loop(keras.layers.Layer):
        def call(self, inputs):
            return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, tf.nn.relu(x)), [0, inputs])[1]

    inputs = keras.Input((FEATURES,))
    hidden = Loop(name="loop")(keras.layers.Dense(8, name="first")(inputs))
    given = keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(hidden), name="toy")
    with pytest.raises(UserError, match="1 ops of this type are inside a branch, a loop or another function"):
        gradients_with([hook_on(op_type="Relu")], given)


def test_a_model_whose_graph_is_not_known_takes_op_types_only() -> None:
    class Own(keras.Model):
        def __init__(self):
            super().__init__(name="toy")
            self.first, self.logits = keras.layers.Dense(8, name="first"), keras.layers.Dense(CLASSES, name="logits")

        def call(self, inputs, training=False):
            return self.logits(tf.nn.relu(self.first(inputs)))

    def given() -> keras.Model:
        keras.utils.set_random_seed(5)
        made = Own()
        made(np.zeros((1, FEATURES), np.float32))
        return made

    with pytest.raises(UserError, match="is a Own, whose graph is not known"):
        hook_on(layers="*").rebuild_model(given())
    plain = gradients_with([], given())
    found = gradients_with([hook_on(op_type="Relu", backward="reverse")], given())
    np.testing.assert_allclose(found["first/bias"], -plain["first/bias"], atol=1e-7)


def test_a_wrong_gradient_names_the_layer_or_the_op() -> None:
    for options, where in (({"layers": "second"}, "gradient_override_second"), ({"op_type": "Relu"}, "Relu")):
        wrong = Backward("wrong", lambda upstream: upstream[:, :1])
        with pytest.raises(
            UserError, match=rf"The backward pass of '.*{where}' returned float32 \[16, 1\] for input 1 of 1"
        ):
            gradients_with([hook_on(backward=wrong, **options)])
