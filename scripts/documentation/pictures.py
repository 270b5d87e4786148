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
X = np.linspace(-1.5, 1.5, 601, dtype=np.float32)


def draw(name: str) -> bytes:
    """Return the picture of a technique as SVG."""
    panels = PICTURES[name]()
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


Panels = list[tuple[str, Any, Curves]]


def _slope(function: Callable[[tf.Tensor], tf.Tensor], x: np.ndarray) -> np.ndarray:
    """Return the derivative of a function as its backward pass defines it."""
    given = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(given)
        y = function(given)
    return tape.gradient(y, given).numpy()


def _quantizers() -> Panels:
    signs = {each.__name__: each for each in (ste_sign, approx_sign, swish_sign)}
    slopes = {name: _slope(sign, X) for name, sign in signs.items()}
    return [("forward: Q(x)", X, {"all three": ste_sign(tf.constant(X))}), ("backward: Q'(x)", X, slopes)]


def _sparsity() -> Panels:
    steps = np.arange(1001)
    curves = {
        f"polynomial, power={power:.0f}": [
            polynomial_sparsity(int(step), begin=100, end=600, initial=0.0, final=0.9, power=power) for step in steps
        ]
        for power in (3.0, 1.0)
    }
    return [("sparsity", steps, {**curves, "one_shot": np.where(steps < 100, 0.0, 0.9)})]


def _powers() -> Panels:
    return [("w to a power of two", X, {"": round_to_levels(tf.constant(X), level_exponents(tf.constant(X), 3))})]


def _integers() -> Panels:
    weights = quantize_weights(tf.constant(X), 3, ())
    limits = tf.constant([-0.5, 1.25])
    x = tf.constant(X)
    return [
        ("weights", X, {"": weights}),
        ("activations between two limits", X, {"": quantize_activations(x, limits, 3)}),
        ("their gradient", X, {"": _slope(lambda given: quantize_activations(given, limits, 3), X)}),
    ]


def _clusters() -> Panels:
    weights = tf.random.stateless_normal([2000], [0, 1])
    curves = {init: clustered(tf.constant(X), initial_centroids(weights, 8, init)) for init in ("linear", "density")}
    return [("w to its centroid", X, curves)]


def _overrides() -> Panels:
    slopes = {
        "identity": _slope(round_through, X),
        "hard_tanh_through": _slope(ste_sign, X),
        "clip, limit=0.5": _slope(lambda x: modify_gradients(clip(limit=0.5), [x])[0], X),
        "reverse": _slope(lambda x: modify_gradients(reverse(), [x])[0], X),
    }
    return [("dL/dx", X, slopes)]


def _keep_rates() -> Panels:
    mean = np.linspace(0.005, 0.995, 199, dtype=np.float32)
    logits = tf.constant(np.log(mean / (1.0 - mean)).reshape(-1, 1, 1, 1))
    curves = {f"target {target}": keep_rate_penalty(logits, target=target) for target in (0.5, 0.3)}
    return [("penalty by the mean of A", mean, curves)]


def _decays() -> Panels:
    steps = np.arange(2000)
    warm = (1.0 + steps) / (10.0 + steps)
    return [("decay by step", steps, {f"decay={each}": np.minimum(each, warm) for each in (0.9, 0.99, 0.999)})]


PICTURES: dict[str, Callable[[], Panels]] = {
    "bnn_rounding": _quantizers,
    "prune": _sparsity,
    "incremental_quantization": _powers,
    "quantization_aware_training": _integers,
    "weight_clustering": _clusters,
    "gradient_override": _overrides,
    "bernoulli_attention": _keep_rates,
    "ema": _decays,
}
