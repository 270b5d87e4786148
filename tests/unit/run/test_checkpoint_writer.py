"""Writing in the background: training continues, nothing that must stay is lost, and memory has a bound."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from hookline.trainer.run.checkpoint import BackgroundWriter, Snapshot

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 10.0


class Disk:
    """Write nothing, but only when it is let to; hold what was written."""

    def __init__(self) -> None:
        self.written: list[tuple[int, set[str]]] = []
        self.full = False
        self.begun, self.gate = threading.Semaphore(0), threading.Semaphore(0)

    def write(self, snapshot: Snapshot) -> bool:
        self.begun.release()
        assert self.gate.acquire(timeout=SECONDS)
        if self.full:
            return False
        self.written.append((snapshot.step, set(snapshot.tags)))
        return True

    def open(self) -> None:
        self.gate.release(100)


@pytest.fixture
def disk():
    return Disk()


def busy(disk) -> BackgroundWriter:
    """Return a writer that has begun to write step 1."""
    writer = BackgroundWriter(disk.write)
    writer.submit(snapshot(1, "last"))
    assert disk.begun.acquire(timeout=SECONDS)
    return writer


def snapshot(step: int, *tags: str) -> Snapshot:
    return Snapshot(frozenset(tags), step, {}, b"{}")


class Read(Mapping[str, np.ndarray]):
    """Give an array that is made when it is asked for, and see which others are there then."""

    def __init__(self, others: list[weakref.ref]) -> None:
        self.others = others
        self.there: list[bool] = []

    def __getitem__(self, key: str) -> np.ndarray:
        self.there = [other() is not None for other in self.others]
        array = np.zeros(4)
        self.others.append(weakref.ref(array))
        return array

    def __iter__(self):
        return iter(["kernel"])

    def __len__(self):
        return 1


def test_what_gives_way_is_let_go_before_the_next_is_read(disk) -> None:
    writer = BackgroundWriter(disk.write)
    made: list[weakref.ref] = []
    for step in (1, 2, 3):
        tensors = Read(made)
        writer.submit(Snapshot(frozenset({"last"}), step, tensors, b"{}"))
        if step == 1:
            assert disk.begun.acquire(timeout=SECONDS)
    assert tensors.there == [True, False]  # the first is being written, the second gave way
    disk.open()
    writer.wait()
    assert disk.written == [(1, {"last"}), (3, {"last"})]


def test_a_last_that_has_not_begun_gives_way_to_a_later_save(disk) -> None:
    writer = busy(disk)
    for step in (2, 3):
        writer.submit(snapshot(step, "last"))
    writer.submit(snapshot(4, "best"))
    assert disk.written == []  # submitting does not wait for the disk
    disk.open()
    writer.wait()
    assert disk.written == [(1, {"last"}), (4, {"best", "last"})]


def test_a_best_that_has_not_begun_is_waited_for(disk) -> None:
    writer = busy(disk)
    writer.submit(snapshot(2, "best", "last"))
    later = threading.Thread(target=writer.submit, args=[snapshot(3, "last")])
    later.start()
    later.join(0.05)
    assert later.is_alive()
    disk.open()
    later.join(SECONDS)
    writer.wait()
    assert disk.written == [(1, {"last"}), (2, {"best", "last"}), (3, {"last"})]


def test_what_could_not_be_written_is_kept_and_nothing_is_written_past_it(disk) -> None:
    writer = BackgroundWriter(disk.write)
    before = threading.active_count()
    disk.open()
    disk.full = True
    for step, tags in ((1, {"best", "last"}), (2, {"last"}), (3, {"best"}), (4, {"last"})):
        writer.submit(snapshot(step, *tags))
        writer.wait()
    assert [(each.step, set(each.tags)) for each in writer.unwritten] == [(3, {"best"}), (4, {"last"})]
    writer.retry()
    assert (disk.written, len(writer.unwritten)) == ([], 2)
    disk.full = False
    writer.submit(snapshot(5, "last"))
    writer.wait()
    assert disk.written == [(3, {"best"}), (5, {"last"})]
    assert writer.unwritten == []
    assert threading.active_count() == before


def test_the_end_of_the_process_waits_for_what_is_being_written(tmp_path) -> None:
    source = f"""
import pathlib, numpy
from hookline.trainer.run.checkpoint import CheckpointStore
store = CheckpointStore(pathlib.Path({str(tmp_path)!r}))
store.save({{"last"}}, 1, {{"a": numpy.zeros(1_000_000)}}, {{}})
raise SystemExit(3)
"""
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, check=False)
    assert done.returncode == 3
    assert (tmp_path / "index.json").exists()
