"""Penalties, options and pictures of Bernoulli attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.config.overrides import show
from hookline.trainer.config.schema import describe, fits
from hookline.trainer.errors import UserError, check_choice, check_integer, check_number, unknown_name
from hookline.trainer.objective import Batch, sheet

SMALLEST = 1e-30  # lower bound of means, to keep their logarithms finite


def mean_entropy(logits: tf.Tensor) -> tf.Tensor:
    """Return the entropy of the draws in bits, averaged over positions: float32 [batch], in [0, 1]."""
    logits = tf.cast(logits, tf.float32)
    on, off = tf.sigmoid(logits), tf.sigmoid(-logits)
    nats = on * tf.nn.softplus(-logits) + off * tf.nn.softplus(logits)
    return tf.reduce_mean(nats, axis=[1, 2, 3]) / math.log(2.0)


def keep_rate_penalty(logits: tf.Tensor, *, target: float) -> tf.Tensor:
    """Return KL(Bernoulli(target) || Bernoulli(mean of A)) in nats for each example: float32 [batch]."""
    logits = tf.cast(logits, tf.float32)
    # Both means are of sigmoids: 1 - mean would be exactly 0 where A rounds to 1.
    on, off = (tf.reduce_mean(tf.sigmoid(each), axis=[1, 2, 3]) for each in (logits, -logits))
    constant = target * math.log(target) + (1.0 - target) * math.log(1.0 - target)
    return (
        constant
        - target * tf.math.log(tf.maximum(on, SMALLEST))
        - (1.0 - target) * tf.math.log(tf.maximum(off, SMALLEST))
    )


def given_map(batch: Batch, key: str, size: tuple[int, int]) -> tf.Tensor:
    """Return a map of the batch, resized by area: float32 [batch, height, width, 1]."""
    if key not in batch:
        raise UserError(f"supervision.key={key} is not in the batch. Expected {', '.join(sorted(batch))}, or null.")
    wanted = tf.cast(batch[key], tf.float32)
    wanted = wanted[..., tf.newaxis] if wanted.shape.rank == 3 else wanted
    if wanted.shape.rank != 4 or wanted.shape[-1] != 1 or None in wanted.shape[1:3]:
        raise UserError(f"'{key}' of the batch has shape {batch[key].shape}. Expected a map [batch, height, width].")
    from hookline.hooks.attention.gate import area_resize  # imported late: the module defines Keras layers

    return area_resize(wanted, size)


EVAL_MODES = ("expectation", "sample", "threshold")

Options = TypeVar("Options")


@dataclass(frozen=True)
class BranchOptions:
    """Describe the convolutional network that computes the attention map."""

    filters: Sequence[int] = (16, 16, 16)  # of each convolution except the last one, which is 1 x 1 with one channel
    kernel_size: int = 3
    dilations: Sequence[int] = (1, 2, 4)
    activation: str = "relu"
    initial_keep_rate: float = 0.7  # in (0, 1): initial value of A everywhere

    def __post_init__(self) -> None:
        for name, values in {"filters": self.filters, "dilations": self.dilations}.items():
            for each in values:
                check_integer(f"branch.{name}", each)
        check_integer("branch.kernel_size", self.kernel_size)
        _check_share("branch.initial_keep_rate", self.initial_keep_rate)
        if len(self.dilations) != len(self.filters):
            raise UserError(f"branch.dilations={self.dilations} received. Expected one for each of {self.filters}.")
        if self.activation != BranchOptions.activation:  # Keras may not be imported yet
            try:
                keras.activations.get(self.activation)
            except (ValueError, TypeError):
                known = [each for each in dir(keras.activations) if each[0].islower()]
                raise unknown_name("branch.activation", self.activation, known) from None


@dataclass(frozen=True)
class KeepRate:
    """Describe the penalty on the mean of A."""

    target: float = 0.5  # in (0, 1)
    weight: float = 0.1  # of the penalty; above 0

    def __post_init__(self) -> None:
        _check_share("keep_rate.target", self.target)
        check_number("keep_rate.weight", self.weight, minimum=0.0, above_minimum=True)


@dataclass(frozen=True)
class Supervision:
    """Describe the loss between the attention map and a given map."""

    key: str = "map"  # of the map in the batch
    weight: float = 1.0  # of the loss, above 0
    epochs: float | None = None  # of training with this loss; None for all

    def __post_init__(self) -> None:
        check_number("supervision.weight", self.weight, minimum=0.0, above_minimum=True)
        if self.epochs is not None:
            check_number("supervision.epochs", self.epochs, minimum=0.0, above_minimum=True)


def _check_share(name: str, value: float) -> None:
    check_number(name, value, minimum=1e-6, maximum=1 - 1e-6)


def parse_branch(value: Any) -> BranchOptions | keras.layers.Layer:
    """Return the branch that a config describes."""
    if not isinstance(value, str | Mapping) and isinstance(value, keras.layers.Layer):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("filters"), Sequence):
        value = {"dilations": [2**depth for depth in range(len(value["filters"]))], **value}
    return parse(value, "branch", BranchOptions)


def parse(value: Any, option: str, kind: Callable[..., Options]) -> Options:
    """Return a dataclass from a mapping of its fields, or with its defaults for "auto"."""
    fields = get_type_hints(kind)
    if value != "auto" and not isinstance(value, Mapping):
        raise UserError(f"Invalid {option}: {value!r}. Expected a mapping with {', '.join(fields)}.")
    given = {} if value == "auto" else value
    for key, each in given.items():
        check_choice(f"key of {option}", key, fields)
        if not fits(each, fields[key]):
            raise UserError(f"Invalid {option}.{key}: {show(each)}. Expected {describe(fields[key])}.")
    return kind(**given)


SMALLEST_PICTURE = 96  # minimum height and width of an image on the sheet, in pixels
GAP = 2


def attention_sheet(inputs: np.ndarray, attention: np.ndarray, draws: np.ndarray | None) -> np.ndarray:
    """Return one column per example: the input, a heat map of A (violet to yellow) and, if given, a draw of A."""
    from matplotlib import colormaps

    images = _colored(inputs)
    size = images.shape[1:3]
    heat = colormaps["viridis"](_stretched(attention, size))[..., :3]
    rows = [images, 0.5 * images + 0.5 * heat]
    if draws is not None:
        rows.append(np.repeat(_stretched(draws, size)[..., np.newaxis], 3, axis=-1))
    scale = -(-SMALLEST_PICTURE // min(size))
    enlarged = [np.kron(row, np.ones((1, scale, scale, 1))) for row in rows]
    return sheet(enlarged, GAP)[GAP:-GAP, GAP:-GAP]


def _colored(inputs: np.ndarray) -> np.ndarray:
    """Return images of three channels in [0, 1]; with any other number of channels, their mean."""
    images = inputs.astype(np.float64)
    low, high = images.min(), images.max()
    images = (images - low) / (high - low) if high > low else np.zeros_like(images)
    return images if images.shape[-1] == 3 else np.repeat(images.mean(axis=-1, keepdims=True), 3, axis=-1)


def _stretched(maps: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Return maps resized to the images' size by nearest neighbor."""
    return tf.image.resize(maps[..., np.newaxis], size, "nearest").numpy()[..., 0].astype(np.float64)
