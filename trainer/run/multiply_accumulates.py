"""Multiply-accumulates: how often a layer multiplies an input with a weight and adds it up, for one example."""

from __future__ import annotations

import math
from collections.abc import Iterable

import keras

from trainer.graph import Call, Shape

CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
TRANSPOSED = (keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose)
DEPTHWISE = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
SEPARABLE = (keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)
COUNTED = (
    *(keras.layers.Dense, keras.layers.EinsumDense),
    *(*CONVOLUTIONS, *TRANSPOSED, *DEPTHWISE, *SEPARABLE),
)
PRODUCTS = {
    *("Dot", "Attention", "AdditiveAttention", "Matmul", "Einsum", "Tensordot", "Vdot", "Inner", "Outer"),
    *("Conv", "DepthwiseConv", "SeparableConv", "ConvTranspose", "DotProductAttention", "Lambda"),
}
"""Layers and operations without weights that multiply what they are given, or may."""
WITHOUT = (keras.layers.Embedding, keras.layers.Normalization)
"""Layers with matrices of weights, or of statistics, that are looked up or applied entry by entry."""

Counts = dict[int, int]


def count_macs(call: Call) -> Counts | None:
    """Return the multiply-accumulates of a call for one example, by identity of the kernel.

    Padding is counted as what is computed: each output of a convolution takes a whole window. Additions of biases,
    batch norms, poolings and activations count nothing.

    Args:
        call: of a layer or another operation.

    Returns:
        Counts by `id` of the variable; empty where nothing is multiplied; None where it is not known how often.
    """
    layer = call.operation
    if not isinstance(layer, COUNTED) or not _is_of_keras(layer):
        return None if _may_multiply(layer) else {}
    outputs, inputs = _size(call.outputs), _size(call.inputs)
    if outputs is None or inputs is None:
        return None
    if isinstance(layer, SEPARABLE):
        return _separable(layer, call.outputs[0])
    return {id(layer.kernel): _kernel_macs(layer, inputs, outputs)}


def _kernel_macs(layer: keras.Layer, inputs: int, outputs: int) -> int:
    kernel = tuple(layer.kernel.shape)
    if isinstance(layer, keras.layers.EinsumDense):
        return outputs * _contracted(layer.equation, kernel)
    if isinstance(layer, TRANSPOSED):  # kernel [..., outputs, inputs]: each input goes to a whole window
        return inputs * math.prod(kernel[:-1])
    if isinstance(layer, DEPTHWISE):  # kernel [..., channels, multiplier]: each output takes one channel
        return outputs * math.prod(kernel[:-2])
    return outputs * math.prod(kernel[:-1])  # of groups, a kernel holds the channels of one


def _separable(layer: keras.Layer, output: Shape) -> Counts:
    depthwise, pointwise = tuple(layer.depthwise_kernel.shape), tuple(layer.pointwise_kernel.shape)
    places = math.prod(each or 1 for each in output[1:]) // pointwise[-1]
    return {
        id(layer.depthwise_kernel): places * math.prod(depthwise),
        id(layer.pointwise_kernel): places * math.prod(pointwise),
    }


def _contracted(equation: str, kernel: tuple[int, ...]) -> int:
    """Return over how many entries of the kernel an output sums, in an equation such as "ab,bc->ac"."""
    terms, _, output = equation.replace(" ", "").partition("->")
    labels = terms.split(",")[1]
    return math.prod(size for label, size in zip(labels, kernel, strict=True) if label not in output)


def _is_of_keras(layer: keras.Layer) -> bool:
    """Return whether a layer computes what its class in Keras does: a subclass may have a `call` of its own."""
    return type(layer).call.__module__.partition(".")[0] == "keras"


def _may_multiply(operation: object) -> bool:
    """Return whether an operation may multiply in a way that is not known here."""
    if type(operation).__name__ in PRODUCTS:
        return True
    if not isinstance(operation, keras.Layer):
        return False
    inner = list(operation._flatten_layers(include_self=False))
    if any(isinstance(each, COUNTED) or type(each).__name__ in PRODUCTS for each in inner):
        return True
    return any(_holds_matrices(each) for each in (operation, *inner))


def _holds_matrices(layer: keras.Layer) -> bool:
    return not isinstance(layer, WITHOUT) and any(len(each.shape) > 1 for each in layer.weights)


def _size(shapes: Iterable[Shape]) -> int | None:
    """Return how many entries the only tensor of a call has for one example, None where that is open."""
    each = list(shapes)
    if len(each) != 1 or any(size is None for size in each[0][1:]):
        return None
    return math.prod(size or 0 for size in each[0][1:])
