"""Signals and the time budget: the first signal is recorded, the second stops the process at once."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hookline.trainer.run.interruption import Interrupted, Interruption, termination_interrupts

ROOT = Path(__file__).parents[3]
LISTENING = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from hookline.trainer.run.interruption import Interruption
with Interruption().listening():
    print('listens', flush=True)
    {}
    print('still there')
"""


@pytest.fixture(autouse=True)
def sensitive():
    """Handle SIGINT, also in a process that a shell has started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_signal_is_recorded_and_an_ignored_one_stays_ignored():
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    for number in (signal.SIGINT, signal.SIGTERM):
        interruption = Interruption()
        with interruption.listening():
            assert interruption.reason is None
            os.kill(os.getpid(), number)
            assert (interruption.reason, interruption.signal_number) == (number.name, number)
            assert signal.getsignal(number) is signal.SIG_DFL  # the next one is for the operating system
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


def test_the_second_signal_stops_the_process_at_once():
    code = LISTENING.format("[os.kill(os.getpid(), each) for each in (signal.SIGINT, signal.SIGTERM)]")
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.stdout, found.returncode) == ("listens\n", -signal.SIGTERM)


def test_a_termination_is_an_interruption_in_the_main_thread_alone():
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
