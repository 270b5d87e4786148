"""What a fused apply is made of: one kernel a variable, scalars once, and Keras' own update where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.optimizers import PAIRS, built, operations, state_of, traced

NET = [(784, 256), (256,), (256, 256), (256,), (256, 10), (10,)]
KERNELS = {
    "ResourceApplyGradientDescent": ("SGD", {}),
    "ResourceApplyKerasMomentum": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "ResourceApplyAdam": ("Adam", {}),
    "ResourceApplyRMSProp": ("RMSprop", {"momentum": 0.9}),
}
WITHOUT_KERNEL = [
    ("Adam", {"amsgrad": True}, "float32"),
    ("Adam", {"beta_2": 0.9999}, "float32"),
    ("AdamW", {"beta_1": 0.9999, "weight_decay": 0.1}, "float32"),
    ("RMSprop", {}, "float32"),
    ("RMSprop", {"momentum": 0.9, "centered": True}, "float32"),
    ("RMSprop", {"momentum": 0.9, "rho": 0.9999}, "float32"),
    ("SGD", {"momentum": 0.9}, "float16"),
    ("Adam", {}, "bfloat16"),
]


def applied(optimizer: Any, gradients: list[Any], values: list[np.ndarray], dtype: str = "float32") -> list[np.ndarray]:
    variables = built(optimizer, values, dtype)
    for _ in range(3):
        optimizer.apply(gradients, variables)
    return state_of(optimizer, variables)


def assert_same_bits(found: list[list[np.ndarray]]) -> None:
    for theirs, ours in zip(*found, strict=True):
        assert theirs.dtype == ours.dtype
        assert theirs.tobytes() == ours.tobytes()


@pytest.mark.parametrize(("name", "options", "dtype"), WITHOUT_KERNEL)
def test_without_a_kernel_the_update_is_that_of_keras_bit_for_bit(name: str, options: dict, dtype: str) -> None:
    value, gradient = np.random.default_rng(2).normal(size=(2, 5, 3))
    found = [applied(kind(0.1, **options), [tf.constant(gradient, dtype)], [value], dtype) for kind in PAIRS[name]]
    assert_same_bits(found)
    assert not any(each.type.startswith("ResourceApply") for each in operations(PAIRS[name][1](**options), NET, dtype))


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_slices_are_updated_by_keras_beside_the_kernel(name: str) -> None:
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2]))
    found = [
        applied(kind(0.1, **options), [slices, tf.constant([3.0])], [np.ones((3, 2)), np.ones(1)])
        for kind in PAIRS[name]
    ]
    assert_same_bits([[state[0]] for state in found])
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-5)
    assert found[1][1] < 1.0


def test_variables_that_are_excluded_from_weight_decay_do_not_decay() -> None:
    found = []
    for kind in PAIRS["AdamW"]:
        optimizer = kind(0.1, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["variable_1"])
        found.append(applied(optimizer, [tf.zeros(2), tf.zeros(2)], [np.ones(2), np.ones(2)]))
    assert_same_bits(found)
    assert (found[1][0] < 1.0).all()
    assert (found[1][1] == 1.0).all()


def test_a_rate_that_is_set_later_counts() -> None:
    optimizer = PAIRS["SGD"][1](0.5)
    variables = built(optimizer, [np.zeros(2)])
    apply = traced(optimizer, variables)
    apply(tf.ones(2))
    optimizer.learning_rate = 0.25
    apply(tf.ones(2))
    np.testing.assert_allclose(variables[0].numpy(), [-0.75, -0.75])


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_apply_is_one_kernel_a_variable_and_little_else(kernel: str) -> None:
    name, options = KERNELS[kernel]
    theirs, ours = (operations(kind(**options), NET) for kind in PAIRS[name])
    assert [each.type for each in ours].count(kernel) == len(NET)
    assert len(ours) < min(len(theirs) / 2, len(NET) + 17)
    assert len(operations(PAIRS[name][1](**options), NET * 2)) == len(ours) + len(NET)
