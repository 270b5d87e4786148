"""The toy network: its gradient is that of the chain rule on every route, and nothing tells the routes apart."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from recipes.models.toy_product import ROUTES, product, product_gradients, toy_product
from tests.support.command import run_small
from trainer.errors import UserError

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


def test_the_pure_functions_work_on_arrays_and_tensors() -> None:
    np.testing.assert_allclose(product(B, C, K), (B + C) * (C + K))
    found = product_gradients(tf.ones([3, 2]), list(map(tf.constant, (B, C, K))))
    np.testing.assert_allclose(found[2], (B + C).sum(axis=0), rtol=1e-6)


def test_the_model_has_four_weights_and_loads_again() -> None:
    model = toy_product((2,), 2, route="numpy")
    model.set_weights([C, K])
    again = keras.Model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    assert model.count_params() == 4
    assert again.get_layer("product").route == "numpy"
    np.testing.assert_allclose(again(B), product(B, C, K), rtol=1e-6)


def test_wrong_shapes_and_routes_are_one_line() -> None:
    with pytest.raises(UserError, match=r"toy_product got inputs of shape \(8, 8, 1\) for 10 classes.*data=toy_points"):
        toy_product((8, 8, 1), 10)
    with pytest.raises(UserError, match="Unknown route 'nunpy'. Did you mean 'numpy'"):
        toy_product((2,), 2, route="nunpy")


def test_runs_of_every_route_end_alike(tmp_path: Path) -> None:
    finals = []
    for route in ROUTES:
        finals.append(run_small("custom_gradient", f"model.route={route}", run_dir=tmp_path / route)["final"])
    for final in finals[1:]:
        for name, value in finals[0].items():
            if not name.startswith("time/"):
                assert final[name] == pytest.approx(value, abs=1e-5), name


def test_xla_stays_off_beside_numpy_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.run.assembly.use_xla", lambda mode, hooks, replicas: True)  # as on a GPU
    with pytest.warns(UserWarning, match="XLA stays off: the step calls Python at .*numpy_forward"):
        run_small(
            "custom_gradient", "model.route=numpy", "trainer.compile=auto", "trainer.epochs=1", run_dir=tmp_path / "a"
        )
    with pytest.raises(UserError, match="trainer.compile=on received, but XLA cannot compile the step"):
        run_small("custom_gradient", "model.route=override_map", "trainer.compile=on", run_dir=tmp_path / "b")
    assert not (tmp_path / "b").exists()
