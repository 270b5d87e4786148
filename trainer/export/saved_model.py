"""The SavedModel of TensorFlow: a directory with a traced graph, which TensorFlow alone runs and serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.export.contents import Contents
from trainer.export.layer_table import layer_table
from trainer.export.options import ExportOptions
from trainer.export.plain_model import plain_model, single_model
from trainer.quiet import silent
from trainer.run.finished import FinishedRun


class SavedModelPredictor:
    """Predict with a SavedModel.

    Attributes:
        traced: its endpoint, which takes and returns tensors.
    """

    def __init__(self, loaded: Any) -> None:
        """Take what TensorFlow loaded.

        Args:
            loaded: with the endpoint "serve"; it holds the variables.
        """
        self._loaded = loaded
        self.traced = loaded.serve

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Return the outputs for inputs float32 [batch, ...]."""
        return np.asarray(self.traced(tf.constant(inputs, tf.float32)))


def write_saved_model(run: FinishedRun, network: str, path: Path, options: ExportOptions) -> Contents:
    """Write a SavedModel, as `Format.write` describes it. It has one endpoint "serve" for any number of examples.

    Args:
        run: restored.
        network: name of the network.
        path: of the directory.
        options: none of them counts here.
    """
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
    """Return what predicts with a SavedModel that has the endpoint "serve".

    Args:
        path: of the directory.

    Raises:
        UserError: it cannot be read, or has no such endpoint.
    """
    try:
        return SavedModelPredictor(tf.saved_model.load(str(path)))
    except (OSError, ValueError, AttributeError, tf.errors.OpError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(
            f"{path} cannot be loaded by TensorFlow: {reason} Expected a SavedModel with the endpoint 'serve'."
        ) from error
