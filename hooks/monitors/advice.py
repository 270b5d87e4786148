"""Advice on silent mistakes: of the data, of batch norm, and of the metric that decides which step is the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import keras

from hookline.hooks.kernels import is_kernel_layer
from hookline.hooks.quantization.latent_advice import find_missing_norms
from hookline.hooks.quantization.selection import trace_kernel_inputs
from hookline.trainer.graph import is_graph, is_of
from hookline.trainer.run.results import format_value, short_name
from hookline.trainer.select import layer_paths

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run

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


METRIC = "metric"
LARGER_IS_BETTER = ("accuracy", "recall@", "map@", "precision@", "coverage")
EQUAL_EVALUATIONS = 5
"""This many equal values of a metric in a row, from the first one on, are no accident."""
LEAST_LEFT = 0.05
"""Share of a run that must be left for training once masks and quantization are final. Measured on digits: with 97 %
sparsity, masks that are final at the end give 86.4 % accuracy, at half of the run 93.3 %; with 90 %, 97.2 and 97.8
%."""
TRIAL_STEPS = 100
"""A shorter run is only a smoke test."""


def direction_advice(monitor: str, mode: str) -> str | None:
    """Return a line on a monitor whose worst value would count as the best; None if all is well."""
    last = monitor.rpartition("/")[2]
    is_loss = monitor.startswith("loss/") or "/loss/" in monitor
    if is_loss and mode == "max":
        return f"trainer.monitor={monitor} with monitor_mode=max keeps the step with the highest loss. {_set('min')}"
    if any(last.endswith(name) or last.startswith(name) for name in LARGER_IS_BETTER) and not is_loss and mode == "min":
        return f"trainer.monitor={monitor} with monitor_mode=min keeps the step with the lowest {last}. {_set('max')}"
    return None


def _set(mode: str) -> str:
    return f"Set trainer.monitor_mode={mode}."


def constant_advice(monitor: str, values: Sequence[float]) -> str | None:
    """Return a line on a monitor that never changes, so that the first evaluation remains the best."""
    if len(values) < EQUAL_EVALUATIONS or len(set(values)) > 1 or values[0] == 1.0 or not math.isfinite(values[0]):
        return None
    return (
        f"{short_name(monitor)} was {format_value(values[0])} in each of {len(values)} evaluations, so the first "
        "stays the best. Does the network learn? If so, monitor what changes"
        + (f", such as {remedy}." if (remedy := loss_monitor(monitor)) else ".")
    )


def loss_monitor(monitor: str) -> str:
    """Return the settings that make the loss of the same objective decide; empty if a loss decides already."""
    parts = monitor.split("/")
    if METRIC not in parts:
        return ""
    prefix = "".join(f"{part}/" for part in parts[: parts.index(METRIC)])
    return f"trainer.monitor={prefix}loss/total trainer.monitor_mode=min"


def late_advice(run: Run) -> str | None:
    """Return a line on a run that has hardly any steps left once evaluations count; None if enough are left."""
    since, left = run.best.since, run.total_steps - run.best.since
    if not since or left >= LEAST_LEFT * run.total_steps or run.total_steps < TRIAL_STEPS:
        return None
    epochs = run.total_steps / run.steps_per_epoch
    by_steps = run.config.get("trainer", {}).get("steps") is not None
    longer = f"steps={math.ceil(1.5 * run.total_steps)}" if by_steps else f"epochs={math.ceil(1.5 * epochs)}"
    return (
        f"what the hooks promise, such as final masks, holds from step {since} of {run.total_steps} on, so that {left} "
        f"steps are left to train with it, and only evaluations from there on can be the best. Let it be final by half "
        f"of the run, epoch {epochs / 2:g}, or train longer: trainer.{longer}."
    )
