"""sweep.json: complete at any moment, even with several writers."""

import fcntl
import os
import threading
from pathlib import Path

import pytest

from hookline.scripts.sweep import record as module
from hookline.scripts.sweep.record import Sweep, SweepJob, divide, read_sweep, record, usable_gpus


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """A sweep of two jobs on disk."""
    written = Sweep(tmp_path, [SweepJob(1, ["seed=1"], "a"), SweepJob(2, ["seed=2"], "b")], threads=3, space=["x=1,2"])
    written.write()
    return written


def test_record_that_cannot_be_replaced_stays_unchanged(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    before = (sweep.directory / "sweep.json").read_bytes()
    monkeypatch.setattr(os, "replace", full)
    sweep.jobs[0].status = "completed"
    with pytest.raises(OSError, match="No space left on device"):
        record(sweep, sweep.jobs[0])
    assert (sweep.directory / "sweep.json").read_bytes() == before


def test_record_is_changed_by_one_writer_at_a_time(sweep: Sweep) -> None:
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


def test_slots_depend_on_jobs_cores_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for jobs, asked, cores, gpus, spread, count, threads in (
        (8, None, 4, (), False, 4, 1),
        (8, 3, 4, (), False, 3, 1),
        (2, None, 16, (), False, 2, 8),
        (8, None, 16, ("0", "1"), False, 2, 8),
        (8, 4, 16, ("0", "1"), False, 4, 4),
        (8, None, 16, ("0", "1"), True, 1, 16),
        (0, None, 2, (), False, 1, 2),
    ):
        monkeypatch.setattr(module, "usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr(module, "usable_gpus", lambda gpus=gpus: gpus)
        slots = divide(jobs, asked, spread=spread)
        assert (len(slots), slots.threads) == (count, threads)
        shown = [environment.get("CUDA_VISIBLE_DEVICES") for environment in slots.environments]
        assert shown == [gpus[place % 2] if gpus and not spread else None for place in range(count)]
        grows = ["TF_FORCE_GPU_ALLOW_GROWTH" in environment for environment in slots.environments]
        assert grows == [bool(gpus) and asked == 4] * count


def test_usable_gpus_are_those_in_cuda_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for named, gpus in (("", ()), ("-1", ()), ("0, GPU-x", ("0", "GPU-x"))):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert usable_gpus() == gpus


def test_usable_gpus_are_listed_by_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    listing = tmp_path / "nvidia-smi"
    listing.write_text("#!/bin/sh\n[ $1 = -L ] && echo 'GPU 0: A (UUID: x)' && echo '  MIG 1g' && echo 'GPU 1: B'\n")
    listing.chmod(0o755)
    assert usable_gpus(str(listing)) == ("0", "1")
    listing.write_text("#!/bin/sh\necho 'GPU 0: lost'; exit 9\n")
    assert usable_gpus(str(listing)) == ()
    assert usable_gpus(str(tmp_path / "absent")) == ()
