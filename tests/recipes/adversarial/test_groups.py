"""Groups: a stacked network computes exactly what separate ones with its weights compute."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.adversarial.groups import Group, forward_group
from hookline.recipes.models.gan_mlp import gan_mlp
from tests.support.adversarial import assign_slices

COUNT, BATCH = 3, 6


@pytest.fixture(params=["generator", "discriminator"])
def models(request):
    """A stacked network, separate ones with its weights, and inputs of both."""
    options = {"role": request.param, "latent_size": 4, "units": [8, 5]}
    stacked = gan_mlp((2,), stacked=COUNT, **options)
    rng = np.random.default_rng(0)
    for variable in stacked.variables:
        variable.assign(rng.normal(size=variable.shape))
    separate = [gan_mlp((2,), **options) for _ in range(COUNT)]
    assign_slices(stacked, separate)
    inputs = rng.normal(size=(COUNT, BATCH, stacked.input_shape[-1])).astype(np.float32)
    return stacked, separate, tf.constant(inputs)


def test_both_forms_give_the_same_outputs_and_gradients(models):
    stacked, separate, inputs = models
    named = {"all": stacked, **{f"one_{place}": model for place, model in enumerate(separate)}}
    groups = [Group(("all",), COUNT), Group(("one_0", "one_1", "one_2"), COUNT)]
    assert [group.stacked for group in groups] == [True, False]
    found = []
    for group in groups:
        with tf.GradientTape() as tape:
            outputs = forward_group(lambda name, values: named[name](values), group, inputs)
            loss = tf.reduce_sum(tf.square(outputs))
        variables = [v for name in group.names for v in named[name].trainable_variables]
        found.append((outputs.numpy(), [g.numpy() for g in tape.gradient(loss, variables)]))
    (outputs, gradients), (expected, parts) = found
    assert outputs.shape[:2] == (COUNT, BATCH)
    changed = stacked(tf.tensor_scatter_nd_update(inputs, [[1]], [inputs[1] + 1.0])).numpy()
    np.testing.assert_array_equal(changed[[0, 2]], stacked(inputs).numpy()[[0, 2]])  # each sees nothing of the others
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)
    layers = len(gradients)
    for place, gradient in enumerate(gradients):
        for network in range(COUNT):
            part = parts[network * layers + place]
            np.testing.assert_allclose(gradient[network].reshape(part.shape), part, rtol=1e-4, atol=1e-4)
