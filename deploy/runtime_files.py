"""Exports for Keras, TensorFlow and ONNX Runtime."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from hookline.deploy.options import Contents, ExportOptions, first_line
from hookline.deploy.plain_model import foreign_names, is_fake_quantized, plain_model, single_model
from hookline.deploy.qdq import write_qdq
from hookline.trainer.errors import UserError
from hookline.trainer.quiet import silent
from hookline.trainer.select import layer_paths

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run

COLUMNS = ("layer", "weights", "values", "zeros", "sparsity", "float32 bytes")
OTHERS, TOTAL = "others", "total"


def layer_table(model: keras.Model, *, notes: tuple[str, ...] = (), lossy: bool = False) -> Contents:
    """Return a row for each layer with a matrix or a kernel, one for all other weights, and one for the whole.

    The values of a row are those that differ, over all entries of the layer: 2 where they are signs.
    """
    arrays: dict[str, list[np.ndarray]] = {}
    seen: set[int] = set()
    for path, layer in layer_paths(model).items():
        for weight in () if isinstance(layer, keras.Model) else layer.weights:  # layers inside have their own rows
            if len(weight.shape) >= 2 and id(weight) not in seen:
                seen.add(id(weight))
                arrays.setdefault(path, []).append(weight.numpy())
    others = [weight.numpy() for weight in model.weights if id(weight) not in seen]
    rows = [_row(path, each) for path, each in arrays.items()]
    rows += [_row(OTHERS, others)] if others else []
    everything = [array for each in arrays.values() for array in each] + others
    return Contents(COLUMNS, (*rows, _row(TOTAL, everything)), notes, lossy)


def _row(name: str, arrays: list[np.ndarray]) -> tuple[str, ...]:
    entries = np.concatenate([np.ravel(each) for each in arrays]) if arrays else np.zeros(0, np.float32)
    zeros = int((entries == 0).sum())
    share = zeros / entries.size if entries.size else 0.0
    return (
        name,
        f"{entries.size:,}",
        f"{np.unique(entries).size:,}",
        f"{zeros:,}",
        f"{share:.4f}",
        f"{4 * entries.size:,}",
    )


class KerasPredictor:
    """Predict with a Keras model.

    Attributes:
        model: what predicts.
    """

    def __init__(self, model: keras.Model) -> None:
        """Take the model."""
        self.model = model

    def traced(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the outputs for inputs [batch, ...], inside of a function of TensorFlow too."""
        return self.model(inputs, training=False)

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Return the outputs for inputs [batch, ...]."""
        found: np.ndarray = tf.nest.map_structure(np.asarray, self.traced(inputs))
        return found


def write_keras(run: Run, network: str, path: Path, options: ExportOptions) -> Contents:
    """Write a .keras file, as `Format.write` describes it."""
    del options
    with plain_model(run, network) as model:
        try:
            model.save(path, include_optimizer=False)
        except (NotImplementedError, TypeError, ValueError) as error:
            raise UserError(
                f"format=keras cannot hold '{model.name}': {first_line(error)} Expected classes whose get_config "
                "has every argument of theirs, or format=saved_model."
            ) from error
        return layer_table(model, notes=_notes(model))


def _notes(model: keras.Model) -> tuple[str, ...]:
    """Return one line if a file loads only with the user's code."""
    if not (names := foreign_names(model)):
        return ()
    return (f"loads where these are registered with Keras, or with plugins=[<their module>]: {', '.join(names)}",)


def load_keras(path: Path) -> KerasPredictor:
    """Return the predictor of a .keras file; only parts of Keras, and what is registered with it, are built."""
    try:
        return KerasPredictor(keras.saving.load_model(path, compile=False))
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = first_line(error).partition(" Full object config")[0]
        raise UserError(
            f"{path} cannot be loaded by Keras: {reason} Expected a .keras file, with plugins=[<module>] where it "
            "holds classes of your own."
        ) from error


class SavedModelPredictor:
    """Predict with a SavedModel.

    Attributes:
        traced: its endpoint, which takes and returns tensors.
    """

    def __init__(self, loaded: Any) -> None:
        """Take what TensorFlow loaded."""
        self._loaded = loaded
        self.traced = loaded.serve

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Return the outputs for inputs float32 [batch, ...]."""
        return np.asarray(self.traced(tf.constant(inputs, tf.float32)))


def write_saved_model(run: Run, network: str, path: Path, options: ExportOptions) -> Contents:
    """Write a SavedModel, as `Format.write` describes it. It has one endpoint "serve" for any number of examples."""
    del options
    with plain_model(run, network) as own:
        model = single_model(run, network, own, "saved_model")
        archive = keras.export.ExportArchive()  # `model.export` would track the model too, and store variables twice
        given = tf.TensorSpec(model.inputs[0].shape, tf.float32, name=model.inputs[0].name)
        with silent():
            archive.add_endpoint("serve", lambda inputs: model(inputs, training=False), input_signature=[given])
            archive.write_out(path, verbose=False)
        return layer_table(own)


def load_saved_model(path: Path) -> SavedModelPredictor:
    """Return what predicts with a SavedModel that has the endpoint "serve"."""
    try:
        return SavedModelPredictor(tf.saved_model.load(str(path)))
    except (OSError, ValueError, AttributeError, tf.errors.OpError) as error:
        raise UserError(
            f"{path} cannot be loaded by TensorFlow: {first_line(error)} Expected a SavedModel with the endpoint "
            "'serve'."
        ) from error


OPSET = 18


def write_onnx(run: Run, network: str, path: Path, options: ExportOptions) -> Contents:
    """Write an .onnx file, as `Format.write` describes it, for any number of examples.

    A network that was trained with fake quantization is written with its integers and ranges, as QDQ nodes.
    """
    del options
    with plain_model(run, network) as own:
        model = single_model(run, network, own, "onnx")
        if is_fake_quantized(model):
            return layer_table(own, notes=(write_qdq(model, path, OPSET),), lossy=True)
        given = tf.TensorSpec(model.inputs[0].shape, tf.float32, name=model.inputs[0].name)
        with silent(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # from Keras, which uses a deprecated NumPy name
            model.export(path, format="onnx", verbose=False, input_signature=[given], opset_version=OPSET)
        return layer_table(own)
