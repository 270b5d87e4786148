"""Augmentation: its order, its seeds, what it does to further entries, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from trainer.errors import UserError
from trainer.input.augment import Augment, Augmentation
from trainer.input.draws import example_seeds, uniform
from trainer.objective import TARGET_SHARES, one_class_each


class Push(Augment):
    """Add a draw to each input."""

    def __init__(self, name="push", priority=50, **attributes):
        self.name, self.priority = name, priority
        for key, value in attributes.items():
            setattr(self, key, value)

    def __call__(self, batch, seeds):
        drawn = tf.reshape(uniform(seeds, "push"), [-1, *[1] * (batch["inputs"].shape.rank - 1)])
        return {**batch, "inputs": batch["inputs"] + drawn}


class Note(Augment):
    """Multiply by ten and add a number, so that the order shows."""

    def __init__(self, name, priority, number):
        self.name, self.priority, self.number = name, priority, number

    def __call__(self, batch, seeds):
        return {**batch, "inputs": batch["inputs"] * 10.0 + self.number}


class Swap(Augment):
    """Take the shares of the next example."""

    name, mixes = "swap", True

    def __call__(self, batch, seeds):
        return {**batch, TARGET_SHARES: tf.roll(batch[TARGET_SHARES], -1, axis=0)}


def images(count=4, **entries):
    return {
        "inputs": tf.zeros([count, 3, 3, 1]),
        "targets": tf.range(count, dtype=tf.int64),
        "index": tf.range(count, dtype=tf.int64),
        **entries,
    }


def seeds_of(count=4, step=0):
    return example_seeds(0, tf.constant(step, tf.int64), tf.range(count, dtype=tf.int64))


def applied(*augments, batch=None, step=0):
    batch = images() if batch is None else batch
    return Augmentation(augments, classes=5)(batch, seeds_of(len(batch["index"]), step))


def test_the_order_is_that_of_the_priorities_then_of_the_names():
    notes = [Note("b", 20, 3), Note("a", 20, 2), Note("z", 10, 1), Note("c", 90, 4)]
    assert [each.name for each in Augmentation(notes, classes=5).augments] == ["z", "a", "b", "c"]
    assert float(applied(*notes)["inputs"][0, 0, 0, 0]) == 1234.0


def test_two_of_one_kind_draw_apart():
    first, second = (applied(Push(name))["inputs"].numpy() for name in ("first", "second"))
    assert not np.isclose(first, second).any()
    np.testing.assert_allclose(applied(Push("first"), Push("second"))["inputs"], first + second, rtol=1e-6)


def test_steps_and_examples_draw_apart():
    now, then = (applied(Push(), step=step)["inputs"].numpy()[:, 0, 0, 0] for step in (0, 1))
    assert len({*now, *then}) == 8


def test_further_images_are_changed_by_draws_of_their_own():
    batch = images(target_domain=tf.zeros([4, 3, 3, 1]), label=tf.range(4), mask=tf.zeros([4, 3, 3]))
    changed = applied(Push(), batch=batch)
    moved = changed["target_domain"].numpy()
    assert (moved > 0).all()
    assert not np.isclose(moved, changed["inputs"]).any()
    for name in ("label", "mask", "targets", "index"):
        np.testing.assert_array_equal(changed[name], batch[name])


def test_mixed_examples_have_shares_in_place_of_targets():
    changed = applied(Swap())
    assert "targets" not in changed
    np.testing.assert_array_equal(changed[TARGET_SHARES], np.eye(5, dtype=np.float32)[[1, 2, 3, 0]])
    with pytest.raises(UserError, match="hooks.center_loss needs one class for each example, but .* augment.mixup"):
        one_class_each(changed, "hooks.center_loss")
    np.testing.assert_array_equal(one_class_each(images(), "x"), [0, 1, 2, 3])


def test_a_second_one_mixes_the_mixed():
    second = Swap()
    second.name = "again"
    np.testing.assert_array_equal(applied(Swap(), second)[TARGET_SHARES].numpy().argmax(1), [2, 3, 0, 1])


@pytest.mark.parametrize(
    ("augment", "entries", "deed"),
    [
        (Push(moves=True), {"mask": tf.zeros([4, 3, 3])}, "moves pixels, and would leave mask"),
        (Push(moves=True, follows=("map",)), {"map": tf.zeros([4, 3, 3]), "box": tf.zeros([4, 4])}, "leave box of"),
        (Swap(), {"map": tf.zeros([4, 3, 3])}, "mixes examples, and would leave map"),
        (Swap(), {"other": tf.zeros([4, 3, 3, 1])}, "would leave other"),
        (Swap(), {"age": tf.zeros([4])}, "would leave age"),
    ],
)
def test_entries_that_would_not_fit_any_more_are_refused(augment, entries, deed):
    message = f"augment.{augment.name}: it .*{deed}.*Expected data without, or augment.{augment.name}=null."
    with pytest.raises(UserError, match=message):
        Augmentation([augment], classes=5).check(images(**entries))


def test_entries_that_fit_are_let_through():
    augmentation = Augmentation([Push(moves=True, follows=("map",))], classes=5)
    augmentation.check(images(map=tf.zeros([4, 3, 3]), age=tf.zeros([4]), further=tf.zeros([4, 3, 3, 1])))
    Augmentation([Push()], classes=5).check(images(mask=tf.zeros([4, 3, 3])))
    Augmentation([Swap()], classes=5).check(images())


class Broken(Augment):
    """Do what the constructor is given."""

    name = "broken"

    def __init__(self, deed):
        self.deed = deed

    def __call__(self, batch, seeds):
        return self.deed(batch)


@pytest.mark.parametrize(
    ("deed", "message"),
    [
        (lambda batch: {"inputs": batch["inputs"]}, r"must keep the names. Changed: \['index', 'targets'\]"),
        (lambda batch: {**batch, "more": batch["inputs"]}, r"Changed: \['more'\]"),
        (lambda batch: {**batch, "inputs": batch["inputs"][:, :2]}, r"float32 \(4, 2, 3, 1\) for 'inputs', which was"),
        (lambda batch: {**batch, "inputs": tf.cast(batch["inputs"], tf.float64)}, "float64"),
    ],
)
def test_what_changes_names_shapes_or_dtypes_is_named(deed, message):
    with pytest.raises(ValueError, match=message) as caught:
        applied(Broken(deed))
    assert caught.value.__notes__ == ["in augment.broken"]


def test_an_error_of_the_user_begins_with_the_name():
    def refuse(batch):
        raise UserError("no.")

    with pytest.raises(UserError, match=r"^augment\.broken: no\.$"):
        applied(Broken(refuse))
