"""Checks before training that end in advice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import takewhile
from typing import TYPE_CHECKING

import keras

from hookline.hooks.kernels import is_kernel_layer
from hookline.hooks.quantization.latent_advice import find_missing_norms
from hookline.hooks.quantization.selection import trace_kernel_inputs
from hookline.trainer.graph import is_graph, is_of
from hookline.trainer.select import layer_paths

if TYPE_CHECKING:
    pass


LARGE = 20.0
SCALING = ("Rescaling", "Normalization", "BatchNormalization", "LayerNormalization", "GroupNormalization")


def input_range_advice(models: Mapping[str, keras.Model], smallest: float, largest: float) -> str | None:
    """Return a line on inputs far larger than initial weights are scaled for; None if a norm removes the scale."""
    size = max(abs(smallest), abs(largest))
    bare = [place for model in models.values() if (place := _without_norm(model))]
    if size < LARGE or not bare:
        return None
    return (
        f"inputs reach from {smallest:g} to {largest:g}, and no normalization follows the first layer '{bare[0]}': its "
        f"sums are about {size:.0f} times as large as weights are drawn for. Bring inputs to [-1, 1], as "
        "data.scale=pixels does with 0 to 255."
    )


def _without_norm(model: keras.Model) -> str | None:
    if not is_graph(model):
        return None
    before = takewhile(lambda layer: not is_kernel_layer(layer), model._flatten_layers())
    if any(is_of(layer, SCALING) for layer in before):
        return None
    kernels = {path: layer for path, layer in layer_paths(model).items() if is_kernel_layer(layer)}
    first = trace_kernel_inputs(model, kernels).first() if kernels else set()
    return next(iter(find_missing_norms(model, {path: kernels[path] for path in sorted(first)})), None)


FEW = 8
"""Wu and He 2018, "Group Normalization", table 2: ResNet-50 errs on 23.6 % of ImageNet with 32 images per replica, on
24.8 % with 8, on 27.3 % with 4, on 34.7 % with 2."""


def norm_batch_advice(
    models: Mapping[str, keras.Model], *, batch_size: int, replicas: int, micro_batches: int, synchronized: bool
) -> str | None:
    """Return a line on batch norm layers that see few examples at a time; None if there are none."""
    parts = micro_batches * (1 if synchronized else replicas)
    seen = batch_size // parts
    layers = [
        layer.name
        for model in models.values()
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]
    if not layers or seen >= FEW:
        return None
    wrong = "nothing but that example" if seen < 2 else f"a variance that is off by about {_error(seen)}"
    remedies = ["trainer.accumulation_steps=1"] if micro_batches > 1 else []
    remedies += ["+hooks=synchronized_batch_norm"] if replicas > 1 and not synchronized else []
    divisor = replicas * micro_batches  # of every batch size
    remedies.append(f"trainer.batch_size={math.ceil(2 * FEW * parts / divisor) * divisor}")
    return (
        f"{len(layers)} batch norm layers, such as '{layers[0]}', see {seen} example{'s' * (seen != 1)} at a time and "
        f"normalize by {wrong}. Set {' or '.join(remedies)}."
    )


def _error(examples: int) -> str:
    """Return the relative standard error of the variance of that many normal values."""
    return f"{100 * math.sqrt(2.0 / (examples - 1)):.0f} %"
