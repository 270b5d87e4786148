"""The format of Keras: one file with the layers and their weights, which Keras alone reads and trains on."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.export.contents import Contents
from trainer.export.layer_table import layer_table
from trainer.export.options import ExportOptions
from trainer.export.plain_model import foreign_names, plain_model
from trainer.run.finished import FinishedRun


class KerasPredictor:
    """Predict with a Keras model.

    Attributes:
        model: what predicts.
    """

    def __init__(self, model: keras.Model) -> None:
        """Take the model.

        Args:
            model: of any inputs and outputs; of one each where this is called.
        """
        self.model = model

    def traced(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the outputs for inputs [batch, ...], inside of a function of TensorFlow too."""
        return self.model(inputs, training=False)

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Return the outputs for inputs [batch, ...]."""
        return np.asarray(self.traced(inputs))


def write_keras(run: FinishedRun, network: str, path: Path, options: ExportOptions) -> Contents:
    """Write a .keras file, as `Format.write` describes it.

    Args:
        run: restored.
        network: name of the network.
        path: of the file.
        options: none of them counts here.
    """
    del options
    with plain_model(run, network) as model:
        try:
            model.save(path)
        except (NotImplementedError, TypeError, ValueError) as error:
            raise _refused(model, str(error)) from error
        return layer_table(model, notes=_notes(model))


def _refused(model: keras.Model, reason: str) -> UserError:
    return UserError(
        f"format=keras cannot hold '{model.name}': {next(iter(reason.strip().splitlines()), '')} Expected classes "
        "whose get_config has every argument of theirs, or format=saved_model."
    )


def _notes(model: keras.Model) -> tuple[str, ...]:
    """Return one line where a file loads with code of the user's alone."""
    if not (names := foreign_names(model)):
        return ()
    return (f"loads where these are registered with Keras, or with plugins=[<their module>]: {', '.join(names)}",)


def load_keras(path: Path) -> KerasPredictor:
    """Return what predicts with a .keras file; nothing is built but parts of Keras, and what is registered with it.

    Args:
        path: of the file.

    Raises:
        UserError: it cannot be read, or holds something else.
    """
    try:
        return KerasPredictor(keras.saving.load_model(path, compile=False))
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).partition(" Full object config")[0]
        raise UserError(
            f"{path} cannot be loaded by Keras: {reason} Expected a .keras file, with plugins=[<module>] where it "
            "holds classes of your own."
        ) from error
