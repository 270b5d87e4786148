"""Release a run's graphs when it is over, so that a process does not grow with every run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensorflow.python.framework import ops

CUSTOM = "CustomGradient-"
"""How TensorFlow names the gradient functions that `tf.custom_gradient` registers while a function is traced."""


@contextmanager
def released_graphs() -> Iterator[None]:
    """Unregister, at the end of the block, the gradient functions that were registered inside.

    Each `tf.custom_gradient` that is traced registers one for good, and it holds the whole graph around it; Keras's
    optimizers trace one in every step. There is no public API to remove them (TensorFlow 2.21). A function that was
    traced inside must not be differentiated afterwards.
    """
    registered = ops.gradient_registry._registry
    before = set(registered)
    try:
        yield
    finally:
        for name in [each for each in registered if each.startswith(CUSTOM) and each not in before]:
            del registered[name]
