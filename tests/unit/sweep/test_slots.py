"""What a machine offers to the jobs of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookline.scripts.sweep.record import divide, usable_gpus


def test_places_follow_from_the_machine() -> None:
    for jobs, asked, cores, gpus, spread, count, threads in (
        (8, None, 4, (), False, 4, 1),
        (8, 3, 4, (), False, 3, 1),
        (2, None, 16, (), False, 2, 8),
        (8, None, 16, ("0", "1"), False, 2, 8),
        (8, 4, 16, ("0", "1"), False, 4, 4),
        (8, None, 16, ("0", "1"), True, 1, 16),
        (0, None, 2, (), False, 1, 2),
    ):
        slots = divide(jobs, asked, cores, gpus, spread=spread)
        assert (len(slots), slots.threads) == (count, threads)
        shown = [environment.get("CUDA_VISIBLE_DEVICES") for environment in slots.environments]
        assert shown == [gpus[place % 2] if gpus and not spread else None for place in range(count)]
        grows = ["TF_FORCE_GPU_ALLOW_GROWTH" in environment for environment in slots.environments]
        assert grows == [bool(gpus) and asked == 4] * count


def test_gpus_are_those_that_the_user_left_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    for named, gpus in (("", ()), ("-1", ()), ("0, GPU-x", ("0", "GPU-x"))):
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
