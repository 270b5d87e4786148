"""ONNX: one file that many runtimes read, among them ONNX Runtime."""

from __future__ import annotations

import warnings
from pathlib import Path

import tensorflow as tf

from trainer.export.contents import Contents
from trainer.export.layer_table import layer_table
from trainer.export.options import ExportOptions
from trainer.export.plain_model import plain_model, single_model
from trainer.quiet import silent
from trainer.run.finished import FinishedRun

OPSET = 18


def write_onnx(run: FinishedRun, network: str, path: Path, options: ExportOptions) -> Contents:
    """Write an .onnx file, as `Format.write` describes it, for any number of examples.

    Args:
        run: restored.
        network: name of the network.
        path: of the file.
        options: none of them counts here.

    Raises:
        UserError: the network has several inputs or outputs.
    """
    del options
    with plain_model(run, network) as own:
        model = single_model(run, network, own, "onnx")
        given = tf.TensorSpec(model.inputs[0].shape, tf.float32, name=model.inputs[0].name)
        with silent(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of Keras, which asks NumPy for a name of before
            model.export(path, format="onnx", verbose=False, input_signature=[given], opset_version=OPSET)
        return layer_table(own)
