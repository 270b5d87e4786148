"""Packed files compute what the model and the run that they come from compute."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.deploy.formats import ExportOptions
from hookline.deploy.inference.card import read_card
from hookline.deploy.inference.container import PACKED, container_sizes, read_container
from hookline.deploy.inference.engine import Model, load_model
from hookline.deploy.inference.graph import INTEGER
from hookline.deploy.packed import write_packed
from hookline.hooks.bnn_rounding import BnnRounding
from hookline.trainer.final_activation import take_off
from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.run.machine import computing_in
from hookline.trainer.run.run import Run
from hookline.trainer.step.evaluate import Evaluator
from tests.support.hooked import built, named
from tests.support.packed import (
    exact_inputs,
    inner_value,
    inner_values,
    kinds,
    layers,
    pack,
    pack_arrays,
    randomize,
    sign,
)
from tests.support.toy import CLASSES, FEATURES, ToyObjective, toy_batch


def binary_cnn(*, pool_first: bool = True, padding: str = "valid"):
    """Return convolutions that pool before or after batch norm, then dense layers."""
    inputs = x = keras.Input((11, 10, 2), name="image")
    for block in (1, 2):
        if block > 1:
            x = sign(f"sign_{block}")(x)
        x = layers.Conv2D(8, 3, padding=padding, use_bias=False, name=f"conv_{block}")(x)
        x = layers.MaxPooling2D(2, name=f"pool_{block}")(x) if pool_first else x
        x = layers.BatchNormalization(name=f"norm_{block}")(x)
        x = layers.Activation("hard_tanh", name=f"activation_{block}")(x)
        x = x if pool_first else layers.MaxPooling2D(2, name=f"pool_{block}")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(9, use_bias=False, name="dense")(sign("sign_3")(x))
    x = layers.BatchNormalization(name="norm_3", scale=False)(x)
    x = layers.Dropout(0.5, name="dropout")(x)
    x = layers.Dense(4, use_bias=False, name="logits")(sign("sign_4")(x))
    return keras.Model(inputs, layers.BatchNormalization(name="norm_4")(x), name="cnn")


def check(model: keras.Model, *, sums: tuple[str, ...] = (), signs: tuple[str, ...] = ()):
    """Check outputs, integers and signs of every example against the model's, and return the packed form."""
    packed, inputs = pack(model), exact_inputs(model)
    np.testing.assert_allclose(packed(inputs), np.asarray(model(inputs)), rtol=1e-5, atol=1e-5)
    if sums or signs:
        inner = inner_values(model, inputs)
        for name in (*sums, *signs):
            np.testing.assert_array_equal(inner_value(name, inputs, *pack_arrays(model)), inner[name], err_msg=name)
        assert {packed.values[name].kind for name in sums} <= {INTEGER}
    return packed


SIGNS = ("sign_2", "sign_3", "sign_4")


@pytest.mark.parametrize(("pool_first", "padding"), [(True, "valid"), (False, "same")])
def test_packed_integers_and_signs_match_model(pool_first: bool, padding: str):
    model = binary_cnn(pool_first=pool_first, padding=padding)
    randomize(model, int(not pool_first))
    packed = check(model, sums=("conv_2", "dense", "logits"), signs=SIGNS)
    assert kinds(packed).count("threshold") == 2
    assert [op.name for op in packed.graph.ops if op.op == "scale_shift"] == ["norm_1", "norm_4"]
    assert "activation" not in kinds(packed)
    assert kinds(packed).count("sign") == 1  # of float sums
    pooled = [packed.values[op.inputs[0]].kind for op in packed.graph.ops if op.op == "max_pool2d"]
    assert pooled == (["float", "integer"] if pool_first else ["float", "binary"])


def test_values_with_several_uses_are_not_folded():
    inputs = keras.Input((6,))
    x = layers.BatchNormalization()(layers.Dense(5, use_bias=False, name="first")(sign("sign_1")(inputs)))
    y = layers.Dense(5, use_bias=False, name="second")(sign("sign_2")(x))
    z = layers.Dense(5, use_bias=False, name="third")(sign("sign_2b")(x))
    model = keras.Model(inputs, layers.Add()([x, y, z]))
    randomize(model, 8)
    packed = check(model, sums=("first", "second", "third"))
    assert kinds(packed).count("sign") == 2  # equal signs are merged
    assert "threshold" not in kinds(packed)


BATCHES = 4


def small_model(units: int = 24) -> keras.Model:
    inputs = keras.Input((FEATURES,), name="features")
    x = layers.Dense(units, use_bias=False, name="first")(inputs)
    x = layers.Activation("hard_tanh")(layers.BatchNormalization(name="norm_1")(x))
    x = layers.Dense(16, use_bias=False, name="second")(x)
    x = layers.Activation("hard_tanh")(layers.BatchNormalization(name="norm_2")(x))
    return keras.Model(inputs, layers.Dense(CLASSES, name="logits")(x), name="small")


class Classify(ToyObjective):
    """Have a class loss, so that the names of the classes are written to the file."""

    class_losses = ("loss",)


def finished(*hooks: GraphHook, model: keras.Model | None = None) -> Run:
    """Return a run whose latent weights and statistics are random."""
    model, ends = take_off(model or small_model())
    randomize(model, 1, dict.fromkeys(("first", "second", "logits")))
    network = Network("model", model, keras.optimizers.SGD(0.1), final_activations=ends)
    trainer = built(network, *hooks, objective=Classify())
    data = SimpleNamespace(
        input_shape=(FEATURES,), classes=CLASSES, class_names=("cat", "ant", "bee"), preparation=None
    )
    test = Evaluator(trainer, lambda index: {**toy_batch(index), "weights": tf.ones([16])}, BATCHES)
    run = SimpleNamespace(trainer=trainer, data=data, held_out={"test": test}, checkpoint="last", step=7)
    return cast(Run, run)


def rounding(**options) -> BnnRounding:
    return named(BnnRounding(**{"all_binary": True, **options}))


def outputs_of(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs of the test split and their outputs in the run's evaluation."""
    trainer = run.trainer

    def compute(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        forward = trainer.forward(tf.constant(run.step, tf.int64), {}, objective="", training=False)
        given = run.held_out["test"].batch(index)["inputs"]
        return given, forward("model", given)

    traced = tf.function(compute, autograph=False)
    found = [traced(tf.constant(index, tf.int64)) for index in range(BATCHES)]
    inputs, outputs = ([np.asarray(each, np.float32) for each in part] for part in zip(*found, strict=True))
    return np.concatenate(inputs), np.concatenate(outputs)


def written(run: Run, path: Path, options: ExportOptions | None = None) -> tuple[Model, Sequence[tuple[str, ...]]]:
    """Return the packed form of a run and the printed rows, after checking that the run is unchanged."""
    variables = run.trainer.networks["model"].variables
    before = {name: variable.numpy().tobytes() for name, variable in variables.items()}
    contents = write_packed(run, "model", path, options or ExportOptions())
    assert {name: variable.numpy().tobytes() for name, variable in variables.items()} == before
    _, data = container_sizes(path)
    assert contents.rows[-1][-1] == f"{data:,}"
    assert sum(int(row[-1].replace(",", "")) for row in contents.rows[:-1]) == data
    assert f"data {data:,} bytes" in contents.notes[0]
    assert read_card(path).classes == ("cat", "ant", "bee")
    return load_model(path), contents.rows


QUANTIZERS = [
    {},
    {"kernel_quantizer": "magnitude_aware_sign"},
    {"kernel_quantizer": "ste_tern", "input_quantizer": {"name": "dorefa", "k_bit": 2}},
    {"kernel_quantizer": None, "quantize_first_input": True},
]


@pytest.mark.parametrize("options", QUANTIZERS, ids=str)
def test_packed_file_matches_evaluation_of_run(tmp_path: Path, options):
    model = small_model()
    model.get_layer("logits").activation = keras.activations.softmax
    run = finished(rounding(**options), model=model)
    packed, rows = written(run, tmp_path / "a.packed.safetensors")
    assert read_card(tmp_path / "a.packed.safetensors").activation == "softmax"
    inputs, logits = outputs_of(run)
    expected = np.exp(logits - logits.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(packed(inputs), expected, rtol=1e-4, atol=1e-4)
    if not options:  # with a scale, TensorFlow's logits of equal sums are equal only up to rounding
        np.testing.assert_array_equal(packed(inputs).argmax(1), logits.argmax(1))
    encodings = {row[0]: row[3] for row in rows if row[1] == "kernel"}
    quantizer = options.get("kernel_quantizer", "ste_sign")
    if options.get("input_quantizer", "ste_sign") == "ste_sign" and isinstance(quantizer, str):
        assert encodings["second"] == "sign"
        assert "threshold" in kinds(packed)
        assert not {"identity", "activation"} & {*kinds(packed)[:-1]}  # the last one is the softmax
    if quantizer in (None, "ste_tern"):
        assert encodings["second"] == ("float32" if quantizer is None else "codebook")


def test_half_precision_run_ships_network_in_float32(tmp_path: Path):
    tensors = {}
    for precision in ("bfloat16", "float32"):
        with computing_in(precision):
            run = finished(rounding(), model=small_model(units=400))
        norm = run.trainer.networks["model"].model.get_layer("norm_2")
        norm.moving_mean.assign(np.linspace(251.4, 390.7, 16))  # bfloat16 has no odd numbers above 256
        written(run, tmp_path / f"{precision}.packed.safetensors")
        tensors[precision] = read_container(tmp_path / f"{precision}.packed.safetensors", PACKED)[1]
    half, full = tensors.values()
    np.testing.assert_equal(half, full)
    assert sum((array % 2 == 1).any() for name, array in full.items() if name.endswith("thresholds")) == 1
