"""What a fused apply is made of: one kernel a variable, scalars once, and Keras' own update where there is none."""

from __future__ import annotations

from collections import Counter
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from recipes.optimizers.fused_update import kernel_rounds_well
from tests.support.optimizers import PAIRS, built, operations, state_of, traced

NET = [(784, 256), (256,), (256, 256), (256,), (256, 10), (10,)]
KERNELS = {
    "ResourceApplyGradientDescent": ("SGD", {}),
    "ResourceApplyKerasMomentum": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "ResourceApplyAdam": ("Adam", {}),
    "ResourceApplyRMSProp": ("RMSprop", {"momentum": 0.9}),
}
MOST_BESIDE_KERNELS = 16  # the step count and its cast, powers, the rate, constants: for all variables together
WITHOUT_KERNEL = [
    ("Adam", {"amsgrad": True}),
    ("Adam", {"beta_2": 0.9999}),
    ("AdamW", {"beta_1": 0.9999, "weight_decay": 0.1}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("RMSprop", {"momentum": 0.9, "rho": 0.9999}),
]


def kinds(found: list[tf.Operation]) -> Counter:
    return Counter(each.type for each in found)


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_apply_is_one_kernel_a_variable_and_little_else(kernel: str) -> None:
    name, options = KERNELS[kernel]
    theirs, ours = (operations(kind(**options), NET) for kind in PAIRS[name])
    assert kinds(ours)[kernel] == len(NET)
    assert len(ours) <= len(NET) + MOST_BESIDE_KERNELS
    assert len(ours) < len(theirs) / 2
    assert len(operations(PAIRS[name][1](**options), NET * 2)) == len(ours) + len(NET)


def test_adam_makes_a_tenth_of_the_nodes_of_keras() -> None:
    theirs, ours = (operations(kind(), NET) for kind in PAIRS["Adam"])
    assert (len(theirs), len(ours)) == (228, 22)  # as the docstring of FusedUpdate says


def test_weight_decay_reads_the_schedule_once() -> None:
    rates = [keras.optimizers.schedules.CosineDecay(0.1, 100) for _ in PAIRS["AdamW"]]
    theirs, ours = (kinds(operations(kind(rate), NET)) for kind, rate in zip(PAIRS["AdamW"], rates, strict=True))
    assert (theirs["Cos"], ours["Cos"]) == (1 + len(NET), 1)
    assert ours["AssignSubVariableOp"] == ours["ResourceApplyAdam"] == len(NET)
    assert ours["Pow"] == 2


def applied(optimizer: Any, gradients: list[Any], values: list[np.ndarray], dtype: str = "float32") -> list[np.ndarray]:
    variables = built(optimizer, values, dtype)
    for _ in range(3):
        optimizer.apply(gradients, variables)
    return state_of(optimizer, variables)


def assert_same_bits(found: list[list[np.ndarray]]) -> None:
    for theirs, ours in zip(*found, strict=True):
        assert theirs.dtype == ours.dtype
        assert theirs.tobytes() == ours.tobytes()


@pytest.mark.parametrize(("name", "options"), WITHOUT_KERNEL)
def test_without_a_kernel_the_update_is_that_of_keras_bit_for_bit(name: str, options: dict[str, Any]) -> None:
    generator = np.random.default_rng(2)
    value, gradient = generator.normal(size=(2, 5, 3)).astype(np.float32)
    assert_same_bits([applied(kind(0.1, **options), [tf.constant(gradient)], [value]) for kind in PAIRS[name]])
    assert not any(each.type.startswith("ResourceApply") for each in operations(PAIRS[name][1](**options), NET))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", PAIRS)
def test_other_dtypes_are_updated_by_keras(name: str, dtype: str) -> None:
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {"weight_decay": 0.1}
    gradient = tf.constant([1.0, -2.0], dtype)
    assert_same_bits([applied(kind(0.1, **options), [gradient], [np.ones(2)], dtype) for kind in PAIRS[name]])
    assert not any(each.type.startswith("ResourceApply") for each in operations(PAIRS[name][1](**options), NET, dtype))


@pytest.mark.parametrize("name", PAIRS)
def test_slices_are_updated_by_keras_beside_a_dense_variable_by_the_kernel(name: str) -> None:
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2]))
    found = [
        applied(kind(0.1, **options), [slices, tf.constant([3.0])], [np.ones((3, 2)), np.ones(1)])
        for kind in PAIRS[name]
    ]
    assert_same_bits([[state[0]] for state in found])
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-5)
    assert found[1][1] < 1.0


def test_a_gradient_of_half_precision_reaches_the_kernel_in_full() -> None:
    found = [applied(kind(0.1), [tf.constant([0.5, 2.0], tf.float16)], [np.ones(2)]) for kind in PAIRS["SGD"]]
    assert_same_bits(found)


def test_variables_that_are_excluded_from_weight_decay_do_not_decay() -> None:
    found = []
    for kind in PAIRS["AdamW"]:
        optimizer = kind(0.1, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["variable_1"])
        found.append(applied(optimizer, [tf.zeros(2), tf.zeros(2)], [np.ones(2), np.ones(2)]))
    assert_same_bits(found)
    assert (found[1][0] < 1.0).all()
    assert (found[1][1] == 1.0).all()


@pytest.mark.parametrize("name", PAIRS)
def test_an_update_step_by_itself_takes_a_learning_rate_as_in_keras(name: str) -> None:
    found = []
    for kind in PAIRS[name]:
        optimizer = kind(0.5, weight_decay=0.0)
        variables = built(optimizer, [np.ones(3)])
        optimizer.update_step(tf.constant([1.0, 2.0, -1.0]), variables[0].value, tf.constant(0.1))
        found.append(state_of(optimizer, variables))
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5)
    assert (found[1][0] != 1.0).all()


@pytest.mark.parametrize("name", PAIRS)
def test_replicas_are_summed_and_written_as_in_keras(name: str) -> None:
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {"weight_decay": 0.1}
    found = []
    for kind in PAIRS[name]:
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
        with strategy.scope():
            optimizer = kind(0.1, **options)
            variables = built(optimizer, [np.ones(3)])
        step = tf.function(
            lambda o=optimizer, v=variables: o.apply([tf.constant([1.0, 2.0, -1.0])], v), autograph=False
        )
        strategy.run(step)
        strategy.run(step)
        found.append(state_of(optimizer, variables))
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5)


def test_a_rate_that_float32_holds_badly_has_no_kernel() -> None:
    assert kernel_rounds_well(0.0, 0.9, 0.999)
    assert kernel_rounds_well(0)
    for rate in (0.9991, 0.9999, 1.0, tf.constant(0.9), lambda: 0.9):
        assert not kernel_rounds_well(0.9, rate)
        assert not kernel_rounds_well(rate)
    rates = np.linspace(0.0, 0.999, 1000)
    kernel = (np.float32(1) - rates.astype(np.float32)).astype(np.float64)
    assert np.abs(kernel / (1 - rates) - 1).max() <= 2**-25 / (1 - 0.999)


def test_a_rate_that_is_set_later_counts() -> None:
    optimizer = PAIRS["SGD"][1](0.5)
    variables = built(optimizer, [np.zeros(2)])
    apply = traced(optimizer, variables)
    apply(tf.ones(2))
    optimizer.learning_rate = 0.25
    apply(tf.ones(2))
    np.testing.assert_allclose(variables[0].numpy(), [-0.75, -0.75])
