"""Pictures of techniques for the site, drawn from the functions that training uses."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.hooks.attention.options import keep_rate_penalty
from hookline.hooks.pruning.settings import polynomial_sparsity
from hookline.hooks.quantization.fake import quantize_activations, quantize_weights
from hookline.hooks.quantization.quantizers import level_exponents, round_to_levels
from hookline.hooks.weight_clustering import clustered, initial_centroids
from hookline.scripts.command import new_figure
from hookline.trainer.ops.backward import clip, modify_gradients, reverse
from hookline.trainer.ops.estimators import approx_sign, round_through, ste_sign, swish_sign

Curves = Mapping[str, Any]
"""Values of y by the name of the curve, each as long as x."""
Panels = list[tuple[str, Any, Curves]]
X = np.linspace(-1.5, 1.5, 601, dtype=np.float32)


def draw(panels: Panels) -> bytes:
    """Return a picture as SVG."""
    figure = new_figure(3.6 * len(panels), 2.6)
    for place, (title, x, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for label, y in curves.items():
            place.plot(x, y, label=label)
        place.set_title(title, fontsize=9)
        place.tick_params(labelsize=7)
        place.grid(alpha=0.3)
        if len(curves) > 1:
            place.legend(fontsize=7)
    stream = io.BytesIO()
    figure.savefig(stream, format="svg")
    return stream.getvalue()


def _slope(function: Callable[[tf.Tensor], tf.Tensor]) -> np.ndarray:
    """Return the derivative of a function as its backward pass defines it."""
    given = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(given)
        y = function(given)
    return tape.gradient(y, given).numpy()


def all_panels() -> dict[str, Panels]:
    """Return the panels of each technique, by its name."""
    x, limits, steps = tf.constant(X), tf.constant([-0.5, 1.25]), np.arange(2000)
    signs = {each.__name__: _slope(each) for each in (ste_sign, approx_sign, swish_sign)}
    pruning: dict[str, Any] = {"begin": 100, "end": 600, "initial": 0.0, "final": 0.9}
    sparsities = {
        f"polynomial, power={power:.0f}": [polynomial_sparsity(step, **pruning, power=power) for step in range(1001)]
        for power in (3.0, 1.0)
    }
    weights = tf.random.stateless_normal([2000], [0, 1])
    clusters = {init: clustered(x, initial_centroids(weights, 8, init)) for init in ("linear", "density")}
    overrides: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
        "identity": round_through,
        "hard_tanh_through": ste_sign,
        "clip, limit=0.5": lambda x: modify_gradients(clip(limit=0.5), [x])[0],
        "reverse": lambda x: modify_gradients(reverse(), [x])[0],
    }
    shares = np.linspace(0.005, 0.995, 199, dtype=np.float32)
    logits = tf.constant(np.log(shares / (1.0 - shares)).reshape(-1, 1, 1, 1))
    penalties = {f"target {target}": keep_rate_penalty(logits, target=target) for target in (0.5, 0.3)}
    decays = {f"decay={each}": np.minimum(each, (1.0 + steps) / (10.0 + steps)) for each in (0.9, 0.99, 0.999)}
    return {
        "bnn_rounding": [("forward: Q(x)", X, {"all three": ste_sign(x)}), ("backward: Q'(x)", X, signs)],
        "prune": [("sparsity", steps[:1001], {**sparsities, "one_shot": np.where(steps[:1001] < 100, 0.0, 0.9)})],
        "incremental_quantization": [("w to a power of two", X, {"": round_to_levels(x, level_exponents(x, 3))})],
        "quantization_aware_training": [
            ("weights", X, {"": quantize_weights(x, 3, ())}),
            ("activations between two limits", X, {"": quantize_activations(x, limits, 3)}),
            ("their gradient", X, {"": _slope(lambda given: quantize_activations(given, limits, 3))}),
        ],
        "weight_clustering": [("w to its centroid", X, clusters)],
        "gradient_override": [("dL/dx", X, {name: _slope(each) for name, each in overrides.items()})],
        "bernoulli_attention": [("penalty by the mean of A", shares, penalties)],
        "ema": [("decay by step", steps, decays)],
    }
