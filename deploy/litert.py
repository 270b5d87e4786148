"""Exports for LiteRT."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.lite.python.convert_phase import ConverterError

from hookline.deploy.compare import with_model
from hookline.deploy.integer import write_integer
from hookline.deploy.options import Contents, ExportOptions, first_line
from hookline.deploy.plain_model import is_fake_quantized, plain_model, single_model
from hookline.deploy.runtime_files import layer_table
from hookline.trainer.errors import UserError
from hookline.trainer.quiet import silent
from hookline.trainer.step.evaluate import Evaluator

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run

CALIBRATION_EXAMPLES = 256


def write_litert(run: Run, network: str, path: Path, options: ExportOptions) -> Contents:
    """Write a .tflite file, as `Format.write` describes it, for any number of examples.

    With `int8` weights are rounded to 8 bits, one scale for each output channel, and activations too, to the ranges
    that training examples give them. Inputs and outputs stay float32, so the file is called like any other: the first
    operation quantizes, the last one dequantizes.

    A network that was trained with fake quantization is written in integers, inputs and outputs too, with its own
    ranges.
    """
    with plain_model(run, network) as own:
        model = single_model(run, network, own, "litert")
        if is_fake_quantized(model):
            return layer_table(own, notes=(write_integer(model, path),), lossy=True)
        notes = _convert(run, network, model, path, options)
        return layer_table(own, notes=notes, lossy=options.int8)


def _convert(run: Run, network: str, model: keras.Model, path: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write a model, and return lines on how it was rounded."""
    quantized: dict[str, Any] = {}
    if options.int8:
        examples = calibration_examples(run, network, model)
        quantized = {"optimizations": [tf.lite.Optimize.DEFAULT], "representative_dataset": lambda: _singly(examples)}
    try:
        with silent():
            model.export(
                path,
                format="litert",
                verbose=False,
                target_spec={"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]},
                **quantized,
            )
    except (ConverterError, ValueError, RuntimeError) as error:
        raise _refused(error) from error
    return _notes(options, len(examples) if options.int8 else 0)


def _notes(options: ExportOptions, examples: int) -> tuple[str, ...]:
    if not options.int8:
        return ()
    return (
        f"int8: weights and activations in 8 bits, ranges of {examples} training examples; inputs and outputs float32",
    )


def _refused(error: Exception) -> UserError:
    unknown = sorted(set(re.findall(r"'tf\.(\w+)' op", str(error))))
    reason = f"no operation {', '.join(unknown)}" if unknown else first_line(error)
    return UserError(f"LiteRT cannot hold this network: {reason}. Expected another format, such as format=saved_model.")


def calibration_examples(run: Run, network: str, model: keras.Model) -> np.ndarray:
    """Return a network's inputs when the run evaluates training examples, without augmentation.

    They are evenly spaced over the split, so they cover all classes even if examples are sorted by class. For a
    generator it is noise.
    """
    split = run.training.split
    chosen = np.linspace(0, len(split.indices) - 1, min(CALIBRATION_EXAMPLES, len(split.indices))).round()
    rows = tf.constant(split.indices[chosen.astype(np.int64)])
    recorder = Recorder(dtype="float32")
    recording = keras.Model(model.inputs[0], model(recorder(model.inputs[0])), name=model.name)
    trainer = with_model(run.trainer, network, recording)
    weights = tf.ones(rows.shape, tf.float32)
    Evaluator(trainer, lambda _: {**split.source.gather(rows), "index": rows, "weights": weights}, 1).run(run.step)
    if not recorder.seen:
        raise UserError(f"int8=true needs what '{network}' sees, but evaluations do not run it. Expected int8=false.")
    return np.concatenate(recorder.seen)[:CALIBRATION_EXAMPLES]


class Recorder(keras.layers.Layer):
    """Return its input, and keep it.

    Attributes:
        seen: float32 [batch, ...] of each call.
    """

    def __init__(self, **options: Any) -> None:
        """Keep nothing yet."""
        super().__init__(**options)
        self.seen: list[np.ndarray] = []

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return `inputs`, once they are kept."""
        kept = tf.numpy_function(self._keep, [inputs], tf.int32)
        with tf.control_dependencies([kept]):
            return tf.identity(inputs)

    def _keep(self, inputs: np.ndarray) -> np.int32:
        self.seen.append(np.array(inputs, np.float32))
        return np.int32(0)


def _singly(examples: np.ndarray) -> Iterator[list[np.ndarray]]:
    for index in range(len(examples)):
        yield [examples[index : index + 1]]
