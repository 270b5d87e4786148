"""What a machine offers to the jobs of a sweep."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer.sweep.slots import divide, usable_cores, usable_gpus


@pytest.mark.parametrize(
    ("jobs", "asked", "cores", "gpus", "spread", "count", "threads"),
    [
        (8, None, 4, (), False, 4, 1),
        (8, 3, 4, (), False, 3, 1),
        (2, None, 16, (), False, 2, 8),
        (8, 6, 4, (), False, 6, 1),
        (8, None, 16, ("0", "1"), False, 2, 8),
        (8, 4, 16, ("0", "1"), False, 4, 4),
        (8, None, 16, ("0", "1"), True, 1, 16),
        (8, 4, 16, ("0", "1"), True, 4, 4),
        (0, None, 2, (), False, 1, 2),
    ],
)
def test_places_follow_from_the_machine(
    jobs: int, asked: int | None, cores: int, gpus: tuple[str, ...], spread: bool, count: int, threads: int
) -> None:
    slots = divide(jobs, asked, cores, gpus, spread=spread)
    assert (len(slots), slots.threads) == (count, threads)
    shown = [environment.get("CUDA_VISIBLE_DEVICES") for environment in slots.environments]
    assert shown == [gpus[place % 2] if gpus and not spread else None for place in range(count)]
    grows = ["TF_FORCE_GPU_ALLOW_GROWTH" in environment for environment in slots.environments]
    assert grows == [bool(gpus) and asked == 4] * count


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 6}, raising=False)
    assert usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == os.cpu_count()


@pytest.mark.parametrize(("named", "gpus"), [("", ()), ("-1", ()), ("2", ("2",)), ("0, GPU-x", ("0", "GPU-x"))])
def test_gpus_are_those_that_the_user_left_visible(
    monkeypatch: pytest.MonkeyPatch, named: str, gpus: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert usable_gpus() == gpus


def test_gpus_are_listed_by_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    listing = tmp_path / "nvidia-smi"
    listing.write_text("#!/bin/sh\n[ $1 = -L ] && echo 'GPU 0: A (UUID: x)' && echo '  MIG 1g' && echo 'GPU 1: B'\n")
    listing.chmod(0o755)
    assert usable_gpus(str(listing)) == ("0", "1")
    listing.write_text("#!/bin/sh\necho 'GPU 0: lost'; exit 9\n")
    assert usable_gpus(str(listing)) == ()
    assert usable_gpus(str(tmp_path / "absent")) == ()
