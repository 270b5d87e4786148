"""Packed files of runs: what evaluation uses, computed as evaluation computes it, and the run left as it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.bnn_rounding import BnnRounding
from hooks.fused_batch_norm import FusedBatchNorm
from hooks.gradient_override import GradientOverride
from tests.support.masking import build_hooks
from tests.support.packed import kinds, layers, randomize
from tests.support.toy import CLASSES, FEATURES, ToyObjective, toy_batch
from trainer.errors import UserError
from trainer.export.options import ExportOptions
from trainer.export.packed import COLUMNS, packed_nodes, predictions_differ_by_rounding, write_packed
from trainer.hook import GraphHook
from trainer.inference.container import PACKED, container_sizes, read_container
from trainer.inference.engine import Model, load_model
from trainer.network import Network
from trainer.run.finished import FinishedRun
from trainer.run.precision import computing_in
from trainer.run.results import format_bytes
from trainer.step.evaluate import Evaluator
from trainer.step.trainer import Trainer

BATCHES = 4


def small_model(units: int = 24) -> keras.Model:
    inputs = keras.Input((FEATURES,), name="features")
    x = layers.Dense(units, use_bias=False, name="first")(inputs)
    x = layers.Activation("hard_tanh")(layers.BatchNormalization(name="norm_1")(x))
    x = layers.Dense(16, use_bias=False, name="second")(x)
    x = layers.Activation("hard_tanh")(layers.BatchNormalization(name="norm_2")(x))
    return keras.Model(inputs, layers.Dense(CLASSES, name="logits")(x), name="small")


def finished(*hooks: GraphHook, model: keras.Model | None = None) -> FinishedRun:
    """Return a run whose latent weights and statistics are random."""
    model = model or small_model()
    randomize(model, 1, dict.fromkeys(("first", "second", "logits")))
    for hook in hooks:
        model = hook.rebuild_model(model)
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    network = Network("model", model, optimizer)
    trainer = Trainer([network], [ToyObjective()], build_hooks(hooks, network), seed=0)

    class Parts:
        data = SimpleNamespace(input_shape=(FEATURES,), classes=CLASSES, class_names=("a", "b", "c"), preparation=None)
        test = Evaluator(trainer, lambda index: {**toy_batch(index), "weights": tf.ones([16])}, BATCHES)

    Parts.trainer = trainer  # type: ignore[attr-defined]
    return FinishedRun(Parts(), "last", 7)  # type: ignore[arg-type]


def rounding(**options) -> BnnRounding:
    hook = BnnRounding(all_binary=True, **options)
    hook.name = "bnn_rounding"
    return hook


def fused(**options) -> FusedBatchNorm:
    hook = FusedBatchNorm(network="model", **options)
    hook.name = "fused_batch_norm"
    return hook


def outputs_of(run: FinishedRun) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs of the test split and what the run's evaluation makes of them."""
    trainer = run.parts.trainer

    def compute(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        forward = trainer.forward(tf.constant(run.step, tf.int64), {}, objective="", training=False)
        given = run.parts.test.batch(index)["inputs"]
        return given, forward("model", given)

    traced = tf.function(compute, autograph=False)
    found = [traced(tf.constant(index, tf.int64)) for index in range(BATCHES)]
    inputs, outputs = ([np.asarray(each, np.float32) for each in part] for part in zip(*found, strict=True))
    return np.concatenate(inputs), np.concatenate(outputs)


def written(
    run: FinishedRun, path: Path, options: ExportOptions | None = None
) -> tuple[Model, Sequence[tuple[str, ...]]]:
    """Return the packed form of a run and the rows that are printed, once it is certain that the run is as it was."""
    variables = run.parts.trainer.networks["model"].variables
    before = {name: variable.numpy().tobytes() for name, variable in variables.items()}
    contents = write_packed(run, "model", path, options or ExportOptions())
    assert {name: variable.numpy().tobytes() for name, variable in variables.items()} == before
    assert contents.columns == COLUMNS
    header, data = container_sizes(path)
    assert contents.rows[-1][-1] == f"{data:,}"
    assert sum(int(row[-1].replace(",", "")) for row in contents.rows[:-1]) == data
    assert contents.notes[0] == f"data {data:,} bytes ({format_bytes(data)}), header {header:,} bytes"
    return load_model(path), contents.rows


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip": 0.3},
        {"kernel_quantizer": "magnitude_aware_sign"},
        {"kernel_quantizer": {"name": "dorefa", "k_bit": 2}, "input_quantizer": {"name": "dorefa", "k_bit": 2}},
        {"kernel_quantizer": "ste_tern", "input_quantizer": "ste_tern"},
        {"input_quantizer": None},
        {"kernel_quantizer": None},
        {"quantize_first_input": True},
    ],
    ids=lambda options: " ".join(f"{key}={value}" for key, value in options.items()) or "sign",
)
def test_the_file_computes_what_the_evaluation_of_the_run_does(tmp_path: Path, options):
    run = finished(rounding(**options))
    packed, rows = written(run, tmp_path / "a.packed.safetensors")
    inputs, expected = outputs_of(run)
    np.testing.assert_allclose(packed(inputs), expected, rtol=1e-4, atol=1e-4)
    assert predictions_differ_by_rounding(run, "model", packed, inputs)
    if not options:  # with a scale, TensorFlow's logits of equal sums are equal up to rounding
        np.testing.assert_array_equal(packed(inputs).argmax(1), expected.argmax(1))
    encodings = {row[0]: row[3] for row in rows if row[1] == "kernel"}
    quantizer = options.get("kernel_quantizer", "ste_sign")
    if options.get("input_quantizer", "ste_sign") == "ste_sign" and isinstance(quantizer, str):
        assert encodings["second"] == "sign"
        assert "threshold" in kinds(packed)
    if quantizer is None:
        assert encodings["second"] == "float32"
    if quantizer == "ste_tern":
        assert encodings["second"] == "codebook"


def test_thresholds_are_those_of_the_kernel_that_evaluation_runs_on(tmp_path: Path, monkeypatch):
    seen: list[str] = []
    run = finished(rounding(), fused(min_entries=0))
    import hooks.fused_batch_norm as module

    inner = module.call_fused
    monkeypatch.setattr(
        module, "call_fused", lambda layer, *args, **kwargs: seen.append(layer.name) or inner(layer, *args, **kwargs)
    )
    packed, _ = written(run, tmp_path / "a.packed.safetensors")
    assert "norm_2" in seen
    inputs, expected = outputs_of(run)
    np.testing.assert_array_equal(packed(inputs).argmax(1), expected.argmax(1))


def test_layers_that_change_gradients_alone_are_left_out(tmp_path: Path):
    override = GradientOverride(layers="*", backward="clip", network="model")
    override.name = "gradient_override"
    run = finished(rounding(), override)
    packed, _ = written(run, tmp_path / "a.packed.safetensors")
    assert kinds(packed) == ["dense", "scale_shift", "sign", "dense", "threshold", "dense"]


def test_a_run_in_half_precision_ships_its_network_in_float32(tmp_path: Path):
    tensors = {}
    for precision in ("bfloat16", "float32"):
        with computing_in(precision):
            run = finished(rounding(), model=small_model(units=400))
        norm = run.parts.trainer.networks["model"].model.get_layer("norm_2")
        norm.moving_mean.assign(np.linspace(251.4, 390.7, 16))  # bfloat16 has no odd numbers above 256
        written(run, tmp_path / f"{precision}.packed.safetensors")
        tensors[precision] = read_container(tmp_path / f"{precision}.packed.safetensors", PACKED)[1]
    half, full = tensors.values()
    assert half.keys() == full.keys()
    for name, array in half.items():
        np.testing.assert_array_equal(array, full[name], err_msg=name)
    assert sum((array % 2 == 1).any() for name, array in full.items() if name.endswith("thresholds")) == 1


def test_float16_is_for_what_has_no_smaller_exact_form(tmp_path: Path):
    hook = rounding()
    hook.all_binary = False
    run = finished(hook)
    _, rows = written(run, tmp_path / "half.packed.safetensors", ExportOptions(float16=True))
    assert [(row[0], row[1], row[3]) for row in rows[:-1]] == [
        ("first", "kernel", "float16"),
        ("norm_1", "scale", "float32"),
        ("norm_1", "shift", "float32"),
        ("second", "kernel", "sign"),
        ("norm_2", "scale", "float32"),
        ("norm_2", "shift", "float32"),
        ("logits", "kernel", "float16"),
        ("logits", "bias", "float16"),
    ]


def one_more(layer: keras.Layer) -> keras.Model:
    inputs = keras.Input((FEATURES,))
    return keras.Model(inputs, layers.Dense(CLASSES)(layer(inputs)), name="net")


class Subclassed(keras.Model):
    """Have no graph."""

    def __init__(self) -> None:
        super().__init__(name="own")
        self.dense = layers.Dense(CLASSES)
        self.build((None, FEATURES))

    def build(self, shape) -> None:
        self.dense.build(shape)
        self.built = True

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.dense(inputs)


def two_inputs() -> keras.Model:
    first, second = keras.Input((FEATURES,)), keras.Input((FEATURES,))
    return keras.Model([first, second], [layers.Dense(CLASSES)(layers.Add()([first, second]))], name="net")


def grouped() -> keras.Model:
    return keras.Sequential([keras.Input((4, 4, 4)), layers.Conv2D(4, 3, groups=2, name="conv")], name="net")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: one_more(layers.LayerNormalization(name="norm")), "for norm (LayerNormalization) of 'net'"),
        (lambda: one_more(layers.Activation("gelu", name="act")), "act (Activation: activation gelu)"),
        (lambda: one_more(layers.ReLU(max_value=3.0, name="act")), "act (ReLU: max_value=3)"),
        (grouped, "conv (Conv2D: groups=2)"),
        (Subclassed, "'own' is a Subclassed"),
        (two_inputs, "'net' has 2 inputs and 1 outputs"),
    ],
)  # fmt: skip
def test_what_the_format_cannot_hold_is_one_line(tmp_path: Path, make, message: str):
    with pytest.raises(UserError) as caught:
        packed_nodes(make(), lambda *_: pytest.fail("nothing is computed"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_that_are_not_finite_are_refused(tmp_path: Path):
    run = finished()
    run.parts.trainer.networks["model"].model.get_layer("second").kernel.assign(np.full((24, 16), np.nan))
    with pytest.raises(UserError, match="second/kernel holds values that are not finite"):
        write_packed(run, "model", tmp_path / "a.packed.safetensors", ExportOptions())
    assert not list(tmp_path.iterdir())
