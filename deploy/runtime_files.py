"""Exports for Keras, TensorFlow, LiteRT and ONNX Runtime."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.export.tf2onnx_lib import patch_tf2onnx
from tensorflow.lite.python.convert_phase import ConverterError

from hookline.deploy.compare import with_model
from hookline.deploy.formats import Contents, ExportOptions, first_line
from hookline.deploy.integer import unknown_operations, write_integer, write_qdq
from hookline.deploy.plain_model import check_weights, foreign_names, is_fake_quantized, plain_model, single_model
from hookline.trainer.deferred import silent
from hookline.trainer.errors import UserError, import_optional
from hookline.trainer.graph import layer_paths
from hookline.trainer.hook import Run
from hookline.trainer.step.evaluate import Evaluator

COLUMNS = ("layer", "weights", "values", "zeros", "sparsity", "float32 bytes")


def layer_table(model: keras.Model, *notes: str, lossy: bool = False) -> Contents:
    """Return a row for each layer with a matrix or a kernel, one for all other weights, and one for the total.

    The "values" of a row are the number of distinct values in the layer: 2 for signs.
    """
    arrays: dict[str, list[np.ndarray]] = {}
    seen: set[int] = set()
    for path, layer in layer_paths(model).items():
        for weight in () if isinstance(layer, keras.Model) else layer.weights:  # its layers have rows of their own
            if len(weight.shape) >= 2 and "bias" not in weight.name and id(weight) not in seen:  # a GRU's has two axes
                seen.add(id(weight))
                arrays.setdefault(path, []).append(weight.numpy())
    named = list(arrays.items())
    if others := [weight.numpy() for weight in model.weights if id(weight) not in seen]:
        named.append(("others", others))
    named.append(("total", [array for _, each in named for array in each]))
    return Contents(COLUMNS, tuple(_row(*each) for each in named), notes, lossy)


def _row(name: str, arrays: list[np.ndarray]) -> tuple[str, ...]:
    entries = np.concatenate([np.zeros(0, np.float32), *map(np.ravel, arrays)])
    zeros = int((entries == 0).sum())
    share = zeros / entries.size if entries.size else 0.0
    counts = (f"{entries.size:,}", f"{np.unique(entries).size:,}", f"{zeros:,}")
    return name, *counts, f"{share:.4f}", f"{4 * entries.size:,}"


@dataclass(frozen=True)
class KerasPredictor:
    """Predict with a Keras model."""

    model: keras.Model

    def traced(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the outputs for inputs [batch, ...], also within a `tf.function`."""
        return self.model(inputs, training=False)

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        found: np.ndarray = tf.nest.map_structure(np.asarray, self.traced(inputs))
        return found


def write_keras(run: Run, network: str, path: Path, _: ExportOptions) -> Contents:
    """Write a .keras file."""
    with plain_model(run.trainer, run.step, network) as model:
        try:
            model.save(path, include_optimizer=False)
        except (NotImplementedError, TypeError, ValueError) as error:
            raise UserError(
                f"format=keras cannot hold '{model.name}': {first_line(error)} Expected classes whose get_config "
                "returns all constructor arguments, or format=saved_model."
            ) from error
        names = ", ".join(foreign_names(model))
        note = f"loads where these are registered with Keras, or with plugins=[<their module>]: {names}"
        return layer_table(model, *([note] if names else []))


def load_keras(path: Path) -> KerasPredictor:
    """Return the predictor of a .keras file; only parts of Keras and objects registered with it are built."""
    return KerasPredictor(keras.saving.load_model(path, compile=False))


class SavedModelPredictor:
    """Predict with the endpoint "serve" of a SavedModel."""

    def __init__(self, path: Path) -> None:
        self._loaded: Any = tf.saved_model.load(str(path))  # kept, or its variables are freed
        self.traced = self._loaded.serve
        (self._given,) = self._loaded.signatures["serve"].structured_input_signature[1].values()

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        return np.asarray(self.traced(tf.cast(inputs, self._given.dtype)))


load_saved_model = SavedModelPredictor


def write_saved_model(run: Run, network: str, path: Path, _: ExportOptions) -> Contents:
    """Write a SavedModel with one endpoint "serve" for any number of examples."""
    with plain_model(run.trainer, run.step, network) as own:
        model = single_model(run, network, own, "saved_model")
        archive = keras.export.ExportArchive()  # `model.export` would track the model too, and store variables twice
        for table in _tables(model):
            archive.track(table)
        with silent():
            signature = [_input_spec(model)]
            archive.add_endpoint("serve", lambda inputs: model(inputs, training=False), input_signature=signature)
            archive.write_out(path, verbose=False)
        return layer_table(own)


def _tables(model: keras.Model) -> list[Any]:
    """Return the tables of lookup layers, which are in no list of variables."""
    held = [each for layer in model._flatten_layers() for each in vars(layer).values()]
    return [each for each in held if isinstance(each, tf.saved_model.experimental.TrackableResource)]


def _input_spec(model: keras.Model) -> tf.TensorSpec:
    return tf.TensorSpec(model.inputs[0].shape, model.inputs[0].dtype, name=model.inputs[0].name)


OPSET = 18


def write_onnx(run: Run, network: str, path: Path, _: ExportOptions) -> Contents:
    """Write an .onnx file for any batch size; with QDQ nodes if the network was trained with fake quantization."""
    with plain_model(run.trainer, run.step, network) as own:
        model = single_model(run, network, own, "onnx")
        check_weights(model.weights, "onnx", lambda dtype: dtype == "bfloat16")
        if is_fake_quantized(model):
            return layer_table(own, write_qdq(model, path, OPSET), lossy=True)
        with silent(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # from Keras, which uses a deprecated NumPy name
            signature = [_input_spec(model)]
            call = tf.function(KerasPredictor(model).traced, input_signature=signature, autograph=False)
            _make_constant(model)
            patch_tf2onnx()
            tf2onnx = import_optional("tf2onnx", extra="onnx", needed_by="format=onnx")
            # Fusing a Pad op into a dilated convolution would drop the padding that the convolution already has.
            tf2onnx.tfonnx.rewrite_conv2d_with_pad = lambda _, ops: ops
            handlers: dict[str, Any] = {"Erfc": (_write_erfc, [])}
            proto, _ = tf2onnx.convert.from_function(
                call, signature, opset=OPSET, custom_op_handlers=handlers, output_path=str(path)
            )
        onnx = import_optional("onnx", extra="onnx", needed_by="format=onnx")
        if unknown := sorted(
            {each.op_type for each in proto.graph.node if not onnx.defs.has(each.op_type, each.domain)}
        ):
            raise UserError(
                f"ONNX cannot hold this network: no operation {', '.join(unknown)}. Expected another format, such as "
                "format=saved_model or format=keras."
            )
        return layer_table(own)


def _make_constant(model: keras.Model) -> None:
    """Replace mean and variance of Normalization layers by arrays: traced tensors would become inputs of the file."""
    for each in model._flatten_layers():
        if isinstance(each, keras.layers.Normalization):
            each.mean, each.variance = np.asarray(each.mean), np.asarray(each.variance)


def _write_erfc(graph: Any, node: Any, name: str, _: Sequence[Any]) -> None:
    """Write Erfc, which GELU uses and ONNX lacks, as 1 - Erf into a tf2onnx graph."""
    (made,) = node.output
    kinds = {"shapes": [graph.get_shape(made)], "dtypes": [graph.get_dtype(made)]}
    one = graph.make_const(f"{name}/one", np.ones([], np.float32))
    erf = graph.make_node("Erf", node.input[:1])
    graph.remove_node(node.name)
    graph.make_node("Sub", [one.output[0], erf.output[0]], outputs=[made], **kinds)


CALIBRATION_EXAMPLES = 256


def write_litert(run: Run, network: str, path: Path, options: ExportOptions) -> Contents:
    """Write a .tflite file for any batch size.

    With `int8`, weights are rounded to 8 bits, with one scale per output channel, and so are activations, with ranges
    calibrated on training examples; inputs and outputs stay float32. A network trained with fake quantization is
    written in integers, including inputs and outputs, with its own ranges.
    """
    with plain_model(run.trainer, run.step, network) as own:
        model = single_model(run, network, own, "litert")
        check_weights(model.weights, "litert", lambda dtype: dtype in ("bfloat16", "float16", "float64"))
        if is_fake_quantized(model):
            return layer_table(own, write_integer(model, path), lossy=True)
        notes, rounding = [], {}
        if options.int8:
            seen = calibration_examples(run, network, model)
            rounding = {
                "optimizations": [tf.lite.Optimize.DEFAULT],
                "representative_dataset": lambda: ([seen[row : row + 1]] for row in range(len(seen))),
            }
            ranges = f"ranges of {len(seen)} training examples"
            notes = [f"int8: weights and activations in 8 bits, {ranges}; inputs and outputs float32"]
        target = {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}
        try:
            with silent():
                model.export(path, format="litert", verbose=False, target_spec=target, **rounding)
        except (ConverterError, ValueError, RuntimeError) as error:
            unknown = unknown_operations(error)
            reason = f"no operation {', '.join(unknown)}" if unknown else first_line(error)
            recurrent = any(each.startswith("TensorList") for each in unknown)
            remedy = "GRU and LSTM layers with unroll=True, or " if recurrent else ""
            raise UserError(
                f"LiteRT cannot hold this network: {reason}. Expected {remedy}another format, such as "
                "format=saved_model."
            ) from error
        return layer_table(own, *notes, lossy=options.int8)


def calibration_examples(run: Run, network: str, model: keras.Model) -> np.ndarray:
    """Return a network's inputs when the run evaluates training examples, without augmentation.

    The examples are evenly spaced over the split, so they cover all classes even if they are sorted by class. The
    inputs of a generator are noise.
    """
    split = run.training.split
    chosen = np.linspace(0, len(split.indices) - 1, min(CALIBRATION_EXAMPLES, len(split.indices))).round()
    rows = tf.constant(split.indices[chosen.astype(np.int64)])
    recorder = Recorder(dtype="float32", autocast=False)
    recording = keras.Model(model.inputs[0], model(recorder(model.inputs[0])), name=model.name)
    trainer = with_model(run.trainer, network, recording)
    weights = tf.ones(rows.shape, tf.float32)
    Evaluator(trainer, lambda _: {**split.source.gather(rows), "index": rows, "weights": weights}, 1).run(run.step)
    if not recorder.seen:
        raise UserError(f"int8=true needs inputs of '{network}', but evaluations do not run it. Expected int8=false.")
    return np.concatenate(recorder.seen)[:CALIBRATION_EXAMPLES]


class Recorder(keras.layers.Layer):
    """Return the input unchanged, and append it to `seen`: [batch, ...] of each call."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[np.ndarray] = []

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        kept = tf.py_function(lambda given: self.seen.append(given.numpy()), [inputs], [])
        with tf.control_dependencies([kept]):
            return tf.identity(inputs)
