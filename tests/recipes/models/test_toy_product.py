"""The toy network: its gradient is that of the chain rule on every route, and nothing tells the routes apart."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.models.toy_product import ROUTES, product, product_gradients, toy_product
from tests.support.refusals import assert_refused

B = np.array([[1.0, 2.0], [-0.5, 0.25], [2.0, -1.0]], np.float32)
C, K = np.array([0.06, -0.03], np.float32), np.array([-0.08, 0.11], np.float32)
LABELS = np.array([1, 1, 0])


def chain_rule() -> list[np.ndarray]:
    d, e = B + C, C + K
    exponentials = np.exp(d * e)
    to_a = exponentials / exponentials.sum(axis=1, keepdims=True) - np.eye(2)[LABELS]
    return [e * to_a, ((e + d) * to_a).sum(axis=0), (d * to_a).sum(axis=0)]


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_has_the_gradients_of_the_chain_rule(route: str) -> None:
    def traced(*inputs: tf.Tensor) -> list[tf.Tensor]:
        logits = ROUTES[route](*inputs)
        assert logits.shape == B.shape
        return tf.gradients(tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, logits), list(inputs))

    found = tf.function(traced, autograph=False)(*map(tf.constant, (B, C, K)))
    for gradient, expected in zip(found, chain_rule(), strict=True):
        np.testing.assert_allclose(gradient, expected, atol=1e-6, rtol=0)


def test_the_model_has_four_weights_loads_again_and_refuses_others() -> None:
    np.testing.assert_allclose(product(B, C, K), (B + C) * (C + K))
    found = product_gradients(tf.ones([3, 2]), list(map(tf.constant, (B, C, K))))
    np.testing.assert_allclose(found[2], (B + C).sum(axis=0), rtol=1e-6)
    model = toy_product((2,), 2, route="numpy")
    model.set_weights([C, K])
    again = keras.Model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    assert model.count_params() == 4
    assert again.get_layer("product").route == "numpy"
    np.testing.assert_allclose(again(B), product(B, C, K), rtol=1e-6)
    assert_refused("data=toy_points", toy_product, (8, 8, 1), 10)
    assert_refused("'numpy'", toy_product, (2,), 2, route="nunpy")
