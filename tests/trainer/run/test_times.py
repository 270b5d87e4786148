"""The verdict on a run's input: where the time goes, and the advice that follows."""

import time

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.input.augment import Augment, Augmentation
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import ArraySource, Split
from hookline.trainer.run import times as module
from hookline.trainer.run.times import Times, advise, judge_input, part_shares
from tests.support.runs import seen_run


def pause(tensor):
    def late(value):
        time.sleep(0.02)
        return value

    return tf.ensure_shape(tf.numpy_function(late, [tensor], tensor.dtype), tensor.shape)


class Slow(Augment):
    name = "slow"

    def __call__(self, batch, seeds):
        return {**batch, "inputs": pause(batch["inputs"])}


def batches(*, placement="device", slow_reading=False, augmented=False):
    def transform(rows):
        return {**rows, "inputs": pause(rows["inputs"])} if slow_reading else rows

    arrays = {"inputs": np.zeros((3000, 4), np.float32), "targets": np.zeros(3000, np.int64)}
    split = Split("train", ArraySource(arrays, transform), np.arange(3000, dtype=np.int64))
    augmentation = Augmentation([Slow()], classes=1) if augmented else None
    return TrainingBatches(split, batch_size=4, seed=0, placement=placement, augmentation=augmentation)


def test_run_that_waited_for_input_gets_shares_and_advice(tmp_path):
    assert part_shares(batches(slow_reading=True), 3)["reading"] > 0.8
    times = Times(train_seconds=10.0, timed_steps=100, waited_seconds=4.0)
    found = judge_input(seen_run(tmp_path, training=batches(augmented=True), times=times), measure=True)
    assert (found["placement"], found["waiting_share"]) == ("device", 0.4)
    assert found["parts"]["augmentation"] > 0.6
    assert sum(found["parts"].values()) == pytest.approx(1.0, abs=1e-3)
    assert "goes into its augmentation" in found["advice"]


READING, AUGMENTING = {"order": 0.1, "reading": 0.9}, {"order": 0.1, "reading": 0.1, "augmentation": 0.8}
ADVICE = [
    ("device", READING, {"threads": 2}, "trainer.threads=2 leaves 6 of 8 cores idle"),
    ("device", READING, {"threads": 2, "step_seconds": 9e-4}, "(90 %) goes into its reading; trainer.placement=host"),
    ("device", AUGMENTING, {"cores": 1}, "leave out what costs most of augment.slow"),
    ("device", READING, {"cores": 1}, "all of 1 cores are in use"),
    ("host", READING, {"devices": ["GPU:0"]}, "trainer.placement=device holds the data (70.31 KiB)"),
    ("host", AUGMENTING, {"devices": ["GPU:0"]}, "leave out what costs most of augment.slow"),
]


def test_advice_follows_from_placement_parts_and_devices(tmp_path, monkeypatch):
    for placement, parts, facts, advice in ADVICE:
        monkeypatch.setattr(module, "usable_cores", lambda facts=facts: facts.get("cores", 8))
        monkeypatch.setattr("tensorflow.config.list_logical_devices", lambda _, facts=facts: facts.get("devices", []))
        training = batches(placement=placement, augmented="augmentation" in parts)
        times = Times(train_seconds=facts.get("step_seconds", 10.0), timed_steps=1)
        config = {"trainer": {"threads": facts.get("threads")}}
        assert advice in advise(seen_run(tmp_path, training=training, times=times, config=config), parts)
