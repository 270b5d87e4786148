"""Signals and the time budget: the first signal is taken note of, the second stops the process at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.run.interruption import Interrupted, Interruption, termination_interrupts

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def sensitive() -> Iterator[None]:
    """Hear SIGINT, also in a process that a shell has started in the background, deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_taken_note_of(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    interruption = Interruption()
    with interruption.listening():
        assert interruption.reason is None
        os.kill(os.getpid(), number)
        assert interruption.reason == number.name
        assert interruption.signal_number == number
        assert signal.getsignal(number) is signal.SIG_DFL  # the next one is for the operating system
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_what_was_started_deaf_to_a_signal_stays_so() -> None:
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


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_stops_the_process_at_once(second: signal.Signals) -> None:
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from trainer.run.interruption import Interruption\n"
        "with Interruption().listening():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('noted', flush=True)\n"
        f"    os.kill(os.getpid(), {int(second)})\n"
        "    print('still there')\n"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.stdout == "noted\n"
    assert found.returncode == -second


def test_a_second_signal_is_one_while_python_waits_for_a_computation() -> None:
    code = (
        "import hashlib, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from trainer.run.interruption import Interruption\n"
        "with Interruption().listening():\n"
        "    print('computes', flush=True)\n"
        "    hashlib.pbkdf2_hmac('sha256', b'', b'', 40_000_000)\n"
        "    print('still there')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "computes\n"
        time.sleep(0.3)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        assert process.stdout.read() == ""
    assert process.returncode == 128 + signal.SIGINT


def test_the_budget_is_wall_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    interruption = Interruption(30.0, _since=100.0)
    now[0] = 129.9
    assert interruption.reason is None
    now[0] = 130.0
    assert interruption.reason == "trainer.max_seconds=30"
    assert interruption.signal_number is None


def test_only_the_main_thread_listens() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def listen() -> None:
        with Interruption().listening(), termination_interrupts():
            assert signal.getsignal(signal.SIGTERM) is before

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_termination_is_an_interruption() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="Ended by SIGTERM") as error, termination_interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
    assert error.value.signal_number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
