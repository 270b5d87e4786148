"""The networks of `what=inference`: as packed files hold them, and in Keras. Their weights are random: time is alike.

All kernels are binary, and so are all inputs of layers but the network's own: what the hook bnn_rounding trains with
all_binary=true. Batch norms before a sign are thresholds; the first one, after float sums, and the last one are a scale
and a shift.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hookline.deploy.inference.bits import stream_bytes
from hookline.deploy.inference.graph import SIGN, Encoded, Graph, Op, graph_to_json, parse_graph

if TYPE_CHECKING:
    import keras

IMAGES, CLASSES = (28, 28, 1), 10
UNITS = (4096, 4096, 4096)
FILTERS, HIDDEN, WINDOW = (32, 64, 64), 64, (3, 3)
MLP, CNN = "mlp", "cnn"


class PackedNetwork:
    """Build a packed network operation by operation, each on the value of the one before it."""

    def __init__(self) -> None:
        """Start with the input."""
        self.tensors: dict[str, np.ndarray] = {}
        self._ops: list[Op] = []
        self._random = np.random.default_rng(0)

    def graph(self, name: str) -> Graph:
        """Return the graph so far."""
        made = Graph(name, "image", IMAGES, self._ops[-1].output, tuple(self._ops))
        return parse_graph(graph_to_json(made))

    def add(self, op: str, **fields: Any) -> None:
        """Add an operation."""
        number = len(self._ops)
        before = self._ops[-1].output if self._ops else "image"
        self._ops.append(Op(op, f"{op}_{number}", (before,), f"value_{number}", fields))

    def kernel(self, op: str, shape: tuple[int, ...]) -> None:
        """Add a layer with a binary kernel."""
        self.add(op, kernel=Encoded(SIGN, self._bits(math.prod(shape)), shape))

    def threshold(self, channels: int) -> None:
        """Add a batch norm before a sign."""
        limits = self._tensor(self._random.integers(-9, 10, channels).astype(np.int16))
        self.add("threshold", thresholds=limits, descending=self._bits(channels))

    def scale_shift(self, channels: int) -> None:
        """Add another batch norm."""
        scale, shift = (self._tensor(self._random.normal(size=channels).astype(np.float32)) for _ in range(2))
        self.add("scale_shift", scale=scale, shift=shift)

    def _bits(self, count: int) -> str:
        return self._tensor(self._random.integers(0, 256, stream_bytes(count, 1), np.uint8))

    def _tensor(self, array: np.ndarray) -> str:
        name = f"array_{len(self.tensors)}"
        self.tensors[name] = array
        return name


def packed_network(name: str) -> PackedNetwork:
    """Return three hidden layers of 4096 units, or what `hookline.recipes.models.larq_tutorial_cnn` is."""
    network = PackedNetwork()
    if name == MLP:
        network.add("flatten")
        widths = [math.prod(IMAGES), *UNITS, CLASSES]
    else:
        widths = [_convolutions(network), HIDDEN, CLASSES]
    for number, (before, after) in enumerate(itertools.pairwise(widths)):
        network.kernel("dense", (before, after))
        if number == 0 and name == MLP:
            network.scale_shift(after)
            network.add("sign")
        elif after == CLASSES:
            network.scale_shift(after)
        else:
            network.threshold(after)
    return network


def _convolutions(network: PackedNetwork) -> int:
    """Add convolutions, and return how many values they leave."""
    side, channels = IMAGES[0], IMAGES[2]
    for number, filters in enumerate(FILTERS):
        network.kernel("conv2d", (*WINDOW, channels, filters))
        side, channels = side - WINDOW[0] + 1, filters
        if number < len(FILTERS) - 1:
            network.add("max_pool2d", pool_size=(2, 2), strides=(2, 2))
            side //= 2
        if number:
            network.threshold(filters)
        else:
            network.scale_shift(filters)
            network.add("sign")
    network.add("flatten")
    return side * side * channels


def keras_network(name: str) -> keras.Model:
    """Return the same architecture in Keras, in float32."""
    from hookline.recipes.models.larq_tutorial_cnn import larq_tutorial_cnn
    from hookline.recipes.models.mlp import mlp

    return mlp(IMAGES, CLASSES, units=UNITS) if name == MLP else larq_tutorial_cnn(IMAGES, CLASSES)


def images(batch_size: int) -> np.ndarray:
    """Return inputs: float32 [batch, height, width, channels] in [-1, 1]."""
    return np.random.default_rng(0).uniform(-1, 1, (batch_size, *IMAGES)).astype(np.float32)
