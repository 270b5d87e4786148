"""The randomness guard: planted faults are found and named; correct augmentation passes."""

import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.monitors.randomness_guard import RandomnessGuard, find_faults
from hookline.trainer.input.augment import Augment, Augmentation
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import ArraySource, Split
from hookline.trainer.input.order import uniform
from hookline.trainer.objective import SOFT_TARGETS
from tests.support.refusals import assert_refused

STILL, ALIKE = "the same result at each of 4 steps", "makes the same random change to all examples of a batch"
UNSTEADY = "gives different 'inputs' for the same seeds"
GENERATOR = np.random.default_rng(0)


class Add(Augment):
    """Add what a function returns for the batch and the seeds."""

    def __init__(self, drawn, name="mine", **attributes):
        self.name, self.drawn = name, drawn
        for key, value in attributes.items():
            setattr(self, key, value)

    def __call__(self, batch, seeds):
        return {**batch, "inputs": batch["inputs"] + self.drawn(batch, seeds)}


class Mix(Augment):
    """Mix each example with the next one by a weight."""

    name, mixes = "mix", True

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, batch, seeds):
        own = self.weight(seeds)
        names = ("inputs", SOFT_TARGETS)
        return {**batch, **{name: own * batch[name] + (1.0 - own) * tf.roll(batch[name], 1, 0) for name in names}}


class RandomSource(ArraySource):
    """Return different inputs at each read."""

    def gather(self, indices):
        batch = super().gather(indices)
        return {**batch, "inputs": batch["inputs"] + tf.random.normal(tf.shape(batch["inputs"]))}


def good(batch, seeds):
    return uniform(seeds, "a", [1])


def batches(*augments, source=ArraySource, size=40, batch_size=16):
    inputs = np.random.default_rng(0).normal(size=(size, 3)).astype(np.float32)
    arrays = {"inputs": inputs, "targets": np.arange(size, dtype=np.int64) % 4}
    split = Split("train", source(arrays, lambda batch: batch), np.arange(size, dtype=np.int64))
    augmentation = Augmentation(augments, classes=4) if augments else None
    return TrainingBatches(split, batch_size=batch_size, seed=0, augmentation=augmentation)


def cached():
    kept = {}

    def draw(batch, seeds):
        with tf.init_scope():
            kept.setdefault("drawn", tf.constant(np.random.default_rng(1).normal(size=[40, 1]), tf.float32))
        return tf.gather(kept["drawn"], batch["index"])

    return draw


FAULTS = {
    "numpy": (lambda batch, seeds: GENERATOR.normal(size=[batch["inputs"].shape[0], 1]).astype(np.float32), STILL),
    "by row alone": (lambda batch, seeds: tf.cast(batch["index"], tf.float32)[:, None], STILL),
    "cached": (cached(), STILL),
    "one for all": (lambda batch, seeds: uniform(seeds, "a", [1])[:1], ALIKE),
    "stateful": (lambda batch, seeds: tf.random.normal([batch["inputs"].shape[0], 1]), UNSTEADY),
}


def test_augmentation_faults_are_found_and_named():
    for drawn, fault in FAULTS.values():
        (message,) = find_faults(batches(Add(drawn), Add(good, "well"), batch_size=8), 0)
        assert message.startswith("augment.mine ")
        assert fault in message


def test_random_source_and_constant_mixing_are_found():
    (message,) = find_faults(batches(Add(good), source=RandomSource), 0)
    assert message.startswith("Reading the same rows twice returns different 'inputs'")
    assert find_faults(batches(Mix(lambda seeds: uniform(seeds, "w", [1]))), 0) == []
    assert STILL in find_faults(batches(Mix(lambda seeds: 0.5)), 0)[0]


def test_correct_augmentation_passes():
    for batch_size, step in ((1, 0), (16, 7)):
        assert find_faults(batches(batch_size=batch_size), step) == []
        assert find_faults(batches(Add(good), batch_size=batch_size), step) == []
    but_half = lambda batch, seeds: good(batch, seeds) * tf.cast(batch["index"] % 2, tf.float32)[:, None]  # noqa: E731
    mirrored = lambda batch, seeds: tf.round(good(batch, seeds))  # noqa: E731
    assert find_faults(batches(Add(but_half)), 0) == []  # some examples never change
    assert find_faults(batches(Add(mirrored, probability=0.5)), 0) == []


@pytest.mark.parametrize(("probability", "judged"), [(0.1, False), (0.2, True), (0.5, True), (0.95, False)])
def test_augmentation_that_may_be_equal_by_chance_is_not_judged(probability, judged):
    still = Add(lambda batch, seeds: 0.0, probability=probability)
    assert bool(find_faults(batches(still), 0)) == judged
    assert bool(find_faults(batches(still, batch_size=7), 0)) == (judged and probability >= 0.5)
    assert find_faults(batches(still, batch_size=6), 0) == []


def test_fault_stops_the_run_or_gives_a_warning(make_run):
    run = make_run(training=batches(Add(FAULTS["one for all"][0]), batch_size=8))
    guard = RandomnessGuard()
    guard.name = "randomness_guard"
    assert_refused(f"augment.mine {ALIKE}.*on_fault=warn", guard.on_fit_begin, run)
    guard = RandomnessGuard(on_fault="warn")
    with pytest.warns(UserWarning, match=f"augment.mine {ALIKE}"):
        guard.on_fit_begin(run)
    assert ALIKE in guard.summary()["faults"][0]
    guard = RandomnessGuard()
    guard.on_fit_begin(make_run())  # a warning would be an error
    assert guard.summary() == {"faults": []}
