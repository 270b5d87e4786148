"""How much arithmetic a network is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras


def products(model: keras.Model) -> int:
    """Return how many multiplications with an addition one example takes, forward and backward.

    Those of dense layers and convolutions: the size of the kernel, for each place of the output that it is applied to.
    The gradient of the kernel takes as many again, and so does that of the inputs, which the first layer needs not.
    """
    layers = [layer for layer in model._flatten_layers(include_self=False) if hasattr(layer, "kernel")]
    forward = [math.prod(layer.kernel.shape) * math.prod(layer.output.shape[1:-1]) for layer in layers]
    return 3 * sum(forward) - forward[0]
