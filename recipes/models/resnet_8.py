"""The small residual network of MLPerf Tiny."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import keras

from hookline.recipes.models.checks import batch_norm_factory, check_images, check_sizes
from hookline.trainer.errors import UserError


def resnet_8(
    input_shape: Sequence[int],
    classes: int,
    *,
    filters: Sequence[int] = (16, 32, 64),
    weight_decay: float = 1e-4,
    batch_norm_momentum: float = 0.99,
    batch_norm_epsilon: float = 1e-3,
) -> keras.Model:
    """Return a convolution, a residual block for each number of filters, average pooling and a dense layer of logits.

    Each block after the first one halves height and width, and has a convolution 1x1 as its shortcut, without batch
    norm. For 32x32x3 images and 10 classes that is 78,666 parameters with batch norm's, 77,360 of them trained: the
    image classification network of MLPerf Tiny (Banbury et al. 2021, arXiv 2106.07597), whose softmax is the task's.
    """
    check_sizes("filters", filters, least=1)
    if not weight_decay >= 0.0:
        raise UserError(f"Invalid weight_decay: {weight_decay!r}. Expected a number of 0 or more, such as 1e-4.")
    shape = check_images("resnet_8", input_shape, 2 ** (len(filters) - 1), "fewer filters")
    norm = batch_norm_factory(batch_norm_momentum, batch_norm_epsilon)
    regularizer = keras.regularizers.L2(weight_decay) if weight_decay else None
    conv = partial(keras.layers.Conv2D, padding="same", kernel_initializer="he_normal", kernel_regularizer=regularizer)

    def normed(x: Any, count: int, strides: int, name: str, *, active: bool = True) -> Any:
        x = norm(name=f"{name}_batch_norm")(conv(count, 3, strides, name=f"{name}_conv")(x))
        return keras.layers.Activation("relu", name=f"{name}_activation")(x) if active else x

    inputs = keras.Input(shape, name="image")
    x = normed(inputs, filters[0], 1, "stem")
    for block, count in enumerate(filters, start=1):
        name, strides = f"block_{block}", 1 if block == 1 else 2
        y = normed(x, count, strides, f"{name}_1")
        y = normed(y, count, 1, f"{name}_2", active=False)
        shortcut = x if block == 1 else conv(count, 1, strides, name=f"{name}_shortcut")(x)
        x = keras.layers.Activation("relu", name=f"{name}_activation")(
            keras.layers.Add(name=f"{name}_add")([shortcut, y])
        )
    x = keras.layers.GlobalAveragePooling2D(name="global_pooling")(x)
    return keras.Model(
        inputs, keras.layers.Dense(classes, kernel_initializer="he_normal", name="logits")(x), name="resnet_8"
    )
