"""Options of Bernoulli attention that are mappings: what is accepted and what is refused."""

from functools import partial

import numpy as np
import tensorflow as tf

from hookline.hooks.attention import options
from tests.support.refusals import assert_refused

KEEP_RATE = partial(options.parse, option="keep_rate", kind=options.KeepRate)
SUPERVISION = partial(options.parse, option="supervision", kind=options.Supervision)


def test_invalid_values_are_named_in_the_error():
    for parse, value, word in (
        (options.parse_branch, "big", "branch"),
        (options.parse_branch, {"filter": [3]}, "filter"),
        (options.parse_branch, {"filters": [3], "dilations": [1, 2]}, "branch.dilations"),
        (options.parse_branch, {"activation": "rellu"}, "branch.activation"),
        (options.parse_branch, {"initial_keep_rate": 1.0}, "branch.initial_keep_rate"),
        (KEEP_RATE, {"weight": 0.0}, "keep_rate.weight"),
        (SUPERVISION, "map", "supervision"),
        (SUPERVISION, {"epochs": 0}, "supervision.epochs"),
    ):
        assert_refused(word, parse, value)


def test_auto_keep_rate_targets_one_half():
    assert KEEP_RATE("auto") == options.KeepRate(0.5, 0.1)


def gradient(function, logits: np.ndarray) -> np.ndarray:
    given = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(given)
        value = function(given)
    return tape.gradient(value, given).numpy()


def test_keep_rate_penalty_gradient_does_not_vanish_on_collapsed_maps():
    for level in (-30.0, -8.0, 8.0, 30.0):
        logits = np.full((1, 3, 4, 1), level, np.float32)
        mean = 1.0 / (1.0 + np.exp(-level))
        pull = gradient(lambda given: options.keep_rate_penalty(given, target=0.3), logits)
        np.testing.assert_allclose(pull, (mean - 0.3) / 12, rtol=1e-4)
    assert np.isfinite(options.keep_rate_penalty(tf.constant([-500.0, 500.0], shape=[2, 1, 1, 1]), target=0.3)).all()


def test_map_from_the_batch_is_resized_by_area():
    maps = np.random.default_rng(2).uniform(size=(3, 8, 6)).astype(np.float32)
    expected = maps.reshape(3, 4, 2, 3, 2).mean(axis=(2, 4))[..., None]
    for given in (maps, maps[..., None]):
        np.testing.assert_allclose(options.given_map({"map": tf.constant(given)}, "map", (4, 3)), expected, rtol=1e-5)
    batch = {"inputs": tf.zeros([2, 4, 4, 1]), "map": tf.zeros([2, 4, 4, 3]), "targets": tf.zeros([2])}
    for key in ("maps", "map", "targets"):
        assert_refused(key, options.given_map, batch, key, (2, 2))
