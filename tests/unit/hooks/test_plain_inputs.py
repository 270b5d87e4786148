"""Input quantizers written out in operations of Keras: the same outputs, no layer of our own."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from hooks.bnn_rounding import BnnRounding
from hooks.quantization.input_quantizer import InputQuantizer
from hooks.quantization.plain_inputs import quantize, write_out_input_quantizers
from hooks.quantization.quantizers import parse_quantizer
from trainer.export.plain_model import check_plain

layers = keras.layers
QUANTIZERS = [
    "ste_sign", "binary_tanh", "approx_sign", {"name": "swish_sign", "beta": 3.0}, "ste_tern",
    {"name": "ste_tern", "threshold": 0.3}, {"name": "ste_tern", "ternary_weight_networks": True, "clip_value": 2.0},
    *({"name": "dorefa", "k_bit": bits} for bits in (1, 2, 3, 8)),
]  # fmt: skip
EDGES = np.array([-2, -1, -0.5, -0.3, -0.05, -1e-9, -0.0, 0.0, 1e-9, 0.05, 1 / 6, 0.3, 0.5, 5 / 6, 1, 2], np.float32)


@pytest.mark.parametrize("spec", QUANTIZERS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_operations_give_what_the_quantizer_gives_bit_for_bit(spec, dtype: str):
    quantizer = parse_quantizer(spec, role="input", option="quantizer")
    noise = np.random.default_rng(0).normal(size=500)
    inputs = keras.ops.cast(np.concatenate([EDGES, noise]).astype(np.float32), dtype)
    expected, found = quantizer(inputs), quantize(inputs, quantizer=quantizer)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(keras.ops.cast(found, "float32"), keras.ops.cast(expected, "float32"))


@pytest.mark.parametrize("spec", ["ste_sign", "dorefa"])
def test_nan_stays_visible(spec):
    quantizer = parse_quantizer(spec, role="input", option="quantizer")
    assert np.isnan(quantize(keras.ops.convert_to_tensor([np.nan, 1.0]), quantizer=quantizer))[0]


def block(x, name: str):
    x = layers.Conv2D(4, 3, padding="same", name=name)(x)
    return layers.BatchNormalization(name=f"{name}_norm")(x)


def network_with_everything() -> keras.Model:
    """Return a model with a nested model, a layer that is called twice, and a branch."""
    inner_input = keras.Input((8, 8, 4))
    inner = keras.Model(inner_input, block(block(inner_input, "conv_a"), "conv_b"), name="body")
    inputs = keras.Input((8, 8, 2))
    x = inner(block(inputs, "stem"))
    shared = layers.Conv2D(4, 3, padding="same", name="shared")
    y = layers.Add(name="add")([x, shared(shared(x))])
    return keras.Model(inputs, layers.Dense(3, name="logits")(layers.Flatten()(y)), name="net")


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_model_without_its_quantizers_is_plain_and_the_same(make_bench, tmp_path, policy: str):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        bench = make_bench(BnnRounding(input_quantizer="ste_sign"), network_with_everything())
        model = bench.network.model
        assert sum(isinstance(each, InputQuantizer) for each in model._flatten_layers()) == 3
        plain = bench.hook.strip_model(model)
        assert not any(isinstance(each, InputQuantizer) for each in plain._flatten_layers())
        check_plain(plain, "sparse")
        assert [id(each) for each in plain.weights] == [id(each) for each in model.weights]
        inputs = np.random.default_rng(0).normal(size=(5, 8, 8, 2)).astype(np.float32)
        expected = model(inputs).numpy()
        np.testing.assert_array_equal(plain(inputs).numpy(), expected)
        plain.save(tmp_path / "plain.keras")
        loaded = keras.saving.load_model(tmp_path / "plain.keras")
        np.testing.assert_array_equal(loaded(inputs).numpy(), expected)
    finally:
        keras.config.set_dtype_policy(before)


def test_a_model_without_quantizers_is_returned_as_it_is():
    model = network_with_everything()
    assert write_out_input_quantizers(model) is model


def test_a_sequential_model_keeps_its_layers_and_its_name(make_bench):
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(5, name="a"), layers.Dense(5, name="b"), layers.Dense(2, name="c")], name="net"
    )
    bench = make_bench(BnnRounding(), model)
    plain = bench.hook.strip_model(bench.network.model)
    assert plain.name == "net"
    assert [each.name for each in plain.layers if each.weights] == ["a", "b", "c"]
