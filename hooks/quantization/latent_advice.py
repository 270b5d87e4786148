"""Advice on latent weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from hookline.hooks.kernels import Kernel
from hookline.hooks.options import first_of
from hookline.hooks.quantization.selection import SIGN_KEEPING
from hookline.trainer.graph import is_graph, walk
from hookline.trainer.network import inner_of

BOUNDED_FUNCTIONS = {"tanh", "hard_tanh", "sigmoid", "hard_sigmoid", "softsign", "relu6", "softmax", "sparse_sigmoid"}
BOUNDED_OPERATIONS = {"Tanh", "HardTanh", "Sigmoid", "HardSigmoid", "SoftSign", "Relu6", "Softmax", "Sign"}
"""Operations that saturate: hardly any gradient passes if their input is large."""


def find_missing_norms(model: keras.Model, layers: Mapping[str, keras.Layer]) -> dict[str, str]:
    """Return {layer path: sign or other saturating activation that its sums reach, with only linear ones between}."""
    if not is_graph(model):
        return {}
    paths = {id(layer): path for path, layer in layers.items()}
    found: dict[str, str] = {}

    def visit(operation: Any, facts: list[frozenset[str]], constants: list[Any]) -> frozenset[str]:
        path = paths.get(id(operation))
        sums = frozenset[str]().union(*facts) if path is None else frozenset({path})
        if _is_bounded(operation) if path is None else _has_bounded_function(operation):
            where = operation.name if path is None else f"activation of {operation.name}"
            found.update({each: where for each in sorted(sums) if each not in found})
        kept = type(operation).__name__ in SIGN_KEEPING or isinstance(operation, keras.layers.Activation)
        is_linear = getattr(operation, "activation", None) in (None, keras.activations.linear)
        return sums if (kept or path is not None) and is_linear else frozenset[str]()

    walk(model, frozenset[str](), visit)
    return found


def _is_bounded(operation: Any) -> bool:
    if isinstance(operation, keras.layers.Activation):
        return _has_bounded_function(operation)
    bounded_relu = isinstance(operation, keras.layers.ReLU) and operation.max_value is not None
    is_bounded = isinstance(operation, keras.layers.Softmax) or getattr(operation, "role", "") == "input quantizer"
    return bounded_relu or is_bounded or type(operation).__name__ in BOUNDED_OPERATIONS


def _has_bounded_function(operation: Any) -> bool:
    return getattr(getattr(operation, "activation", None), "__name__", "") in BOUNDED_FUNCTIONS


TRIAL_STEPS = 100  # a shorter run is only a smoke test
WIDE = 3.0  # standard deviation of sums above which they need a norm; a sign then passes a quarter of the gradients
LEAST_WAY, LONGEST_STEP = 0.5, 0.1
"""As shares of the clip: how far a weight must at least be able to move in a run, and how far it may move in a step."""
BOUNDED = ("Adam", "AdamW", "Nadam", "Adamax", "Lion", "RMSprop")
"""Optimizers that move a variable by about the learning rate per step, regardless of the size of its gradient."""


def learning_rates(optimizer: keras.optimizers.Optimizer, steps: int) -> np.ndarray:
    """Return the learning rates at evenly spaced steps of a run."""
    rate = inner_of(optimizer)._learning_rate
    if not callable(rate):
        return np.array([float(optimizer.learning_rate)])
    return np.array([float(rate(int(step))) for step in np.linspace(0, max(0, steps - 1), min(steps, 33))])


def rate_advice(optimizer: keras.optimizers.Optimizer, *, steps: int, clip: float) -> str | None:
    """Return a line on a learning rate at which the signs of latent weights flip hardly ever, or within few steps."""
    name = type(inner_of(optimizer)).__name__
    rates = learning_rates(optimizer, steps)
    rate, highest = float(rates.mean()), float(rates.max())
    if name not in BOUNDED or steps < TRIAL_STEPS or rate <= 0.0:
        return None
    if rate * steps < LEAST_WAY * clip:
        return (
            f"{steps} steps of {name}, at a learning rate of {rate:.2g} on average, move a latent weight by "
            f"{rate * steps:.2g} at most, and its clip is {clip:g} away from 0: most signs keep their initial value. "
            f"Set optimizer.learning_rate={highest * clip / (rate * steps):.1g}, or train longer."
        )
    if rate > LONGEST_STEP * clip:
        return (
            f"{name}, at a learning rate of {rate:.2g} on average, takes a latent weight from its clip of {clip:g} to "
            f"0 in {clip / rate:.2g} steps, so that signs follow single batches. Set optimizer.learning_rate="
            f"{clip / 100:g}."
        )
    return None


def decay_advice(kernels: Sequence[Kernel], optimizer: keras.optimizers.Optimizer, *, clip: float) -> list[str]:
    """Return lines on regularizers and weight decay that pull latent weights to 0, where gradients flip their sign."""
    lines = []
    if pulled := [each.name for each in kernels if each.variable.regularizer is not None]:
        lines.append(
            f"a kernel_regularizer pulls the latent weights {first_of(pulled)} to 0, where every gradient flips their "
            "sign, though their size means nothing. Remove it from binarized layers."
        )
    inner = inner_of(optimizer)
    decay, name = float(inner.weight_decay or 0.0), type(inner).__name__
    decays = any(inner._use_weight_decay(each.variable) for each in kernels)
    if decays and name in BOUNDED and decay * LEAST_WAY * clip > 1.0:
        lines.append(
            f"optimizer.weight_decay={decay:g} equals the steps of {name} at {1.0 / decay:.2g}: it keeps latent "
            f"weights there, not at their clip of {clip:g}, and so near 0, where gradients flip signs over and over. "
            "Set optimizer.weight_decay=0, or a smaller one."
        )
    return lines


def missing_norm_advice(
    model: keras.Model, kernels: Sequence[Kernel], layers: Mapping[str, keras.Layer], *, clip: float, hook: str
) -> str | None:
    """Return a line on binarized layers whose sums saturate the next activation for lack of a norm; None if none do."""
    found = find_missing_norms(model, layers)
    fan_in = {
        each.layer: each.size / math.prod(each.variable.shape[axis] for axis in each.channel_axes) for each in kernels
    }
    spreads = {path: clip * math.sqrt(entries) for path, entries in fan_in.items()}
    wide = [path for path in found if spreads.get(path, 0.0) > WIDE]
    if not wide:
        return None
    path = max(wide, key=lambda each: spreads[each])
    passed = math.erf(1.0 / (spreads[path] * math.sqrt(2.0)))
    others = [each for each in wide if each != path]
    nor = f" (nor behind {first_of(others)})" if others else ""
    return (
        f"no normalization stands between the binarized layer '{path}' and '{found[path]}'{nor}: its "
        f"sums spread by about {spreads[path]:.0f}, and only {100 * passed:.0f} % lie within 1, where gradients pass. "
        f"Put a batch norm there, as model=mlp has, or set hooks.{hook}.kernel_quantizer=magnitude_aware_sign."
    )
