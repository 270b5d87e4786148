"""Advisor: point out settings that fail silently, before training and at evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import keras
import tensorflow as tf

from hookline.hooks.freeze_layers import FreezeLayers
from hookline.hooks.kernels import is_kernel_layer
from hookline.hooks.quantization.latent_advice import find_missing_norms
from hookline.hooks.quantization.selection import trace_kernel_inputs
from hookline.trainer.graph import is_graph, is_of, layer_paths
from hookline.trainer.hook import HostHook, Report, Run
from hookline.trainer.network import Network, inner_of
from hookline.trainer.run.results import format_value, short_name

EXAMPLES = 64


class Advisor(HostHook):
    """Warn of silent mistakes that no technique checks for, in one line each.

    - Before training: a monitored metric with the wrong direction; masks, quantization or loss weights that become
      final when hardly any steps are left; batch norm over fewer than 8 examples; raw pixels fed to a first layer
      whose sums reach a bounded activation, such as tanh or a sign, with no normalization in between; averages of an
      optimizer with use_ema, which evaluations do not use; losses that layers add in micro batches.
    - At evaluations: a monitored metric that has the same value in each of the first 5.

    Group: guard

    State:
        values: the monitor's values until one differs.

    Cost: 64 training examples are read once, before the first step.

    Pitfalls:
        tests/hooks/monitors/test_advisor.py: sound settings get no warning.

    Example:
        python train.py recipe=baseline trainer.monitor_mode=max
    """

    def __init__(self) -> None:
        self._values: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        """Return the monitor's values so far; recording ends with the first that differs from those before."""
        return {"values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values = list(state["values"])

    def advise(self, run: Run) -> Sequence[str]:
        models = {name: network.model for name, network in run.networks.items() if not network.fixed}
        settings = run.config.get("trainer", {})
        lines = [
            direction_advice(run.best.monitor, run.best.mode),
            late_advice(run),
            norm_batch_advice(
                models,
                [norm for hook in run.trainer.hooks if isinstance(hook, FreezeLayers) for norm in hook.inference_norms],
                batch_size=run.training.batch_size,
                replicas=run.trainer.replica.count,
                micro_batches=settings.get("accumulation_steps", 1),
                synchronized=(run.config.get("hooks") or {}).get("synchronized_batch_norm") is not None,
            ),
            input_range_advice(models, *_input_range(run)),
            averages_advice(run.networks.values()),
            layer_loss_advice(settings.get("accumulation_steps", 1)) if run.trainer.layer_losses else None,
        ]
        return [line for line in lines if line is not None]

    def on_fit_begin(self, run: Run) -> None:
        self._monitor = run.best.monitor
        if not run.step:
            self._values = []  # from an earlier fit

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        if report.split == "validation" and len(set(self._values)) < 2:
            self._values.append(report.values[run.best.monitor])

    def warning(self, values: Mapping[str, float]) -> str | None:
        return constant_advice(self._monitor, self._values)


def _input_range(run: Run) -> tuple[float, float]:
    """Return the smallest and the largest value of some training examples; zeros if inputs are not a float tensor."""
    rows = run.training.indices(tf.constant(0, tf.int64))[:EXAMPLES]
    inputs = run.training.read(rows)["inputs"]
    if not isinstance(inputs, tf.Tensor) or not inputs.dtype.is_floating:
        return 0.0, 0.0
    return float(tf.reduce_min(inputs)), float(tf.reduce_max(inputs))


def averages_advice(networks: Iterable[Network]) -> str | None:
    """Return a line on averages of an optimizer that never become the weights, as they do after Keras's `fit`."""
    for optimizer in (inner_of(each.optimizer) for each in networks if not each.fixed):
        if optimizer.use_ema and not optimizer.ema_overwrite_frequency:
            return "evaluations and predictions do not use the averages of an optimizer with use_ema. Use the hook ema."
    return None


def layer_loss_advice(micro_batches: int) -> str | None:
    """Return a line on losses added by layers, if there are micro batches: sums cannot be told from means."""
    if micro_batches == 1:
        return None
    return (
        "a layer has add_loss or an activity_regularizer, and a step takes the mean of its loss over "
        f"{micro_batches} micro batches: a sum over examples weighs only 1/{micro_batches} as much as "
        f"with trainer.accumulation_steps=1. Let the loss be a mean over examples, or multiply it by {micro_batches}."
    )


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


FEW = 8  # Wu and He 2018, "Group Normalization", table 2: the error of ResNet-50 grows with fewer images per replica


def norm_batch_advice(
    models: Mapping[str, keras.Model],
    frozen: Sequence[keras.Layer] = (),
    *,
    batch_size: int,
    replicas: int,
    micro_batches: int,
    synchronized: bool,
) -> str | None:
    """Return a line on batch norm layers, except frozen ones, that see few examples at a time; None if none do."""
    parts = micro_batches * (1 if synchronized else replicas)
    seen = batch_size // parts
    layers = [
        layer.name
        for model in models.values()
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable and layer not in frozen
    ]
    if not layers or seen >= FEW:
        return None
    error = math.sqrt(2.0 / max(1, seen - 1))  # of the variance of `seen` normal values
    wrong = "nothing but that example" if seen < 2 else f"a variance that is off by about {100 * error:.0f} %"
    remedies = ["trainer.accumulation_steps=1"] if micro_batches > 1 else []
    remedies += ["+hooks=synchronized_batch_norm"] if replicas > 1 and not synchronized else []
    remedies.append(f"trainer.batch_size={2 * FEW * replicas * micro_batches}")
    return (
        f"{len(layers)} batch norm layers, such as '{layers[0]}', see {seen} example{'s' * (seen != 1)} at a time and "
        f"normalize by {wrong}. Set {' or '.join(remedies)}."
    )


METRIC = "metric"
LARGER_IS_BETTER = ("accuracy", "recall@", "map@", "precision@", "coverage")
EQUAL_EVALUATIONS = 5  # this many equal values of a metric, from the first one on, are no coincidence
LEAST_LEFT = 0.05
"""Share of a run that must be left for training once masks and quantization are final. Measured on digits with 97 %
sparsity: masks that are final at the end give 86.4 % accuracy, halfway through the run 93.3 %."""
TRIAL_STEPS = 100  # A shorter run is only a smoke test


def direction_advice(monitor: str, mode: str) -> str | None:
    """Return a line on a monitor whose worst value would count as the best; None if all is well."""
    last = monitor.rpartition("/")[2]
    is_loss = monitor.startswith("loss/") or "/loss/" in monitor
    if is_loss and mode == "max":
        return f"trainer.monitor={monitor} with monitor_mode=max keeps the highest loss. Set trainer.monitor_mode=min."
    if any(last.endswith(name) or last.startswith(name) for name in LARGER_IS_BETTER) and not is_loss and mode == "min":
        return f"trainer.monitor={monitor} with monitor_mode=min keeps the lowest {last}. Set trainer.monitor_mode=max."
    return None


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
    """Return the settings that monitor the loss of the same objective; empty if a loss is monitored already."""
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
        f"final masks, final quantization or a loss at full weight are reached only at step {since} of "
        f"{run.total_steps}, so {left} steps are left to train with them, and only evaluations from there on can be "
        f"the best. Let hooks finish by half of the run, epoch {epochs / 2:g}, or train longer: trainer.{longer}."
    )
