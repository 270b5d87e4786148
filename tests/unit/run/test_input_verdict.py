"""The verdict on a run's input: measured where the time goes, and the remedy that follows."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from trainer.input.augment import Augment, Augmentation
from trainer.input.batches import TrainingBatches
from trainer.input.data import Split
from trainer.input.source import ArraySource
from trainer.run import input_verdict
from trainer.run.control import Best, Run
from trainer.run.input_verdict import advise, judge_input, part_shares, queue_seconds, usable_cores


def pause(tensor: tf.Tensor) -> tf.Tensor:
    def late(value):
        time.sleep(0.02)
        return value

    delayed = tf.numpy_function(late, [tensor], tensor.dtype)
    delayed.set_shape(tensor.shape)
    return delayed


class Slow(Augment):
    """Take long."""

    name = "slow"

    def __call__(self, batch, seeds):
        return {**batch, "inputs": pause(batch["inputs"])}


def batches(*, placement="device", slow_reading=False, augmented=False) -> TrainingBatches:
    def transform(rows):
        return {**rows, "inputs": pause(rows["inputs"])} if slow_reading else rows

    arrays = {"inputs": np.zeros((3000, 4), np.float32), "targets": np.zeros(3000, np.int64)}
    split = Split("train", ArraySource(arrays, transform), np.arange(3000, dtype=np.int64))
    augmentation = Augmentation([Slow()], classes=1) if augmented else None
    return TrainingBatches(split, batch_size=4, seed=0, placement=placement, augmentation=augmentation)


def run_of(tmp_path, training, waited, config=None) -> Run:
    best = Best("metric/accuracy", "max")
    values = {"training": training, "train_seconds": 10.0, "timed_steps": 100, "waited_seconds": waited}
    return Run(tmp_path, "toy", config or {}, {}, 4, 100, 10.0, "", best, **values)


def test_the_parts_of_a_batch_are_measured():
    assert part_shares(batches(slow_reading=True), 3)["reading"] > 0.8
    parts = part_shares(batches(augmented=True), 3)
    assert parts["augmentation"] > 0.6
    assert sum(parts.values()) == pytest.approx(1.0)


def test_a_run_that_waited_gets_its_parts_and_one_line_of_advice(tmp_path):
    found = judge_input(run_of(tmp_path, batches(augmented=True), 4.0), measure=True)
    assert (found["placement"], found["waiting_share"]) == ("device", 0.4)
    assert found["parts"]["augmentation"] > 0.6
    assert found["advice"].startswith("Most of a batch's time (")
    assert "goes into its augmentation" in found["advice"]
    assert "\n" not in found["advice"]


def test_nothing_is_measured_where_it_is_not_asked_for_or_nothing_was_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(input_verdict, "part_shares", lambda *_: pytest.fail("measured"))
    silent = {"parts": None, "advice": None}
    fast = judge_input(run_of(tmp_path, batches(), 0.4), measure=True)
    assert fast == {"placement": "device", "waiting_share": 0.04, **silent}
    run = run_of(tmp_path, batches(), 0.4)
    run.train_seconds = 1.0
    assert judge_input(run, measure=True) == {"placement": "device", "waiting_share": 0.4, **silent}
    failed = judge_input(run_of(tmp_path, batches(), 9.0), measure=False)
    assert failed == {"placement": "device", "waiting_share": 0.9, **silent}
    never = run_of(tmp_path, batches(placement="host"), 0.0)
    never.train_seconds = 0.0
    assert judge_input(never, measure=True) == {"placement": "host", "waiting_share": None, **silent}
    assert judge_input(run_of(tmp_path, None, 9.0), measure=True)["placement"] is None
    assert judge_input(run_of(tmp_path, batches(), 0.0), measure=True)["waiting_share"] == 0.0


@pytest.mark.parametrize(("queue", "helps"), [(1e-5, True), (0.0305, False), (0.05, False)])
def test_a_queue_is_advised_only_where_it_takes_a_share_off_the_step(tmp_path, monkeypatch, queue, helps):
    monkeypatch.setattr(input_verdict, "queue_seconds", lambda training, step: queue)
    monkeypatch.setattr(input_verdict, "usable_cores", lambda: 8)
    advice = judge_input(run_of(tmp_path, batches(), 4.0), measure=True)["advice"]  # of 100 ms, a step waits 40
    assert ("trainer.placement=host makes batches ahead" in advice) is helps
    assert advice.endswith("; at steps of 100.00 ms, trainer.placement=host would gain little or nothing.") is not helps


def test_no_queue_is_tried_where_there_is_one_or_no_core_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(input_verdict, "queue_seconds", lambda *_: pytest.fail("tried"))
    judge_input(run_of(tmp_path, batches(placement="host"), 4.0), measure=True)
    monkeypatch.setattr(input_verdict, "usable_cores", lambda: 1)
    judge_input(run_of(tmp_path, batches(), 4.0), measure=True)


def test_short_steps_are_not_told_to_wait_for_a_queue(tmp_path):
    run = run_of(tmp_path, batches(), 0.0)
    run.timed_steps, run.waited_seconds = 1_000_000, 4.0  # steps of 10 us wait 4: no queue is as fast
    assert "trainer.placement=host makes" not in judge_input(run, measure=True)["advice"]


def test_a_queue_is_measured_on_the_batches_that_it_would_make():
    training = batches(slow_reading=True)
    assert 0.2 * 0.02 / usable_cores() < queue_seconds(training, 3) < 0.2
    assert (training.placement, training.queue(3)) == ("device", None)  # nothing of it is left behind
    assert training.on_host().placement == "host"
    for one, other in zip(next(training.on_host().iterator(3)).values(), training.batch(3).values(), strict=True):
        np.testing.assert_array_equal(one, other)


READING, AUGMENTING = {"order": 0.1, "reading": 0.9}, {"order": 0.1, "reading": 0.1, "augmentation": 0.8}


@pytest.mark.parametrize(
    ("placement", "parts", "facts", "advice"),
    [
        ("device", READING, {"threads": 2}, "(90 %) goes into its reading; trainer.threads=2 leaves 6 of 8 cores idle"),
        ("device", READING, {"threads": 2, "step_seconds": 9e-4, "spared_seconds": -1.0}, "little or nothing"),
        (
            "device",
            READING,
            {"spared_seconds": 1.0},
            "(90 %) goes into its reading: trainer.placement=host makes batches",
        ),
        (
            "device",
            READING,
            {"spared_seconds": 0.9},
            "at steps of 10,000.00 ms, trainer.placement=host would gain little",
        ),
        ("device", AUGMENTING, {"spared_seconds": 0.9}, "leave out what costs most of augment.slow"),
        ("device", READING, {"cores": 1}, "with all of 1 cores in use: more cores, or a larger network"),
        (
            "device",
            AUGMENTING,
            {"cores": 1, "accelerated": True, "spared_seconds": 2.0},
            "(80 %) goes into its augmentation: trainer.placement",
        ),
        ("host", AUGMENTING, {}, "leave out what costs most of augment.slow, or use more cores."),
        ("host", READING, {"accelerated": True}, "trainer.placement=device holds the data (70.31 KiB)"),
        ("host", READING, {}, "with all of 8 cores in use"),
        ("host", AUGMENTING, {"accelerated": True}, "leave out what costs most of augment.slow"),
    ],
)
def test_the_advice_follows_from_what_was_found(placement, parts, facts, advice):
    training = batches(placement=placement, augmented="augmentation" in parts)
    given = {"cores": 8, "threads": None, "cache": None, "accelerated": False}
    given |= {"step_seconds": 10.0, "spared_seconds": None, **facts}
    assert advice in advise(training, parts, **given)


@pytest.mark.parametrize(("cache", "advice"), [("none", "data.cache keeps what is decoded"), (None, "decoded files")])
def test_a_source_of_files_is_told_to_keep_what_it_decodes(cache, advice):
    training = SimpleNamespace(
        placement="host", augmentation=None, split=SimpleNamespace(source=SimpleNamespace(host_only=True, bytes=10))
    )
    assert advice in advise(
        training, READING, step_seconds=1.0, spared_seconds=None, cores=4, threads=None, cache=cache, accelerated=True
    )


def test_the_cores_are_those_of_this_process(monkeypatch):
    assert usable_cores() >= 1
    monkeypatch.setattr(input_verdict.os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert usable_cores() == 2
    monkeypatch.delattr(input_verdict.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(input_verdict.os, "cpu_count", lambda: None)
    assert usable_cores() == 1
