"""Kernels: which layers hold them, what is a kernel in them, and the axes of their output channels."""

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
TABLE = "embeddings"
KERNEL_NAMES = {"kernel", "depthwise_kernel", "pointwise_kernel", "recurrent_kernel", TABLE}


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
    """Return whether a layer is a dense layer or a convolution of any kind: those whose weights and inputs are rounded.

    Layers that another hook put into the network, such as the branch of Bernoulli attention, are none.

    Args:
        layer: any Keras layer.
    """
    return is_of(layer, KERNEL_LAYERS) and not is_added(layer)


def holds_kernel(layer: keras.Layer) -> bool:
    """Return whether a layer holds a kernel itself: those of `is_kernel_layer`, recurrent cells, embeddings, einsums.

    A layer of the user's own does, if it names a weight of at least two axes as Keras does, such as "kernel".

    Args:
        layer: built.
    """
    return bool(own_kernels(layer)) and not is_added(layer)


def own_kernels(layer: keras.Layer) -> list[keras.Variable]:
    """Return the kernels that a layer holds itself, not within layers inside it.

    Args:
        layer: built.
    """
    own = [*layer._trainable_variables, *layer._non_trainable_variables]
    return [variable for variable in own if variable.name in KERNEL_NAMES and len(variable.shape) > 1]


def find_kernels(network: Network, layers: dict[str, keras.Layer], *, doing: str = "quantized") -> list[Kernel]:
    """Return the kernels of layers, those of separable convolutions and of recurrent cells apart.

    Args:
        network: that the layers belong to.
        layers: built layers that hold kernels, by path.
        doing: what is done to kernels, for the error.

    Raises:
        UserError: a kernel is not trainable, so that nothing could stand in for it.
    """
    names = {id(variable): name for name, variable in network.trainable_variables.items()}
    kernels = []
    for path, layer in layers.items():
        for variable in own_kernels(layer):
            if id(variable) not in names:
                raise UserError(
                    f"The kernel of layer '{path}' is not trainable, so it cannot be {doing}. "
                    "Set trainable=True on the layer, or leave it out of the `layers` pattern."
                )
            kernels.append(Kernel(names[id(variable)], path, variable, channel_axes(layer, variable)))
    return kernels


def channel_axes(layer: keras.Layer, variable: keras.Variable) -> tuple[int, ...]:
    """Return the axes of a kernel that tell its output channels apart.

    Args:
        layer: that holds it.
        variable: one of its kernels.
    """
    if is_depthwise(layer, variable):
        return (-2, -1)
    if is_of(layer, ("EinsumDense",)):
        operands, outputs = layer.equation.split("->")
        letters = operands.split(",")[1].replace(".", "")
        return tuple(axis - len(letters) for axis, letter in enumerate(letters) if letter in outputs)
    return (-2,) if is_of(layer, TRANSPOSED) else (-1,)


def is_depthwise(layer: keras.Layer, variable: keras.Variable) -> bool:
    """Return whether a kernel is that of a depthwise convolution, which adds over no input channels.

    Args:
        layer: that holds it.
        variable: one of its kernels.
    """
    return is_of(layer, DEPTHWISE) or variable.name == "depthwise_kernel"
