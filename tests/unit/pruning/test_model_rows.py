"""Weights, zeros and bytes of a model."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from hooks.pruning.model_rows import model_rows
from hooks.pruning.report import csr_bytes

layers = keras.layers


def model() -> keras.Model:
    built = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(4, 3, name="conv"),
            layers.BatchNormalization(name="norm"),
            layers.SeparableConv2D(6, 3, name="separable"),
            layers.Flatten(),
            layers.Dense(3, name="logits"),
        ]
    )
    kernel = built.get_layer("conv").kernel
    values = np.ones(kernel.shape, np.float32)
    values[..., :3] = 0.0
    values[0, 0, 0, 3] = -0.0
    kernel.assign(values)
    return built


def test_each_kernel_layer_has_a_row_and_the_rest_has_one():
    conv, separable, logits, others, total = model_rows(model())
    assert [row.layer for row in (conv, separable, logits, others, total)] == [
        "conv", "separable", "logits", "others", "total",
    ]  # fmt: skip
    assert (conv.weights, conv.zeros, conv.dense_bytes) == (72, 55, 288)
    assert conv.sparsity == pytest.approx(55 / 72)
    assert conv.sparse_bytes == csr_bytes(18, 4, 17)
    assert separable.weights == 3 * 3 * 4 + 4 * 6
    assert separable.zeros == 0
    assert others.weights == 4 + 4 * 4 + 6 + 3
    assert others.dense_bytes == others.sparse_bytes == 4 * others.weights


def test_the_total_is_every_weight_of_the_model():
    built = model()
    *rows, total = model_rows(built)
    assert total.weights == built.count_params()
    assert total.dense_bytes == 4 * built.count_params()
    assert total.sparse_bytes == sum(row.sparse_bytes for row in rows)
    assert total.zeros == sum(int((weight.numpy() == 0).sum()) for weight in built.weights)


def test_a_frozen_layer_counts_too():
    built = model()
    rows = model_rows(built)
    built.trainable = False
    assert model_rows(built) == rows


def test_a_model_without_kernels_has_others_alone():
    built = keras.Sequential([keras.Input((4,)), layers.Flatten()])
    others, total = model_rows(built)
    assert (others.weights, total.weights, total.sparsity) == (0, 0, 0.0)
