"""sweep.json: whole at any moment, and written by several at a time."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from hookline.scripts.sweep.record import Sweep, SweepJob, read_sweep, record
from hookline.trainer.errors import UserError


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """A sweep of two jobs on disk."""
    written = Sweep(tmp_path, [SweepJob(1, ["seed=1"], "a"), SweepJob(2, ["seed=2"], "b")], threads=3, space=["x=1,2"])
    written.write()
    return written


def test_a_record_that_cannot_be_replaced_stays_as_it_was(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    before = (sweep.directory / "sweep.json").read_bytes()
    monkeypatch.setattr(os, "replace", full)
    sweep.jobs[0].status = "completed"
    with pytest.raises(UserError, match="sweep.json cannot be written: No space left on device"):
        record(sweep, sweep.jobs[0])
    assert (sweep.directory / "sweep.json").read_bytes() == before


def test_one_at_a_time_changes_the_record(sweep: Sweep) -> None:
    with (sweep.directory / ".record").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        changed = SweepJob(2, ["seed=2"], "b", "failed", 1)
        thread = threading.Thread(target=record, args=(sweep, changed))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        sweep.jobs[0].status = "completed"
        sweep.write()
    thread.join(10)
    assert [job.status for job in read_sweep(sweep.directory).jobs] == ["completed", "failed"]
    record(sweep, SweepJob(3, [], "c"))
    assert [job.number for job in read_sweep(sweep.directory).jobs] == [1, 2, 3]
