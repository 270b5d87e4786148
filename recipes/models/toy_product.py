"""The toy network (b + c) * (c + k), with its gradient derived by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError, check_choice
from hookline.trainer.ops.override_gradient import override_gradient

REGISTERED = "HooklineToyProduct"


def product(b: Any, c: Any, k: Any) -> Any:
    """Return a = d * e with d = b + c and e = c + k, for b [batch, n], c [n], k [n]; NumPy arrays or tensors."""
    return (b + c) * (c + k)


def product_gradients(upstream: tf.Tensor, inputs: Sequence[tf.Tensor], outputs: Any = None) -> list[tf.Tensor]:
    """Return dL/db, dL/dc and dL/dk by the chain rule with g = dL/da: e g, (e + d) g and d g, the latter two summed."""
    b, c, k = inputs
    d, e = tf.add(b, c), tf.add(c, k)
    return [e * upstream, tf.reduce_sum((e + d) * upstream, axis=0), tf.reduce_sum(d * upstream, axis=0)]


@tf.RegisterGradient(REGISTERED)
def _registered(operation: tf.Operation, upstream: tf.Tensor) -> list[tf.Tensor]:
    return product_gradients(upstream, list(operation.inputs))


def _by_override_map(b: tf.Tensor, c: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    with tf.compat.v1.get_default_graph().gradient_override_map({"PyFunc": REGISTERED}):
        result = tf.numpy_function(lambda *arrays: np.asarray(product(*arrays)), [b, c, k], b.dtype)
    return tf.ensure_shape(result, b.shape)


ROUTES: dict[str, Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "override_gradient": lambda b, c, k: override_gradient(product, product_gradients, [b, c, k], name="product"),
    "numpy": lambda b, c, k: override_gradient(
        product, product_gradients, [b, c, k], numpy_output=tf.TensorSpec(b.shape, b.dtype), name="product"
    ),
    "override_map": _by_override_map,
    "tensorflow": product,
}


@keras.saving.register_keras_serializable(package="hookline")
class ToyProduct(keras.layers.Layer):
    """Compute (b + c) * (c + k) from the input b and the weights c and k."""

    def __init__(self, route: str = "override_gradient", **options: Any) -> None:
        """Store a key of ROUTES, which defines how the gradient is computed."""
        super().__init__(**options)
        check_choice("route", route, ROUTES)
        self.route = route

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        start = keras.initializers.TruncatedNormal(stddev=0.1)
        self.c = self.add_weight((input_shape[-1],), initializer=start, name="c")
        self.k = self.add_weight((input_shape[-1],), initializer=start.clone(), name="k")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return ROUTES[self.route](inputs, tf.convert_to_tensor(self.c), tf.convert_to_tensor(self.k))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "route": self.route}


def toy_product(input_shape: Sequence[int], classes: int, *, route: str = "override_gradient") -> keras.Model:
    """Return a network of one elementwise layer, with logits (b + c) * (c + k)."""
    if tuple(input_shape) != (classes,):
        raise UserError(f"toy_product got inputs {tuple(input_shape)}. Expected {classes} numbers, as data=toy_points.")
    inputs = keras.Input((classes,), name="b")
    return keras.Model(inputs, ToyProduct(route, name="product")(inputs), name="toy_product")
