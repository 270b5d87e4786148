"""Layers with kernels: which they are, their kernels, and the axes of their output channels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import keras

from hooks.added_layers import is_added
from trainer.errors import UserError
from trainer.graph import is_of
from trainer.network import Network

DEPTHWISE = ("DepthwiseConv1D", "DepthwiseConv2D")
SEPARABLE = ("SeparableConv1D", "SeparableConv2D")
TRANSPOSED = ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
CONVOLUTIONS = ("Conv1D", "Conv2D", "Conv3D")
KERNEL_LAYERS = ("Dense", *CONVOLUTIONS, *DEPTHWISE, *SEPARABLE, *TRANSPOSED)
KERNEL_NAMES = {"kernel", "depthwise_kernel", "pointwise_kernel"}


@dataclass(frozen=True)
class Kernel:
    """Hold one latent kernel.

    Attributes:
        name: of the variable in the network.
        layer: path of its layer.
        variable: the latent variable.
        channel_axes: axes that tell output channels apart.
    """

    name: str
    layer: str
    variable: keras.Variable
    channel_axes: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return the number of entries."""
        return math.prod(self.variable.shape)


def is_kernel_layer(layer: keras.Layer) -> bool:
    """Return whether a layer multiplies its input with a kernel: dense layers and convolutions of every kind.

    Embeddings, recurrent layers and the `EinsumDense` layers of attention are none; nor are layers that another hook
    put into the network, such as the branch of Bernoulli attention.

    Args:
        layer: any Keras layer.
    """
    return is_of(layer, KERNEL_LAYERS) and not is_added(layer)


def find_kernels(network: Network, layers: dict[str, keras.Layer]) -> list[Kernel]:
    """Return the kernels of layers, those of separable convolutions apart.

    Args:
        network: that the layers belong to.
        layers: built kernel layers by path.

    Raises:
        UserError: a kernel is not trainable, so that nothing could stand in for it.
    """
    names = {id(variable): name for name, variable in network.trainable_variables.items()}
    kernels = []
    for path, layer in layers.items():
        for variable in layer.weights:
            if variable.name not in KERNEL_NAMES:
                continue
            if id(variable) not in names:
                raise UserError(
                    f"The kernel of layer '{path}' is not trainable, so it cannot be quantized. "
                    "Set trainable=True on the layer, or leave it out of the `layers` pattern."
                )
            kernels.append(Kernel(names[id(variable)], path, variable, channel_axes(layer, variable)))
    return kernels


def channel_axes(layer: keras.Layer, variable: keras.Variable) -> tuple[int, ...]:
    """Return the axes of a kernel that tell its output channels apart.

    Args:
        layer: a kernel layer.
        variable: one of its kernels.
    """
    if is_of(layer, DEPTHWISE) or variable.name == "depthwise_kernel":
        return (-2, -1)
    return (-2,) if is_of(layer, TRANSPOSED) else (-1,)
