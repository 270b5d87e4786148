"""The most memory that a process has held, on the host and on the GPU."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from trainer.run.peak_memory import peak_memory_bytes

SIZE = 200 * 2**20


def test_the_peak_of_the_host_is_in_bytes_and_stays_when_memory_is_freed() -> None:
    held = resident_bytes()
    array = np.ones(SIZE, np.uint8)
    peak = peak_memory_bytes()["host"]
    assert peak is not None
    assert peak >= held + 0.9 * SIZE
    assert peak < 64 * 2**30
    del array
    assert (peak_memory_bytes()["host"] or 0) >= peak


def resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096
    except OSError:
        return 0


def test_the_gpu_that_held_the_most_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [SimpleNamespace(name=f"/physical_device:GPU:{index}") for index in range(2)]
    peaks = {"GPU:0": {"peak": 3}, "GPU:1": {"peak": 5}}
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr("tensorflow.config.experimental.get_memory_info", peaks.__getitem__)
    assert peak_memory_bytes()["device"] == 5


def test_a_gpu_that_is_not_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: [])
    assert peak_memory_bytes()["device"] is None
