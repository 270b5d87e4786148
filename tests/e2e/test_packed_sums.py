"""A binary network for real images as a packed file: every sum of its binary layers, on the whole test set.

HOOKLINE_MNIST=<mnist.npz> python -m pytest -m long tests/e2e/test_packed_sums.py
"""

import os

import numpy as np
import pytest
import tensorflow as tf

from hookline.deploy.formats import ExportOptions
from hookline.deploy.inference.container import PACKED, read_container
from hookline.deploy.inference.engine import load_model
from hookline.deploy.packed import write_packed
from hookline.deploy.plain_model import assigned
from hookline.trainer.run.finished import read_config, restore
from hookline.trainer.run.state import shipped_weights
from tests.support.command import run_small
from tests.support.packed import inner_value

MNIST = os.environ.get("HOOKLINE_MNIST", "")
BATCH = 500


@pytest.mark.long
@pytest.mark.skipif(not MNIST, reason="HOOKLINE_MNIST names no mnist.npz")
def test_every_sum_of_a_binary_layer_matches_the_training_graph(tmp_path):
    run_small(
        "bnn", "data=mnist", f"data.path={MNIST}", "model=larq_tutorial_cnn", "hooks.bnn_rounding.all_binary=true",
        "trainer.epochs=1", run_dir=tmp_path / "run",
    )  # fmt: skip
    run = restore(str(tmp_path / "run"), read_config(str(tmp_path / "run")))
    network, path = run.trainer.networks["model"], tmp_path / "model.packed.safetensors"
    write_packed(run, "model", path, ExportOptions())
    packed = load_model(path)
    contents = packed.graph, read_container(path, PACKED)[1]
    split = run.held_out["test"].split
    inputs = split.source.gather(tf.constant(split.indices))["inputs"].numpy()
    layers = [op for op in packed.graph.ops if op.op in ("dense", "conv2d")]
    layers = [op for op in layers if packed.values[op.output].kind == "integer"]
    names = sorted({name for op in layers for name in (op.inputs[0], op.output)})
    counted = 0
    with assigned(network, shipped_weights(run.trainer, run.step)["model"]):
        for first in range(0, len(inputs), BATCH):
            given = inputs[first : first + BATCH]
            outputs, kept = packed(given), {name: inner_value(name, given, *contents) for name in names}
            for op in layers:
                sums = network.model.get_layer(op.name)(kept[op.inputs[0]]).numpy()
                np.testing.assert_array_equal(kept[op.output], sums)
                counted += sums.size
            expected = network.model(given, training=False).numpy()
            np.testing.assert_array_equal(outputs.argmax(axis=1), expected.argmax(axis=1))
    assert [op.name for op in layers] == ["conv_2", "conv_3", "dense_1", "logits"]
    assert counted == 10_000 * (11 * 11 * 64 + 3 * 3 * 64 + 64 + 10)
