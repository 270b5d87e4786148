"""Sharpness-aware minimization: take gradients slightly uphill, so that training converges to flat minima."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hookline.trainer.errors import check_number
from hookline.trainer.hook import Declaration, GraphHook, Tensors
from hookline.trainer.step.context import StepContext

SMALL = 1e-12  # added to the norm, so that zero gradients move nothing


class Sam(GraphHook):
    """Minimize the highest loss near the weights: climb along the gradient, and take the step's gradient there.

    Every step has two forward and backward passes, on the same batch with the same draws, such as dropout. The
    optimizer applies the gradients of the second pass to the original weights. Losses, metrics, and the moving
    statistics of batch norm come from the first pass.

    The climb uses the gradient of the whole batch, even with micro batches and replicas; in the paper each replica
    climbs on its own. Weights held by `prune` (with schedule=splicing: once the masks are final), `frozen_mask` or
    `freeze_layers` do not climb. The kernels of `bop` do climb. So do entries that `incremental_quantization` has
    quantized, unless `frozen_mask` with masks=hook freezes them; with `bnn_rounding` the latent weights climb. A layer
    that writes TensorFlow variables in its call writes them twice a step.

    Group: optimization

    Equation:
        e = radius * g / ||g||,  g = dL/dw at w, ||g|| over all weights of the network together
        the optimizer gets dL/dw at w + e

    Cost: A second forward and backward pass. Measured: 0.7 of the speed (recipe=baseline).

    Pitfalls:
        tests/hooks/test_sam.py: the gradient at w + e is applied at w; both passes have the same dropout.

    Reference: Foret et al. 2021, arXiv 2010.01412, equation 2 with p = 2, and algorithm 1.

    Example:
        python train.py recipe=baseline +hooks=sam hooks.sam.radius=0.1
    """

    priority = 50

    def __init__(self, *, radius: float = 0.05, network: str = "model") -> None:
        """Check the options.

        Args:
            radius: above 0, the paper's rho: how far to climb.
            network: name of the network.
        """
        self.radius = check_number("radius", radius, minimum=0.0, above_minimum=True)
        self.network = network

    def declare(self) -> Declaration:
        return Declaration()

    def gradient_point(self, latent: Tensors, context: StepContext) -> Tensors:
        gradients = {name: tf.cast(each, tf.float32) for name, each in context.gradients.items() if each is not None}
        scale = self.radius / (tf.linalg.global_norm(list(gradients.values())) + SMALL)
        moved = {name: latent[name] + tf.cast(scale * each, latent[name].dtype) for name, each in gradients.items()}
        return {**latent, **moved}

    def summary(self) -> dict[str, Any]:
        return {"radius": self.radius}
