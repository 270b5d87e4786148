"""The branch: a small fully convolutional net from a map to the logits of attention."""

from __future__ import annotations

import math
from typing import Any

import keras

from hooks.attention.dilated_conv import DilatedConv2D
from hooks.attention.options import BranchOptions
from trainer.errors import UserError


def make_branch(options: BranchOptions, *, temperature: float, name: str) -> keras.Sequential:
    """Return convolutions of the same size as their input, the last one of 1 x 1 with one channel.

    The kernel of the last one is zero at first, so that A is `initial_keep_rate` at every position: no position is
    dropped for good before anything is learned.

    Args:
        options: of the convolutions.
        temperature: that the logits are divided by later.
        name: that the names begin with, so that a pattern on the network's own layers matches none of them.
    """
    layers: list[keras.layers.Layer] = [
        DilatedConv2D(
            filters,
            options.kernel_size,
            dilation_rate=dilation,
            activation=options.activation,
            name=f"{name}_conv_{number}",
        )
        for number, (filters, dilation) in enumerate(zip(options.filters, options.dilations, strict=True), start=1)
    ]
    initial = temperature * math.log(options.initial_keep_rate / (1.0 - options.initial_keep_rate))
    layers.append(
        keras.layers.Conv2D(
            1,
            1,
            kernel_initializer="zeros",
            bias_initializer=keras.initializers.Constant(initial),
            name=f"{name}_logits",
        )
    )
    return keras.Sequential(layers, name=f"{name}_branch")


def branch_logits(branch: keras.layers.Layer, seen: Any, wanted: tuple[int | None, ...]) -> Any:
    """Return the logits that a branch makes of a map.

    Args:
        branch: any Keras layer or model of one input.
        seen: Keras tensor [batch, height, width, channels].
        wanted: shape of the logits, [batch, height, width, 1].

    Raises:
        UserError: the branch cannot take the map, or returns another shape.
    """
    try:
        logits = branch(seen)
    except (ValueError, TypeError) as error:
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise UserError(
            f"The branch '{branch.name}' does not take a map of shape {_shown(tuple(seen.shape))}: {reason}"
        ) from error
    found = tuple(logits.shape) if isinstance(logits, keras.KerasTensor) else None
    if found != wanted:
        raise UserError(
            f"The branch '{branch.name}' returns {_shown(found) if found else type(logits).__name__}. Expected logits "
            f"{_shown(wanted)}: one for each position of the gated map. End it with a convolution of one unit and no "
            "sigmoid."
        )
    return logits


def _shown(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join(["batch", *("any" if each is None else str(each) for each in shape[1:])]) + "]"
