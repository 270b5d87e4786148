"""The rounding hook on the networks that come with Hookline, and its config file."""

from __future__ import annotations

import inspect
from pathlib import Path

import keras
import numpy as np
import pytest
from omegaconf import OmegaConf

from hooks.bnn_rounding import BnnRounding
from recipes.models.larq_tutorial_cnn import larq_tutorial_cnn
from recipes.models.mlp import mlp
from trainer.run.size import measure_size

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "hooks" / "bnn_rounding.yaml"


def test_the_config_file_holds_every_argument_with_its_default():
    (config,) = OmegaConf.to_container(OmegaConf.load(CONFIG)).values()
    assert config.pop("_target_") == "hooks.bnn_rounding.BnnRounding"
    parameters = inspect.signature(BnnRounding).parameters
    assert config.pop("objective") == "*"  # of every graph hook, beside its own arguments
    assert config == {key: each.default for key, each in parameters.items()}
    BnnRounding(**config)


def test_the_tutorial_network_all_binary_has_the_published_size_in_bytes(make_bench):
    bench = make_bench(BnnRounding(all_binary=True), larq_tutorial_cnn((28, 28, 1), 10))
    assert sum(bench.hook.summary()["kernel_entries"].values()) == 93_088
    size = measure_size([bench.network], {"model": bench.hook.stored_bits(bench.weights())})
    assert round(size.deployed_bytes / 1024, 2) == 13.19
    names = [layer.name for layer in bench.network.model.layers if layer.name.endswith("_input_quantizer")]
    assert names == [f"{name}_input_quantizer" for name in ("conv_2", "conv_3", "dense_1", "logits")]


@pytest.mark.parametrize("all_binary", [False, True])
def test_the_mlp_learns_digits_in_bits(make_bench, all_binary: bool):
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images / 8.0 - 1.0).astype(np.float32).reshape(-1, 8, 8, 1)
    bench = make_bench(
        BnnRounding(all_binary=all_binary), mlp((8, 8, 1), 10, units=[128, 128]), keras.optimizers.Adam(0.01)
    )
    order = np.random.default_rng(0).permutation(1400)
    for step in range(140):
        rows = order[np.arange(step * 100, step * 100 + 100) % 1400]
        measures = bench.step(images[rows], labels[rows])
    assert 0 < measures["bnn/flip_ratio"] < 0.1
    accuracy = np.mean(bench.predict(images[1400:]).argmax(-1) == labels[1400:])
    assert accuracy > 0.85
