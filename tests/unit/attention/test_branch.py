"""The branch: its shape, its start, and branches of the user's own."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.attention.branch import branch_logits, make_branch
from hooks.attention.options import BranchOptions
from trainer.errors import UserError

MAPS = np.random.default_rng(0).normal(size=(2, 9, 7, 3)).astype(np.float32)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_attention_starts_at_the_initial_keep_rate_everywhere(temperature: float):
    branch = make_branch(BranchOptions((4,), 3, (1,), initial_keep_rate=0.8), temperature=temperature, name="branch")
    logits = branch(MAPS)
    assert logits.shape == (2, 9, 7, 1)
    np.testing.assert_allclose(tf.sigmoid(logits / temperature), 0.8, rtol=1e-5)


def test_the_branch_is_convolutional_and_sees_as_far_as_its_dilations():
    branch = make_branch(BranchOptions((4, 4, 4), 3, (1, 2, 4), "linear"), temperature=1.0, name="branch")
    branch.build((None, None, None, 3))
    branch.layers[-1].kernel.assign(np.ones((1, 1, 4, 1)))
    one = np.zeros((1, 31, 31, 3), np.float32)
    one[0, 15, 15] = 1.0
    rows, columns = np.nonzero((branch(one) - branch(np.zeros_like(one))).numpy()[0, ..., 0])
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (8, 22, 8, 22)
    assert [layer.activation.__name__ for layer in branch.layers] == ["linear"] * 4


def test_no_filters_leave_the_last_convolution_alone():
    branch = make_branch(BranchOptions((), 3, ()), temperature=1.0, name="branch")
    assert branch(MAPS).shape == (2, 9, 7, 1)
    assert [layer.name for layer in branch.layers] == ["branch_logits"]


def test_every_variable_but_the_last_kernel_gets_a_gradient_at_the_second_step():
    branch = make_branch(BranchOptions((4, 4), 3, (1, 2)), temperature=1.0, name="branch")
    target = np.random.default_rng(1).normal(size=(2, 9, 7, 1)).astype(np.float32)
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((branch(MAPS) - target) ** 2)
        gradients = tape.gradient(loss, [variable.value for variable in branch.trainable_variables])
        for variable, gradient in zip(branch.trainable_variables, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
    assert all(np.abs(gradient).max() > 0.0 for gradient in gradients)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            keras.layers.Conv2D(1, 3, name="own"),
            r"'own' returns \[batch, 7, 5, 1\]. Expected logits \[batch, 9, 7, 1\]",
        ),
        (keras.layers.Conv2D(2, 1, name="own"), r"'own' returns \[batch, 9, 7, 2\]. Expected logits"),
        (keras.layers.GlobalAveragePooling2D(name="own"), r"'own' returns \[batch, 3\]"),
        (keras.layers.Conv3D(1, 1, name="own"), r"'own' does not take a map of shape \[batch, 9, 7, 3\]: "),
    ],
)
def test_a_branch_of_the_users_own_must_return_logits_for_each_position(layer, message: str):
    with pytest.raises(UserError, match=message):
        branch_logits(layer, keras.Input((9, 7, 3)), (None, 9, 7, 1))


def test_a_fitting_branch_of_the_users_own_is_taken_at_any_size():
    own = keras.Sequential([keras.layers.Conv2D(2, 5, padding="same"), keras.layers.Conv2D(1, 1)])
    assert branch_logits(own, keras.Input((None, None, 3)), (None, None, None, 1)).shape == (None, None, None, 1)
