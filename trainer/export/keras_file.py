"""The format of Keras: one file with the layers and their weights, which Keras alone reads and trains on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

from trainer.errors import UserError
from trainer.export.contents import Contents
from trainer.export.layer_table import layer_table
from trainer.export.options import ExportOptions
from trainer.export.plain_model import plain_copy
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

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Return the outputs for inputs [batch, ...]."""
        outputs: Any = self.model(inputs, training=False)
        return np.asarray(outputs)


def write_keras(run: FinishedRun, network: str, path: Path, options: ExportOptions) -> Contents:
    """Write a .keras file, as `Format.write` describes it.

    Args:
        run: restored.
        network: name of the network.
        path: of the file.
        options: none of them counts here.
    """
    del options
    model = plain_copy(run, network)
    model.save(path)
    return layer_table(model)


def load_keras(path: Path) -> KerasPredictor:
    """Return what predicts with a .keras file; nothing but layers of Keras is built.

    Args:
        path: of the file.

    Raises:
        UserError: it cannot be read, or holds something else.
    """
    try:
        return KerasPredictor(keras.saving.load_model(path, compile=False))
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"{path} cannot be loaded by Keras: {reason} Expected a .keras file.") from error
