"""What is claimed of the tensors of a graph, held against the values that run through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from hooks.quantization.graph_facts import MODEL_INPUT, Facts, KernelInputs, is_non_negative, trace_kernel_inputs
from hooks.quantization.kernel_layers import is_kernel_layer
from trainer.select import layer_paths

layers, ops = keras.layers, keras.ops
RNG = np.random.default_rng(0)
MAPS = RNG.normal(size=(2, 6, 6, 2)).astype(np.float32)
ROWS = RNG.normal(size=(2, 6, 2)).astype(np.float32)
BOXES = RNG.normal(size=(2, 4, 4, 4, 2)).astype(np.float32)
FLAT = RNG.normal(size=(2, 6)).astype(np.float32)

Build = Callable[[Any], Any]


def relu(x: Any) -> Any:
    return layers.ReLU()(x)


def traced(model: keras.Model) -> KernelInputs:
    return trace_kernel_inputs(
        model, {path: layer for path, layer in layer_paths(model).items() if is_kernel_layer(layer)}
    )


def facts_behind(build: Build, values: np.ndarray) -> tuple[Facts, np.ndarray]:
    """Return what is claimed of what `build` makes of an input, and its values."""
    x = keras.Input(values.shape[1:])
    y = build(x)
    kernel = layers.Dense(2, name="kernel")
    (facts,) = traced(keras.Model(x, kernel(y))).calls["kernel"]
    return facts, np.asarray(keras.Model(x, y)(values))


NON_NEGATIVE: dict[str, tuple[Build, np.ndarray]] = {
    **{
        name: (lambda x, name=name: getattr(ops, name)(x), FLAT)
        for name in (
            *("relu", "relu6", "sigmoid", "hard_sigmoid", "sparse_sigmoid", "softplus", "squareplus", "sparse_plus"),
            *("exp", "softmax", "sparsemax", "absolute", "square"),
        )
    },
    **{
        f"activation {name}": (lambda x, name=name: layers.Activation(name)(x), FLAT)
        for name in ("hard_sigmoid", "sparse_sigmoid", "squareplus", "sparse_plus", "softmax", "sparsemax")
    },
    "a layer as an activation": (lambda x: layers.Dense(6, activation=layers.ReLU())(x), FLAT),
    "upsampled once": (lambda x: layers.UpSampling1D(2)(relu(x)), ROWS),
    "upsampled": (lambda x: layers.UpSampling2D(2, interpolation="bilinear")(relu(x)), MAPS),
    "upsampled thrice": (lambda x: layers.UpSampling3D(2)(relu(x)), BOXES),
    "pooled once": (lambda x: layers.GlobalMaxPooling1D()(layers.AveragePooling1D(2)(relu(x))), ROWS),
    "pooled thrice": (lambda x: layers.GlobalAveragePooling3D()(layers.MaxPooling3D(2)(relu(x))), BOXES),
    "padded once": (lambda x: layers.Cropping1D(1)(layers.ZeroPadding1D(2)(relu(x))), ROWS),
    "dropped once": (lambda x: layers.SpatialDropout1D(0.5)(relu(x)), ROWS),
    "repeated": (lambda x: layers.Identity()(layers.RepeatVector(3)(relu(x))), FLAT),
    "transposed": (lambda x: ops.transpose(relu(x), (0, 2, 1)), ROWS),
    "squeezed": (lambda x: ops.squeeze(ops.expand_dims(relu(x), 2), 2), ROWS),
    "reduced": (lambda x: ops.mean(ops.max(relu(x), axis=1), axis=1), MAPS),
    "summed": (lambda x: ops.sum(relu(x), axis=1), ROWS),
    "merged": (lambda x: layers.Average()([layers.Maximum()([relu(x), relu(x)]), relu(x)]), FLAT),
    "multiplied": (lambda x: layers.Multiply()([relu(x), layers.Minimum()([relu(x), relu(x)])]), FLAT),
    "raised": (lambda x: ops.add(relu(x), 0.5), FLAT),
}
UNKNOWN: dict[str, tuple[Build, np.ndarray]] = {
    "curves through it": (lambda x: layers.UpSampling2D(2, interpolation="bicubic")(relu(x)), MAPS),
    "lanczos": (lambda x: layers.UpSampling2D(2, interpolation="lanczos3")(relu(x)), MAPS),
    "leaky by a layer": (lambda x: layers.Dense(6, activation=layers.ReLU(negative_slope=0.5))(x), FLAT),
    "a number taken off": (lambda x: ops.add(relu(x), -0.5), FLAT),
    "an array taken off": (lambda x: ops.add(relu(x), np.full(6, -0.5, np.float32)), FLAT),
    "turned": (lambda x: ops.negative(relu(x)), FLAT),
    "one of three": (lambda x: layers.Add()([relu(x), x, relu(x)]), FLAT),
    "a logarithm": (lambda x: ops.log_softmax(relu(x)), FLAT),
    "a function of somebody's own": (lambda x: layers.Lambda(lambda y: y - 1.0)(relu(x)), FLAT),
}


@pytest.mark.parametrize("name", NON_NEGATIVE)
def test_what_is_never_negative_is_claimed_and_is(name: str) -> None:
    facts, values = facts_behind(*NON_NEGATIVE[name])
    assert facts.non_negative
    assert values.min() >= 0.0


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_negative_is_not_claimed_to_be_none(name: str) -> None:
    facts, values = facts_behind(*UNKNOWN[name])
    assert not facts.non_negative
    assert values.min() < 0.0  # so the claim would have been wrong


def test_a_slope_below_zero_decides_about_a_rectifier() -> None:
    assert is_non_negative(layers.ReLU(max_value=6.0))
    assert not is_non_negative(layers.ReLU(negative_slope=0.1))
    assert not is_non_negative(layers.Dense(2))


@pytest.mark.parametrize(
    ("build", "dropout"),
    [
        (lambda x: layers.Dropout(0.5, name="drop")(x), "drop"),
        (lambda x: layers.Flatten()(layers.Reshape((3, 2))(layers.Dropout(0.5, name="drop")(x))), "drop"),
        (lambda x: layers.Dropout(0.0)(layers.Dropout(0.5, name="drop")(x)), "drop"),
        (lambda x: layers.Dropout(0.1, name="later")(layers.Dropout(0.5, name="drop")(x)), "later"),
        (lambda x: layers.Dropout(0.0, name="drop")(x), ""),
        (lambda x: layers.Add()([layers.Dropout(0.5, name="drop")(x), x]), ""),  # a sum is not 0 where one part is
        (lambda x: layers.BatchNormalization()(layers.Dropout(0.5, name="drop")(x)), ""),
    ],
)
def test_dropout_counts_up_to_what_fills_its_zeros(build: Build, dropout: str) -> None:
    assert facts_behind(build, FLAT)[0].dropout == dropout


def test_sources_are_the_kernels_before_and_the_input_until_the_first_of_them() -> None:
    x = keras.Input((6,))
    left, right = layers.Dense(6, name="left")(x), layers.Dense(6, name="right")(x)
    both = layers.Dense(6, name="both")(layers.Add()([left, layers.Activation("tanh")(right)]))
    found = traced(keras.Model(x, [layers.Dense(2, name="skip")(layers.Concatenate()([both, x])), right]))
    sources = {path: [set(each.sources) for each in calls] for path, calls in found.calls.items()}
    assert sources == {
        "left": [{MODEL_INPUT}],
        "right": [{MODEL_INPUT}],
        "both": [{"left", "right"}],
        "skip": [{"both", MODEL_INPUT}],
    }
    assert found.first() == {"left", "right", "skip"}
    assert found.last() == {"skip"}  # "right" is an output, too, but reaches "both"
    assert found.hidden == set()


class Two(layers.Layer):
    """Hold two kernels, of two inputs."""

    def __init__(self, **options: Any) -> None:
        """Make the layers."""
        super().__init__(**options)
        self.one, self.other = layers.Dense(3, name="one"), layers.Dense(3, name="other")

    def build(self, shapes: Any) -> None:
        """Build the layers."""
        self.one.build(shapes[0])
        self.other.build(shapes[1])

    def call(self, inputs: Any) -> Any:
        """Return a sum."""
        return self.one(inputs[0]) + self.other(inputs[1])


def test_kernels_inside_of_a_layer_are_hidden_and_see_all_that_goes_in() -> None:
    x = keras.Input((6,))
    y = Two(name="pair")([relu(x), layers.Activation("relu")(layers.Dense(4, name="before")(x))])
    found = traced(keras.Model(x, layers.Dense(2, name="after")(relu(y))))
    assert found.hidden == {"pair/one", "pair/other"}
    for path in found.hidden:
        assert found.calls[path] == [Facts(frozenset({MODEL_INPUT, "before"}))]  # which of the two it sees is unknown
    (after,) = found.calls["after"]
    assert after.sources == frozenset({"pair/one", "pair/other"})
    assert found.first() == {"before", "pair/one", "pair/other"}
    assert found.last() == {"after"}


def test_a_nested_model_that_is_called_twice_has_facts_of_each_call() -> None:
    inner_input = keras.Input((6,))
    inner = keras.Model(inner_input, layers.Dense(6, name="inside")(inner_input), name="inner")
    x = keras.Input((6,))
    found = traced(keras.Model(x, inner(relu(inner(x)))))
    first, second = found.calls["inner/inside"]
    assert (first.sources, first.non_negative) == (frozenset({MODEL_INPUT}), "")
    assert second.sources == frozenset({"inner/inside"})
    assert second.non_negative
    assert found.last() == {"inner/inside"}
