"""A record of every gradient that is not the forward pass's own, for those who check them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

OVERRIDES = "hookline/overridden_gradients"
"""The graph collection that holds an `Overridden` for each declared override of a traced function."""

FORWARD = "forward"


@dataclass(frozen=True, eq=False)
class Overridden:
    """Describe an op of a traced function whose gradient is overridden.

    Attributes:
        name: what it is called.
        inputs: tensors that get the gradients.
        outputs: tensors whose gradients these are made of.
        surrogate: the function of the inputs whose derivative the gradient is meant to be; "forward" for the forward
            pass itself; None: it changes the gradient on purpose.
    """

    name: str
    inputs: tuple[tf.Tensor, ...]
    outputs: tuple[tf.Tensor, ...]
    surrogate: Callable[..., Any] | str | None


def declare_override(
    name: str, inputs: Sequence[tf.Tensor], outputs: Any, surrogate: Callable[..., Any] | str | None
) -> None:
    """Record an op with an overridden gradient in the graph that is being traced; eagerly there is nothing to record.

    Args:
        name: what a table calls it.
        inputs: tensors that get the gradients.
        outputs: a tensor, or a tuple of them.
        surrogate: the function of the inputs whose derivative the gradient is meant to be, "forward", or None.
    """
    if not tf.executing_eagerly():
        flat = tuple(outputs) if isinstance(outputs, list | tuple) else (outputs,)
        tf.compat.v1.add_to_collection(OVERRIDES, Overridden(name, tuple(inputs), flat, surrogate))
