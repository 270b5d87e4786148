"""Residual networks for small images: ResNet-8 of MLPerf Tiny, ResNet-20, and their forms for binary inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import keras

from hookline.recipes.models import check_images
from hookline.trainer.errors import check_choice


def resnet(
    input_shape: Sequence[int],
    classes: int,
    *,
    filters: Sequence[int] = (16, 32, 64),
    shortcuts: str = "block",
    activation: str = "relu",
    norm: str = "after",
    weight_decay: float = 1e-4,
    batch_norm_momentum: float = 0.99,
    batch_norm_epsilon: float = 1e-3,
) -> keras.Model:
    """Return a convolution, residual blocks of two convolutions, average pooling and a dense layer of logits.

    A block with other filters than the previous one halves height and width, and has a 1x1 convolution in its shortcut.

    The default filters give the image classification network of MLPerf Tiny (Banbury et al. 2021, arXiv 2106.07597),
    except that the task applies the softmax: 78,666 parameters with batch norm for 32x32x3 images and 10 classes,
    77,360 of them trainable. Three blocks each of 16, 32 and 64 filters give ResNet-20 (He et al. 2016, arXiv
    1512.03385, section 4.2) with projection shortcuts (option B).

    A shortcut spans both convolutions of a "block", or each "convolution"; the latter has average pooling before the
    1x1 convolution and batch norm after it, so that real values are not lost to binary inputs (Liu et al. 2018, Bi-Real
    Net, arXiv 1808.00278).

    The activation "prelu" has one slope per channel, initially 0.25. Batch norm is "after" each convolution; or
    "around" those of the blocks, also before each: with binary inputs it learns the threshold of their signs per
    channel, which together with PReLU has the effect of ReActNet's learned shifts (Liu et al. 2020, arXiv 2003.03488).
    """
    check_choice("shortcuts", shortcuts, ("block", "convolution"))
    check_choice("norm", norm, ("after", "around"))
    strides = [1, *(1 if before == after else 2 for before, after in pairwise(filters))]
    shape = check_images("resnet", input_shape, 2 ** strides.count(2), "fewer filters")
    batch_norm = partial(keras.layers.BatchNormalization, momentum=batch_norm_momentum, epsilon=batch_norm_epsilon)
    regularizer = keras.regularizers.L2(weight_decay) if weight_decay else None
    conv = partial(keras.layers.Conv2D, padding="same", kernel_initializer="he_normal", kernel_regularizer=regularizer)
    layers = Layers(conv, batch_norm, activation, around=norm == "around")
    block = layers.block if shortcuts == "block" else layers.real_block
    inputs = keras.Input(shape, name="image")
    x = layers.active(layers.normed(inputs, filters[0], 1, "stem"), "stem")
    for number, (count, stride) in enumerate(zip(filters, strides, strict=True), start=1):
        x = block(x, count, stride, f"block_{number}")
    x = keras.layers.GlobalAveragePooling2D(name="global_pooling")(x)
    logits = keras.layers.Dense(classes, kernel_initializer="he_normal", name="logits")(x)
    return keras.Model(inputs, logits, name=f"resnet_{2 * len(filters) + 2}")


@dataclass(frozen=True)
class Layers:
    """Add layers to a tensor, named by their block."""

    conv: Callable[..., keras.layers.Layer]
    norm: Callable[..., keras.layers.Layer]
    activation: str
    around: bool

    def normed(self, x: Any, count: int, stride: int, name: str) -> Any:
        """Add a 3x3 convolution and batch norm."""
        return self.norm(name=f"{name}_batch_norm")(self.conv(count, 3, stride, name=f"{name}_conv")(x))

    def normed_in_block(self, x: Any, count: int, stride: int, name: str) -> Any:
        """Add a 3x3 convolution and batch norm, after another batch norm if `around`."""
        return self.normed(self.norm(name=f"{name}_input_norm")(x) if self.around else x, count, stride, name)

    def active(self, x: Any, name: str) -> Any:
        """Add the activation."""
        if self.activation == "prelu":
            slope = keras.initializers.Constant(0.25)
            return keras.layers.PReLU(slope, shared_axes=(1, 2), name=f"{name}_activation")(x)
        return keras.layers.Activation(self.activation, name=f"{name}_activation")(x)

    def block(self, x: Any, count: int, stride: int, name: str) -> Any:
        """Add two convolutions with a shortcut over both."""
        y = self.active(self.normed_in_block(x, count, stride, f"{name}_1"), f"{name}_1")
        y = self.normed_in_block(y, count, 1, f"{name}_2")
        shortcut = x if stride == 1 else self.conv(count, 1, stride, name=f"{name}_shortcut")(x)
        return self.active(keras.layers.Add(name=f"{name}_add")([shortcut, y]), name)

    def real_block(self, x: Any, count: int, stride: int, name: str) -> Any:
        """Add two convolutions with a shortcut over each; average pooling keeps downsampling shortcuts real-valued."""
        for part in (f"{name}_1", f"{name}_2"):
            y, shortcut = self.normed_in_block(x, count, stride, part), x
            if stride == 2:
                shortcut = keras.layers.AveragePooling2D(2, padding="same", name=f"{name}_pool")(x)
                shortcut = self.conv(count, 1, name=f"{name}_shortcut")(shortcut)
                shortcut, stride = self.norm(name=f"{name}_shortcut_batch_norm")(shortcut), 1
            x = self.active(keras.layers.Add(name=f"{part}_add")([shortcut, y]), part)
        return x
