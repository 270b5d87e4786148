"""A network of keras.applications for the classes of the data, with the preprocessing that it was trained with."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from hookline.trainer.errors import UserError, check_choice, user_path
from hookline.trainer.input.preparation import PIXEL_PEAK, Preparation
from hookline.trainer.run.initial_weights import load_whole

IMAGENET = "imagenet"
CHANNELS = 3
HEAD = "outputs"


def application(
    input_shape: Sequence[int],
    classes: int,
    *,
    name: str,
    weights: str | None = None,
    pooling: str = "avg",
    dropout: float = 0.0,
    input_range: Sequence[float] | None = None,
    options: Mapping[str, Any] | None = None,
    preparation: Preparation | None = None,
) -> keras.Model:
    """Return a network of keras.applications without its top, after its own preprocessing, with a new dense head.

    Layers of the graph, which exports contain, convert the data's values to those that the network's `preprocess_input`
    returns for pixels from 0 to 255. Gray images are repeated in 3 channels. `preparation` is the data's.
    """
    known = {key: each for key, each in vars(keras.applications).items() if inspect.isfunction(each)}
    check_choice("name of keras.applications", name, known)
    function = known[name]
    check_choice("pooling", pooling, ("avg", "max"))
    shape = tuple(input_shape)
    if len(shape) != 3 or shape[-1] not in (1, CHANNELS):
        raise UserError(f"{name} got inputs of shape {list(shape)}. Expected images [height, width, 1 or 3 channels].")
    inputs = keras.Input(shape, name="image")
    x = _preprocessed(inputs, function, _range(input_range, preparation))
    given = {"input_tensor": x, "input_shape": tuple(x.shape[1:]), "pooling": pooling}
    base = keras.Model(inputs, _base(function, weights, given, options or {}).output, name=name)
    if weights is not None and weights != IMAGENET:
        load_whole(base, user_path(weights, "model.weights"), f"model.weights={weights}")
    features = keras.layers.Dropout(dropout, name="dropout")(base.output) if dropout else base.output
    return keras.Model(inputs, keras.layers.Dense(classes, name=HEAD)(features), name=name.lower())


def _range(given: Sequence[float] | None, preparation: Preparation | None) -> tuple[float, float]:
    """Return the data's values of black and white."""
    if given is not None:
        if len(given) != 2 or not given[0] < given[1]:
            raise UserError(f"model.input_range={list(given)} received. Expected two rising numbers, such as [0, 255].")
        return float(given[0]), float(given[1])
    if preparation is None or preparation.peak is None:
        raise UserError(
            "The data does not define the range of its pixels. Expected model.input_range=[<black>, <white>], such "
            "as [0, 255], or data.scale=pixels."
        )
    return preparation.black_and_white


def _preprocessed(x: Any, function: Callable[..., keras.Model], black_and_white: tuple[float, float]) -> Any:
    """Return preprocessed inputs, given inputs with values from black to white.

    The effect of the network's `preprocess_input` is measured: a scale and an offset for each channel, and possibly a
    reversed channel order.
    """
    prepare = sys.modules[function.__module__].preprocess_input
    probes = np.concatenate([np.zeros((1, CHANNELS)), PIXEL_PEAK * np.eye(CHANNELS)])
    found = np.asarray(prepare(probes[:, None, None, :].copy()))[:, 0, 0, :]
    matrix, offset = (found[1:] - found[0]) / PIXEL_PEAK, found[0]
    flipped = bool(abs(matrix[0, -1]) > abs(matrix[0, 0]))
    if x.shape[-1] == 1:
        x = keras.layers.Concatenate(name="three_channels")([x] * CHANNELS)
    if flipped:
        x = keras.ops.flip(x, axis=-1)
    black, white = black_and_white
    scale = np.diag(matrix[::-1] if flipped else matrix) * PIXEL_PEAK / (white - black)
    return keras.layers.Rescaling(scale.tolist(), (offset - black * scale).tolist(), name="preprocessing")(x)


def _base(
    function: Callable[..., keras.Model], weights: str | None, given: dict[str, Any], options: Mapping[str, Any]
) -> keras.Model:
    downloads = weights == IMAGENET
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*input_shape. is undefined or non-square")  # of weights for 224 pixels
            return function(include_top=False, weights=IMAGENET if downloads else None, **given, **options)
    except Exception as error:
        if not downloads or isinstance(error, (TypeError, ValueError)):  # from options, or images that are too small
            raise
        raise UserError(
            f"model.weights={IMAGENET} cannot be downloaded: {error}. Expected a connection, model.weights=<file> with "
            "weights of this network, or null."
        ) from error
