"""The branch: its shape, its start, and branches of the user's own."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.attention.gate import branch_logits, make_branch
from hookline.hooks.attention.options import BranchOptions
from hookline.trainer.errors import UserError

MAPS = np.random.default_rng(0).normal(size=(2, 9, 7, 3)).astype(np.float32)


def test_attention_starts_at_the_initial_keep_rate_everywhere():
    for temperature in (0.5, 3.0):
        options = BranchOptions((4,), 3, (1,), initial_keep_rate=0.8)
        logits = make_branch(options, temperature=temperature, name="branch")(MAPS)
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


def test_a_branch_of_the_users_own_must_return_logits_for_each_position():
    layers = keras.layers
    own = keras.Sequential([layers.Conv2D(2, 5, padding="same"), layers.Conv2D(1, 1)])
    assert branch_logits(own, keras.Input((None, None, 3)), (None, None, None, 1)).shape == (None, None, None, 1)
    for layer in (layers.Conv2D(1, 3, name="own"), layers.Conv2D(2, 1, name="own"), layers.Conv3D(1, 1, name="own")):
        with pytest.raises(UserError, match="own"):
            branch_logits(layer, keras.Input((9, 7, 3)), (None, 9, 7, 1))
