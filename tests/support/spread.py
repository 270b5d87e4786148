"""Random weights like the weights of a trained model."""

import numpy as np


def spread(model, seed=0):
    """Give a model random weights, none of them constant, with which its activations neither vanish nor explode."""
    generator = np.random.default_rng(seed)
    for variable in model.weights:
        if not np.issubdtype(np.dtype(variable.dtype), np.floating):
            continue
        shape = tuple(variable.shape)
        if variable.name in ("gamma", "moving_variance", "variance"):
            value = generator.uniform(0.5, 1.5, shape)
        elif len(shape) < 2:
            value = generator.normal(0.0, 0.1, shape)
        else:
            incoming = shape[0] * shape[1] if variable.name == "depthwise_kernel" else np.prod(shape[:-1])
            value = generator.normal(0.0, np.sqrt(2.0 / incoming), shape)
        variable.assign(value.astype(variable.dtype))
    return model
