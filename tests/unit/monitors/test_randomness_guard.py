"""The randomness guard: each fault is planted, found and named; what is right is let through."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import tensorflow as tf

from hooks.monitors.randomness_guard import RandomnessGuard, find_faults
from trainer.errors import UserError
from trainer.input.augment import Augment, Augmentation
from trainer.input.batches import TrainingBatches
from trainer.input.data import Split
from trainer.input.draws import uniform
from trainer.input.source import ArraySource
from trainer.objective import TARGET_SHARES

STILL = "gives the same at each of 4 steps: it draws once and for all, or a cache keeps what it drew."
ALIKE = "does the same to all examples of a batch."
UNSTEADY = "gives other 'inputs' for the same seeds: two runs of one seed would differ."


class Add(Augment):
    """Add what a function makes of the batch and the seeds."""

    def __init__(self, drawn, name="mine", **attributes):
        self.name, self.drawn = name, drawn
        for key, value in attributes.items():
            setattr(self, key, value)

    def __call__(self, batch, seeds):
        return {**batch, "inputs": batch["inputs"] + self.drawn(batch, seeds)}


class Mix(Augment):
    """Mix with the next example by a weight."""

    name, mixes = "mix", True

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, batch, seeds):
        own = self.weight(seeds)
        names = ("inputs", TARGET_SHARES)
        return {**batch, **{name: own * batch[name] + (1.0 - own) * tf.roll(batch[name], 1, 0) for name in names}}


def good(batch, seeds):
    return uniform(seeds, "a", [1])


GENERATOR = np.random.default_rng(0)


def numpy_draw(batch, seeds):
    return GENERATOR.normal(size=[batch["inputs"].shape[0], 1]).astype(np.float32)


def stateful_draw(batch, seeds):
    return tf.random.normal([batch["inputs"].shape[0], 1])


def one_for_all(batch, seeds):
    return uniform(seeds, "a", [1])[:1]


def by_row_alone(batch, seeds):
    return tf.cast(batch["index"], tf.float32)[:, None]


class RandomSource(ArraySource):
    """Give other inputs at each reading."""

    def gather(self, indices):
        batch = super().gather(indices)
        return {**batch, "inputs": batch["inputs"] + tf.random.normal(tf.shape(batch["inputs"]))}


def batches(*augments, source=ArraySource, size=40, batch_size=16, seed=0):
    arrays = {
        "inputs": np.random.default_rng(0).normal(size=(size, 3)).astype(np.float32),
        "targets": np.arange(size, dtype=np.int64) % 4,
    }
    split = Split("train", source(arrays, lambda batch: batch), np.arange(size, dtype=np.int64))
    augmentation = Augmentation(augments, classes=4) if augments else None
    return TrainingBatches(split, batch_size=batch_size, seed=seed, augmentation=augmentation)


@pytest.mark.parametrize(
    ("drawn", "fault"),
    [
        (numpy_draw, STILL),  # in the graph it is a constant; eagerly it differs, too, but this says more
        (lambda batch, seeds: 1.0, STILL),
        (by_row_alone, STILL),
        (one_for_all, ALIKE),
        (stateful_draw, UNSTEADY),
    ],
)
def test_a_fault_is_found_and_named(drawn, fault):
    (message,) = find_faults(batches(Add(drawn), Add(good, "well")), 0)
    assert message == (
        f"augment.mine {fault} Expected draws of its own for each example, from its seeds alone: see "
        "trainer/input/draws.py."
    )


def test_a_cache_behind_a_random_change_is_found():
    kept = {}

    def cached(batch, seeds):
        if "drawn" not in kept:
            with tf.init_scope():
                kept["drawn"] = tf.constant(np.random.default_rng(1).normal(size=[40, 1]), tf.float32)
        return tf.gather(kept["drawn"], batch["index"])

    assert STILL in find_faults(batches(Add(cached)), 0)[0]


def test_a_source_that_draws_by_itself_is_found():
    (message,) = find_faults(batches(Add(good), source=RandomSource), 0)
    assert message.startswith("The data gives 'inputs' of the same rows differently at each reading: no run can be")


def test_a_fault_of_whole_batches_alone_is_found():
    calls = itertools.count()

    def beyond_sixteen(batch, seeds):
        return uniform(seeds, "a", [1]) + (float(next(calls)) if batch["inputs"].shape[0] > 16 else 0.0)

    (message,) = find_faults(batches(Add(beyond_sixteen), batch_size=20), 0)
    assert message.startswith("Two runs of one seed would differ in 'inputs' of a batch.")


def test_all_faults_are_named():
    found = find_faults(batches(Add(one_for_all, "b"), Add(stateful_draw, "a"), Add(numpy_draw, "c")), 0)
    assert [message.split()[0] for message in found] == ["augment.a", "augment.b", "augment.c"]


def test_mixing_is_judged_by_its_steps():
    assert find_faults(batches(Mix(lambda seeds: uniform(seeds, "w", [1]))), 0) == []
    assert STILL in find_faults(batches(Mix(lambda seeds: 0.5)), 0)[0]


@pytest.mark.parametrize("batch_size", [1, 3, 16])
@pytest.mark.parametrize("step", [0, 7])
def test_what_is_right_is_let_through(batch_size, step):
    assert find_faults(batches(batch_size=batch_size), step) == []
    assert find_faults(batches(Add(good), batch_size=batch_size), step) == []


@pytest.mark.parametrize(
    ("probability", "judged"), [(0.1, False), (0.2, True), (0.5, True), (0.95, False), (1.0, True)]
)
def test_what_may_come_out_alike_by_chance_is_not_judged(probability, judged):
    still = Add(lambda batch, seeds: 0.0, probability=probability)
    assert bool(find_faults(batches(still), 0)) == judged
    assert bool(find_faults(batches(still, batch_size=7), 0)) == (judged and probability >= 0.5)
    assert find_faults(batches(still, batch_size=6), 0) == []


def test_a_coin_for_each_image_is_no_fault():
    def mirrored(batch, seeds):
        return tf.where(uniform(seeds, "a", [1]) < 0.5, 0.0, 1.0)

    for seed in range(20):
        assert find_faults(batches(Add(mirrored, probability=0.5), seed=seed), 0) == []


def test_an_image_that_looks_the_same_after_each_change_does_not_hide_the_others():
    def but_half(batch, seeds):
        return uniform(seeds, "a", [1]) * tf.cast(batch["index"] % 2, tf.float32)[:, None]

    assert find_faults(batches(Add(but_half)), 0) == []


def test_a_fault_ends_the_run_or_is_shown(make_run):
    run = make_run(training=batches(Add(one_for_all)))
    guard = RandomnessGuard()
    guard.name = "randomness_guard"
    with pytest.raises(UserError, match=f"augment.mine {ALIKE}.*hooks.randomness_guard.on_fault=warn goes on all"):
        guard.on_fit_begin(run)
    guard = RandomnessGuard(on_fault="warn")
    with pytest.warns(UserWarning, match=f"augment.mine {ALIKE}"):
        guard.on_fit_begin(run)
    assert ALIKE in guard.summary()["faults"][0]


def test_without_a_fault_it_says_nothing(make_run):
    guard = RandomnessGuard()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard.on_fit_begin(make_run(training=batches(Add(good))))
        RandomnessGuard().on_fit_begin(make_run())
    assert guard.summary() == {"faults": []}


def test_an_unknown_deed_is_one_line():
    with pytest.raises(UserError, match="Unknown on_fault 'stopp'. Did you mean 'stop'"):
        RandomnessGuard(on_fault="stopp")
