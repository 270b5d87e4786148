"""A small network on small images, to run any hook of the catalogue on."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from omegaconf import OmegaConf

from hookline.hooks import catalogue
from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.run.build import build_hook
from tests.support.toy import BATCH, CLASSES

SIDE = 6


def image_batch(step: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return 16 images [6, 6, 1] with their classes."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(BATCH, SIDE, SIDE, 1)).astype(np.float32)
    return {"inputs": tf.constant(inputs), "targets": tf.constant(generator.integers(CLASSES, size=BATCH))}


def small_network(*extra: keras.layers.Layer) -> Network:
    """Return convolutions and dense layers, without batch norm and dropout unless given; its optimizer is not built.

    Args:
        extra: layers to stand after the first convolution.
    """
    layers = [
        keras.Input((SIDE, SIDE, 1)),
        keras.layers.Conv2D(3, 3, activation="tanh", name="conv_1"),
        *extra,
        keras.layers.Conv2D(3, 3, activation="tanh", name="conv_2"),
        keras.layers.Flatten(name="flatten"),
        keras.layers.Dense(4, activation="tanh", name="dense_1"),
        keras.layers.Dense(CLASSES, name="outputs"),
    ]
    return Network("model", keras.Sequential(layers, name="small"), keras.optimizers.Adam(0.01))


def from_catalogue(name: str, **changes: str) -> GraphHook:
    """Return a graph hook as its file in `configs/` describes it, with some values changed."""
    node = OmegaConf.to_container(OmegaConf.load(catalogue()[name].config_file))[name]
    hook = build_hook(name, {**node, **changes})
    assert isinstance(hook, GraphHook)
    return hook
