"""Pictures of techniques for the site, drawn from the functions that training uses where these are pure."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.attention.options import keep_rate_penalty
from hookline.hooks.pruning.settings import polynomial_sparsity
from hookline.hooks.quantization.fake import quantize_activations, quantize_weights
from hookline.hooks.quantization.quantizers import level_exponents, round_to_levels
from hookline.hooks.weight_clustering import clustered, initial_centroids
from hookline.recipes.adversarial import LOSSES
from hookline.recipes.retrieval import Triplets, triplet_loss
from hookline.scripts.command import new_figure
from hookline.trainer.ops.backward import clip, modify_gradients, reverse
from hookline.trainer.ops.estimators import approx_sign, round_through, ste_sign, swish_sign

Panels = list[tuple[str, Any, Mapping[str, Any]]]
"""The title of each panel, its x, and its y values by the name of the curve, each as long as x."""
X = np.linspace(-1.5, 1.5, 601, dtype=np.float32)


def draw(name: str) -> bytes:
    """Return the picture of a technique as SVG."""
    panels = PICTURES[name][1]()
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
    """Return the derivative of a function at `X`, as defined by its backward pass."""
    given = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(given)
        y = function(given)
    return tape.gradient(y, given).numpy()


def _quantizers() -> Panels:
    signs = {each.__name__: each for each in (ste_sign, approx_sign, swish_sign)}
    slopes = {name: _slope(sign) for name, sign in signs.items()}
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
    x, limits = tf.constant(X), tf.constant([-0.5, 1.25])
    return [
        ("weights", X, {"": quantize_weights(x, 3, ())}),
        ("activations between two limits", X, {"": quantize_activations(x, limits, 3)}),
        ("their gradient", X, {"": _slope(lambda given: quantize_activations(given, limits, 3))}),
    ]


def _clusters() -> Panels:
    weights = tf.random.stateless_normal([2000], [0, 1])
    curves = {init: clustered(tf.constant(X), initial_centroids(weights, 8, init)) for init in ("linear", "density")}
    return [("w to its centroid", X, curves)]


def _overrides() -> Panels:
    slopes = {
        "identity": _slope(round_through),
        "hard_tanh_through": _slope(ste_sign),
        "clip, limit=0.5": _slope(lambda x: modify_gradients(clip(limit=0.5), [x])[0]),
        "reverse": _slope(lambda x: modify_gradients(reverse(), [x])[0]),
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


def _flips() -> Panels:
    steps, gamma, threshold = np.arange(400), 0.02, 0.01
    gradients = 0.05 * np.sin(steps / 60.0) + np.random.default_rng(0).normal(0.0, 0.1, steps.size)
    momentum, weight, momenta, weights = 0.0, 1.0, [], []
    for gradient in gradients:
        momentum += gamma * (gradient - momentum)
        weight = -weight if weight * momentum >= threshold else weight
        momenta.append(momentum)
        weights.append(weight)
    limits = {"threshold": np.full(steps.size, threshold), "-threshold": np.full(steps.size, -threshold)}
    return [("m by step", steps, {"m": momenta, **limits}), ("w by step", steps, {"": weights})]


def _soft_targets() -> Panels:
    logits = tf.constant([9.0, 6.0, 5.0, 3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -4.0])
    temperatures = (1.0, 2.0, 4.0, 8.0)
    return [("softmax(z / T) by class", np.arange(10), {f"T={t:.0f}": tf.nn.softmax(logits / t) for t in temperatures})]


def _frozen_weight() -> Panels:
    steps, since = np.arange(120), 60
    curves: dict[str, list[float]] = {"frozen": [], "gradient of zero": []}
    for name, values in curves.items():
        weight, optimizer = keras.Variable(1.0), keras.optimizers.Adam(0.01)
        optimizer.build([weight])
        for step in steps:
            before = float(weight)
            optimizer.apply([tf.constant(1.0 if step < since else 0.0)])
            if name == "frozen" and step >= since:
                weight.assign(before)
            values.append(float(weight))
    return [(f"w by step, frozen from step {since}", steps, curves)]


def _triplets() -> Panels:
    distances = tf.linspace(0.0, 2.0, 201)
    curves = {
        "soft margin" if margin is None else f"margin={margin}": [
            triplet_loss(Triplets(tf.constant(0.8), each, tf.constant(True)), margin, over_active=False)
            for each in distances
        ]
        for margin in (0.2, 0.5, None)
    }
    return [("loss by distance to the negative; positive at 0.8", distances, curves)]


def _adversarial() -> Panels:
    scores = np.linspace(-3.0, 3.0, 301, dtype=np.float32)
    terms = {"discriminator, real": "real", "discriminator, generated": "fake", "generator": "generator"}
    return [
        (title, scores, {name: getattr(loss, term)(tf.constant(scores)) for name, loss in LOSSES.items()})
        for title, term in terms.items()
    ]


PICTURES: dict[str, tuple[str, Callable[[], Panels]]] = {
    "bnn_rounding": ("Forward and backward function of the quantizers, as the code computes them.", _quantizers),
    "prune": ("Sparsity over the steps of a run, with the masks updated at every step.", _sparsity),
    "incremental_quantization": ("Weights rounded to powers of two with 3 bits, as the code computes them.", _powers),
    "quantization_aware_training": ("Weights and activations rounded to 3 bits, as the code computes them.", _integers),
    "weight_clustering": ("Weights, and the centroids that replace them in the forward pass.", _clusters),
    "gradient_override": (
        "The gradient below a layer y = x, for a gradient of 1 above it, in the range of x.",
        _overrides,
    ),
    "bernoulli_attention": ("The keep-rate penalty, by the mean of the attention map.", _keep_rates),
    "ema": ("The decay over the first steps, with the warm-up.", _decays),
    "bop": ("A noisy gradient averaged over steps, and the weight that the average flips.", _flips),
    "distillation": ("Targets that one set of logits gives at several temperatures.", _soft_targets),
    "freeze_layers": ("A weight under Adam that freezes, and one whose gradient becomes zero.", _frozen_weight),
    "frozen_mask": ("A weight under Adam that freezes, and one whose gradient becomes zero.", _frozen_weight),
    "retrieval": ("The loss of one triplet.", _triplets),
    "gan": ("The losses by the discriminator's score.", _adversarial),
    "sgan": ("The losses by the discriminator's score.", _adversarial),
}
"""The caption and the drawing function of each technique with a picture."""
