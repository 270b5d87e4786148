"""Variables of a network with other values for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from trainer.network import Network


@contextmanager
def assigned(network: Network, weights: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Give variables other values while the block runs; afterwards they are what they were.

    Args:
        network: whose variables they are.
        weights: values by variable name.
    """
    variables = network.variables
    before = {name: np.array(variables[name].numpy()) for name in weights}
    try:
        for name, value in weights.items():
            variables[name].assign(value)
        yield
    finally:
        for name, value in before.items():
            variables[name].assign(value)
