"""Augmentation: order, seeds, the effect on further entries of a batch, and refusals."""

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.input.augment import Augment, Augmentation
from hookline.trainer.input.order import example_seeds, uniform
from hookline.trainer.objective import SOFT_TARGETS, hard_labels


class Push(Augment):
    def __init__(self, name="push", priority=50, **attributes):
        self.name, self.priority = name, priority
        for key, value in attributes.items():
            setattr(self, key, value)

    def __call__(self, batch, seeds):
        drawn = tf.reshape(uniform(seeds, "push"), [-1, *[1] * (batch["inputs"].shape.rank - 1)])
        return {**batch, "inputs": batch["inputs"] + drawn}


class Swap(Augment):
    name, mixes = "swap", True

    def __call__(self, batch, seeds):
        return {**batch, SOFT_TARGETS: tf.roll(batch[SOFT_TARGETS], -1, axis=0)}


def images(count=4, **entries):
    return {
        "inputs": tf.zeros([count, 3, 3, 1]),
        "targets": tf.range(count, dtype=tf.int64),
        "index": tf.range(count, dtype=tf.int64),
        **entries,
    }


def applied(*augments, batch=None, step=0):
    batch = images() if batch is None else batch
    rows = tf.range(len(batch["index"]), dtype=tf.int64)
    return Augmentation(augments, classes=5)(batch, example_seeds(0, tf.constant(step, tf.int64), rows))


def test_augmentations_are_sorted_and_draw_independently():
    given = [Push("b", 20), Push("a", 20), Push("z", 10), Push("c", 90)]
    assert [each.name for each in Augmentation(given, classes=5).augments] == ["z", "a", "b", "c"]
    first, second = (applied(Push(name))["inputs"].numpy() for name in ("first", "second"))
    assert not np.isclose(first, second).any()
    np.testing.assert_allclose(applied(Push("first"), Push("second"))["inputs"], first + second, rtol=1e-6)
    now, then = (applied(Push(), step=step)["inputs"].numpy()[:, 0, 0, 0] for step in (0, 1))
    assert len({*now, *then}) == 8  # steps and examples also draw independently


def test_further_images_are_augmented_with_separate_draws():
    batch = images(target_domain=tf.zeros([4, 3, 3, 1]), label=tf.range(4), mask=tf.zeros([4, 3, 3]))
    changed = applied(Push(), batch=batch)
    moved = changed["target_domain"].numpy()
    assert (moved > 0).all()
    assert not np.isclose(moved, changed["inputs"]).any()
    for name in ("label", "mask", "targets", "index"):
        np.testing.assert_array_equal(changed[name], batch[name])


def test_mixed_examples_have_soft_targets_instead_of_targets():
    changed = applied(Swap())
    assert "targets" not in changed
    np.testing.assert_array_equal(changed[SOFT_TARGETS], np.eye(5, dtype=np.float32)[[1, 2, 3, 0]])
    second = Swap()
    second.name = "again"  # mixes examples that are already mixed
    np.testing.assert_array_equal(applied(Swap(), second)[SOFT_TARGETS].numpy().argmax(1), [2, 3, 0, 1])
    with pytest.raises(UserError, match="hooks.center_loss needs one class for each example, but .* augment.mixup"):
        hard_labels(changed, "hooks.center_loss")
    np.testing.assert_array_equal(hard_labels(images(), "x"), [0, 1, 2, 3])


def test_entries_that_would_no_longer_fit_are_refused():
    for augment, entries, left in (
        (Push(moves=True), {"mask": tf.zeros([4, 3, 3])}, "mask"),
        (Push(moves=True, follows=("map",)), {"map": tf.zeros([4, 3, 3]), "box": tf.zeros([4, 4])}, "box"),
        (Swap(), {"map": tf.zeros([4, 3, 3])}, "map"),
        (Swap(), {"other": tf.zeros([4, 3, 3, 1])}, "other"),
        (Swap(), {"age": tf.zeros([4])}, "age"),
    ):
        with pytest.raises(UserError, match=f"augment.{augment.name}: it .*change {left}.*augment.{augment.name}=null"):
            Augmentation([augment], classes=5).check(images(**entries))
    augmentation = Augmentation([Push(moves=True, follows=("map",))], classes=5)
    augmentation.check(images(map=tf.zeros([4, 3, 3]), age=tf.zeros([4]), further=tf.zeros([4, 3, 3, 1])))
    Augmentation([Push()], classes=5).check(images(mask=tf.zeros([4, 3, 3])))
    several = {"map": tf.zeros([4, 3, 3, 1]), "label": tf.range(4)}
    assert applied(Push(), batch=images(targets=several))["targets"].keys() == several.keys()
    with pytest.raises(UserError, match="cannot change targets in the same way"):
        Augmentation([Push(moves=True)], classes=5).check(images(targets=several))
    with pytest.raises(UserError, match="the data has several"):
        Augmentation([Push()], classes=5).check({"inputs": several})
    Augmentation([Swap()], classes=5).check(images())
