"""When a run pauses, what hooks request of it, which evaluation is best, and the signals that end it."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.trainer.deferred import termination_interrupts
from hookline.trainer.errors import Interrupted
from hookline.trainer.run.control import (
    CHUNK_SECONDS,
    Best,
    Cadence,
    Interruption,
    Report,
    choose_monitor,
    own_values,
)
from hookline.trainer.run.results import mode_of
from tests.support.refusals import assert_refused
from tests.support.toy import StatelessHook, ToyObjective
from tests.support.workers import ROOT


def seen(tracker, *values, first=0):
    improved = []
    for step, value in enumerate(values, start=first):
        tracker.update(Report(step, "validation", {"metric/accuracy": value, "loss/total": 1.0 - value}))
        improved.append(tracker.improved)
    return improved


def test_metric_mode_matches_keras():
    seen = set()
    for name in dir(keras.metrics):
        with suppress(TypeError):  # a function, or a class with arguments
            metric = getattr(keras.metrics, name)()
            if direction := getattr(metric, "_direction", None):
                assert mode_of(f"metric/{metric.name}", "auto") == {"up": "max", "down": "min"}[direction], name
                seen.add(direction)
    assert seen == {"up", "down"}
    assert mode_of("a/metric/mae", "auto") == mode_of("metric/bce", "auto") == "min"  # of objective a; an alias


def test_monitor_is_chosen_from_the_available_values():
    names = ["loss/own", "loss/total"]
    assert choose_monitor("auto", "auto", names) == ("loss/total", "min")
    assert choose_monitor("auto", "auto", [*names, "metric/accuracy"]) == ("metric/accuracy", "max")
    assert_refused("Did you mean 'loss/total'", choose_monitor, "loss", "auto", names)


def test_best_follows_the_mode_and_ignores_ties_nan_and_early_steps():
    for mode, best, step in (("max", 0.9, 1), ("min", 0.2, 3)):
        tracker = Best("metric/accuracy", mode)
        found = [index for index, each in enumerate(seen(tracker, 0.5, 0.9, 0.9, 0.2, 0.2)) if each]
        assert (found, tracker.value, tracker.step) == ([0, step], best, step)
        assert tracker.values["loss/total"] == pytest.approx(1.0 - best)
    tracker, nan = Best("metric/accuracy", "max"), float("nan")
    assert seen(tracker, nan, 0.3, nan) == [False, True, False]
    assert tracker.value == 0.3
    late = Best("metric/accuracy", "max", since=10)
    assert seen(late, 0.99, 0.5, first=9) == [False, True]
    assert late.value == 0.5


@given(
    size=st.integers(1, 300),
    batch=st.integers(1, 64),
    epochs=st.integers(1, 7),
    every=st.integers(1, 3),
    report=st.none() | st.integers(1, 50),
)
def test_chunk_edges_reach_the_end_and_skip_no_evaluation_or_report(size, batch, epochs, every, report):
    steps_per_epoch = size / min(batch, size)
    total = math.ceil(epochs * steps_per_epoch)
    cadence = Cadence(total, steps_per_epoch, every, report)
    step, evaluations = 0, []
    while step < total:
        end = cadence.next_edge(step, [], 1e-9)
        assert step < end <= min(cadence.next_evaluation(step), cadence.next_report(step)) <= total
        if end == cadence.next_evaluation(step):
            evaluations.append(end)
        step = end
    assert step == total
    due = {min(total, math.ceil(round(k * every * steps_per_epoch, 6))) for k in range(1, epochs // every + 2)}
    assert evaluations == sorted(due)


def asking(step):
    return SimpleNamespace(name="asking", next_step=lambda _: step)


def test_hooks_slow_steps_and_the_first_chunk_shorten_chunks():
    cadence = Cadence(1000, 100.0, 1, None)
    assert cadence.next_edge(10, [asking(37), asking(55)], 1e-9) == 37
    assert cadence.next_edge(40, [asking(37), asking(None)], 1e-9) == 100
    assert cadence.next_edge(0, [], None) == 1
    assert cadence.next_edge(0, [], CHUNK_SECONDS / 10) == 10
    assert cadence.next_edge(0, [], 60.0) == 1
    assert [Cadence(25, 100.0, 1, 10).next_report(step) for step in (0, 9, 10, 20, 24)] == [10, 10, 20, 25, 25]
    assert Cadence(1000, 1000 / 30, 1, None).next_evaluation(467) == 500  # 15 * (1000 / 30) is above 500


def hook(name, network, objective="*"):
    found = StatelessHook(name)
    found.network, found.objective = network, objective
    return found


def test_own_values_drop_prefixes_and_give_one_view_per_objective():
    values = {"first/g/ema/distance": 1.0, "first/d/ema/distance": 2.0, "first/loss/g/center": 3.0}
    values |= {"second/d/ema/distance": 4.0, "second/metric/d/within": 5.0, "opt/learning_rate": 6.0}
    objectives = [ToyObjective("g", "first"), ToyObjective("d", "second")]
    objectives[0].trains = ("g", "d")
    (view,) = own_values(hook("ema@g", "g"), values, objectives)
    assert view == {**values, "ema/distance": 1.0, "loss/center": 3.0}
    first, second = own_values(hook("ema@d", "d"), values, objectives)
    assert first == {**values, "ema/distance": 2.0}
    assert second == {**values, "ema/distance": 4.0, "metric/within": 5.0}
    assert own_values(hook("ema@d", "d", "sec*"), values, objectives) == [second]
    values = {"ema/distance": 1.0, "loss/total": 2.0, "metric/accuracy": 0.5}
    assert own_values(hook("ema", "model"), values, [ToyObjective()]) == [values]


LISTENING = """
import hashlib, os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from hookline.trainer.run.control import Interruption
with Interruption().listening():
    print('listens', flush=True)
    {}
    print('still there')
"""


@pytest.fixture(autouse=True)
def sensitive():
    """Handle SIGINT even in a process that a shell started in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_first_signal_is_recorded_and_ignored_signal_stays_ignored():
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    for number in (signal.SIGINT, signal.SIGTERM):
        interruption = Interruption()
        with interruption.listening():
            assert interruption.reason is None
            os.kill(os.getpid(), number)
            assert (interruption.reason, interruption.signal_number) == (number.name, number)
            now = {signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
            assert now == {signal.SIG_DFL}  # the next one is for the operating system
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interruption = Interruption()
        with interruption.listening():
            os.kill(os.getpid(), signal.SIGINT)
            assert interruption.reason is None
            os.kill(os.getpid(), signal.SIGTERM)
            assert interruption.reason == "SIGTERM"
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_second_signal_ends_the_process_during_a_computation():
    code = LISTENING.format("hashlib.pbkdf2_hmac('sha256', b'', b'', 40_000_000)")
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "listens\n"
        time.sleep(0.3)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        assert process.stdout.read() == ""
    assert process.returncode == 128 + signal.SIGINT


def test_sigterm_raises_interrupted_in_the_main_thread_only():
    before = signal.getsignal(signal.SIGTERM)

    def listen():
        with Interruption().listening(), termination_interrupts():
            assert signal.getsignal(signal.SIGTERM) is before

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    with pytest.raises(Interrupted, match="SIGTERM") as error, termination_interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
    assert error.value.signal_number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
