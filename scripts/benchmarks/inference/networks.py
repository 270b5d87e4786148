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
    """Build a packed network operation by operation, each on the value of the one before it.

    Attributes:
        tensors: arrays by name.
    """

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
        stream = self._random.integers(0, 256, stream_bytes(math.prod(shape), 1), np.uint8)
        self.add(op, kernel=Encoded(SIGN, self._tensor(stream), shape))

    def batch_norm(self, channels: int, *, threshold: bool) -> None:
        """Add a batch norm, folded."""
        if threshold:
            limits = self._random.integers(-9, 10, channels).astype(np.int16)
            descending = self._random.integers(0, 256, stream_bytes(channels, 1), np.uint8)
            self.add("threshold", thresholds=self._tensor(limits), descending=self._tensor(descending))
            return
        scale, shift = (self._random.normal(size=channels).astype(np.float32) for _ in range(2))
        self.add("scale_shift", scale=self._tensor(scale), shift=self._tensor(shift))

    def _tensor(self, array: np.ndarray) -> str:
        name = f"array_{len(self.tensors)}"
        self.tensors[name] = array
        return name


def packed_mlp() -> PackedNetwork:
    """Return three hidden layers of 4096 units."""
    network = PackedNetwork()
    network.add("flatten")
    widths = (math.prod(IMAGES), *UNITS, CLASSES)
    for number, (before, after) in enumerate(itertools.pairwise(widths)):
        network.kernel("dense", (before, after))
        network.batch_norm(after, threshold=0 < number < len(UNITS))
        if number == 0:
            network.add("sign")
    return network


def packed_cnn() -> PackedNetwork:
    """Return the network of Larq's tutorial, as `hookline.recipes.models.larq_tutorial_cnn` has it."""
    network = PackedNetwork()
    side, channels = IMAGES[0], IMAGES[2]
    for number, filters in enumerate(FILTERS):
        network.kernel("conv2d", (*WINDOW, channels, filters))
        side, channels = side - WINDOW[0] + 1, filters
        if number < len(FILTERS) - 1:
            network.add("max_pool2d", pool_size=(2, 2), strides=(2, 2))
            side //= 2
        network.batch_norm(filters, threshold=number > 0)
        if number == 0:
            network.add("sign")
    network.add("flatten")
    network.kernel("dense", (side * side * channels, HIDDEN))
    network.batch_norm(HIDDEN, threshold=True)
    network.kernel("dense", (HIDDEN, CLASSES))
    network.batch_norm(CLASSES, threshold=False)
    return network


def keras_network(name: str) -> keras.Model:
    """Return the same architecture in Keras, in float32."""
    from hookline.recipes.models.larq_tutorial_cnn import larq_tutorial_cnn
    from hookline.recipes.models.mlp import mlp

    return mlp(IMAGES, CLASSES, units=UNITS) if name == MLP else larq_tutorial_cnn(IMAGES, CLASSES)


def images(batch_size: int) -> np.ndarray:
    """Return inputs: float32 [batch, height, width, channels] in [-1, 1]."""
    return np.random.default_rng(0).uniform(-1, 1, (batch_size, *IMAGES)).astype(np.float32)
