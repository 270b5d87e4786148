"""Where quantizers are inserted into a graph: where a runtime writes tensors, and nowhere else."""

from typing import Any

import keras
import numpy as np
import pytest

from hookline.hooks.graphs import call_anew
from hookline.hooks.quantization.activation_places import Inserter, Pass
from hookline.hooks.quantization.layers import ActivationQuantizer, InputQuantizer
from hookline.trainer.graph import folded_norms

layers = keras.layers


def inserted(model: keras.Model) -> tuple[list[str], keras.Model, Inserter]:
    inserter = Inserter(Pass())
    rebuilt = inserter.rebuilt(model)
    assert [id(each) for each in rebuilt.variables] == [id(each) for each in model.variables]
    given = np.random.default_rng(0).normal(size=(2, *model.input_shape[1:])).astype(np.float32)
    outputs, losses = model(given), [*map(float, model.losses)]
    np.testing.assert_array_equal(rebuilt(given), outputs)  # no hook is active
    assert [*map(float, rebuilt.losses)] == losses  # of activity regularizers
    return inserter.names, rebuilt, inserter


def image() -> Any:
    return keras.Input((8, 8, 3), name="image")


def folded(inputs: Any) -> Any:
    x = layers.Conv2D(4, 3, name="conv")(inputs)
    x = layers.ReLU(6.0, name="relu")(layers.BatchNormalization(name="norm")(x))
    x = layers.Flatten()(layers.Dropout(0.1)(layers.MaxPooling2D(name="pool")(x)))
    return layers.Dense(2, name="logits")(x)


def norm_first(inputs: Any) -> Any:
    x = layers.BatchNormalization(name="norm")(layers.MaxPooling2D(name="pool")(inputs))
    return layers.Conv2D(4, 3, name="conv")(layers.Activation("relu", name="relu")(x))


def taken_twice(inputs: Any) -> Any:
    x = layers.Conv2D(3, 3, padding="same", name="conv")(inputs)
    y = layers.Activation("relu", name="relu")(x)
    x = layers.Activation("relu", name="sum_relu")(layers.Add(name="sum")([x, y]))
    return layers.Multiply(name="product")([x, inputs])


def rounded_by_another_hook(inputs: Any) -> Any:
    x = InputQuantizer("ste_sign", name="sign")(layers.Conv2D(4, 3, name="conv")(inputs))
    return layers.Conv2D(4, 3, name="last")(x)


def inner_and_shared(inputs: Any) -> Any:
    body = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(4, 3, name="conv"), layers.ReLU(name="relu")])
    shared = layers.Dense(4, name="shared")
    return shared(shared(body(inputs)))


def test_quantizers_are_inserted_where_a_runtime_writes_tensors() -> None:
    for build, expected in (
        (folded, ["relu", "logits"]),  # a layer, its batch norm and its ReLU are fused
        (norm_first, ["relu", "conv"]),
        (taken_twice, ["conv", "relu", "sum_relu", "product"]),
        (rounded_by_another_hook, ["last"]),
        (inner_and_shared, ["relu", "shared", "shared"]),  # one point per call
    ):
        inputs = image()
        names, _, _ = inserted(keras.Model(inputs, build(inputs)))
        assert names == ["image", *expected]


def test_concatenated_tensors_share_one_range() -> None:
    inputs = x = image()
    x = layers.Conv2D(3, 3, padding="same", name="conv")(x)
    y = layers.Conv2D(3, 3, padding="same", name="other")(x)
    x = layers.Concatenate(name="join")([x, y])
    tanh = layers.Activation("tanh", name="tanh")(layers.Conv2D(3, 1, name="last")(x))
    names, rebuilt, inserter = inserted(keras.Model(inputs, layers.Concatenate(name="fixed")([tanh, inputs])))
    assert names == ["image", "conv", "last", "tanh", "fixed"]
    assert inserter.fixed == {3: (-1.0, 127 / 128)}
    points = [each.point for each in rebuilt.layers if isinstance(each, ActivationQuantizer)]
    assert sorted(points) == [0, 1, 1, 2, 3, 4]


def test_average_pooling_uses_the_range_of_its_input() -> None:
    inputs = x = image()
    x = layers.AveragePooling2D(2, name="average")(layers.Conv2D(4, 3, activation="relu", name="conv")(x))
    names, rebuilt, _ = inserted(keras.Model(inputs, layers.GlobalAveragePooling2D(name="mean")(x)))
    assert names == ["image", "conv", "mean"]
    points = [each for each in rebuilt.layers if isinstance(each, ActivationQuantizer)]
    expected = [(0, True, False), (1, True, False), (1, False, True), (2, True, False)]
    assert [(each.point, each.observes, each.averages) for each in points] == expected
    body = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(4, 3, activation="relu", name="conv")])
    pools = keras.Sequential([keras.Input((6, 6, 4)), layers.AveragePooling2D(2, name="average")])
    for each in (layers.AveragePooling2D(2, name="average"), pools):  # after an inner model, and inside one
        names, _, _ = inserted(keras.Model(inputs, layers.GlobalAveragePooling2D(name="mean")(each(body(inputs)))))
        assert names == ["image", "conv", "mean"]


def test_layer_output_is_rounded_before_a_builtin_activation() -> None:
    inputs = x = image()
    conv = layers.Conv2D(4, 3, activation="silu", activity_regularizer="l2", name="conv")
    x = layers.Conv2D(4, 3, activation="relu", activity_regularizer="l2", name="relu")(conv(x))
    x = layers.Activation("swish", activity_regularizer="l2", name="swish")(x)
    x = layers.Dense(4, activation="tanh", activity_regularizer="l2", name="tanh")(x)
    names, rebuilt, inserter = inserted(keras.Model(inputs, x))
    of_swish = ["swish_sigmoid", "swish"]
    assert names == ["image", "conv_linear", "conv_sigmoid", "conv", "relu", *of_swish, "tanh_linear", "tanh"]
    assert inserter.fixed == {2: (0.0, 255 / 256), 5: (0.0, 255 / 256), 8: (-1.0, 127 / 128)}
    assert conv.activation is keras.activations.silu  # the user's layer is unchanged
    assert rebuilt.get_layer("conv").activation is keras.activations.linear


def test_batch_norm_folds_only_into_a_linear_layer_with_no_other_consumer() -> None:
    inputs = x = image()
    conv, act = layers.Conv2D(4, 3), layers.Conv2D(4, 3, activation="relu")
    norms = [layers.BatchNormalization(name=f"norm_{index}") for index in range(3)]
    x = norms[0](conv(x))
    x = norms[1](act(x))
    dense = layers.Dense(2)(x)
    model = keras.Model(inputs, [norms[2](dense), dense])  # the dense output is also used without its norm
    assert folded_norms(model) == [(conv, norms[0])]
    names, _, _ = inserted(keras.Model(inputs, norms[1].output))
    assert names == ["image", "norm_0", act.name, "norm_1"]


def test_mask_lost_in_an_operation_gives_a_warning():
    inputs, last = keras.Input((6,), dtype="int32"), layers.Dense(3)
    model = keras.Model(inputs, last(layers.Embedding(9, 4, mask_zero=True)(inputs)))

    def is_last(layer: Any) -> bool:
        return layer is last

    call_anew(model, is_last, lambda layer, x: layer(x))
    with pytest.warns(UserWarning, match="no mask on its outputs"):
        call_anew(model, is_last, lambda layer, x: keras.ops.relu(layer(x)))
