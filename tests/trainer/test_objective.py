"""Networks and objectives fit together; thumbnails are small."""

import numpy as np
import tensorflow as tf

from hookline.trainer.objective import thumbnails
from hookline.trainer.step.trainer import Trainer
from tests.support.refusals import assert_refused
from tests.support.toy import ToyObjective, toy_network

REFUSED = [
    ({"fixed": True}, "'second' is fixed"),
    ({"untrained": True}, "No objective changes the network 'second'"),
    ({"network": "first"}, "named 'first'"),
    ({"objective": "one"}, "objectives are named 'one'"),
    ({"model": True}, "'first' and 'second' share the variable"),
    ({"optimizer": True}, "'first' and 'second' share one optimizer"),
    ({"changes": ("third",)}, "'third'"),
    ({"changes": ("first", "second")}, "'one' and 'two' change the network 'first'"),
]


def test_mismatched_networks_and_objectives_are_refused():
    for change, match in REFUSED:
        first, second = toy_network("first"), toy_network(change.get("network", "second"))
        second.fixed = "fixed" in change
        second.model = first.model if "model" in change else second.model
        second.optimizer = first.optimizer if "optimizer" in change else second.optimizer
        objectives = [ToyObjective("first", "one"), ToyObjective("second", change.get("objective", "two"))]
        objectives[1].trains = change.get("changes", objectives[1].trains)
        assert_refused(match, Trainer, [first, second], objectives[: 1 if "untrained" in change else 2], [], seed=0)
    first, second = toy_network("first"), toy_network("second")
    first.shared = True
    objectives = [ToyObjective("first", "one"), ToyObjective("second", "two")]
    objectives[1].trains = ("first", "second")
    Trainer([first, second], objectives, [], seed=0)
    objectives[1].updates = 0
    assert_refused("updates=0", Trainer, [first, second], objectives, [], seed=0)


def test_thumbnails_fit_into_32_pixels_and_keep_proportions():
    for shape, expected in (((32, 20, 3), (32, 20, 3)), ((64, 32, 3), (32, 16, 3)), ((10, 1000, 1), (1, 32, 1))):
        assert thumbnails(tf.zeros([2, *shape])).shape == (2, *expected)


def test_thumbnail_pixels_are_area_means_and_small_images_are_unchanged():
    board = np.indices((64, 64)).sum(axis=0) % 2
    images = np.stack([board, np.zeros((64, 64))])[..., np.newaxis].astype(np.uint8)
    small = thumbnails(tf.constant(images)).numpy()
    assert small.dtype == np.float32
    np.testing.assert_allclose(small[0], 0.5)
    np.testing.assert_allclose(small[1], 0.0)
    np.testing.assert_array_equal(thumbnails(tf.constant(images[:, :8, :8])), images[:, :8, :8])
