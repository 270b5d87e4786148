"""Inputs as large as raw pixels, where nothing in the network brings them to size."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

import keras

from hooks.quantization.graph_facts import trace_kernel_inputs
from hooks.quantization.kernel_layers import is_kernel_layer
from hooks.quantization.missing_norm import find_missing_norms
from trainer.graph import is_graph, is_of
from trainer.select import layer_paths

LARGE = 20.0
SCALING = ("Rescaling", "Normalization", "BatchNormalization", "LayerNormalization", "GroupNormalization")


def input_range_advice(models: Mapping[str, keras.Model], smallest: float, largest: float) -> str | None:
    """Return a line on inputs that are far larger than weights are drawn for; None where a norm takes the size away.

    Args:
        models: by name of their network; those without a known graph are left out.
        smallest: value of the inputs.
        largest: value of the inputs.
    """
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
