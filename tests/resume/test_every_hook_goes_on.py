"""Every technique hook resumes where a run was left, which makes three fits in one process.

A new hook is covered by being there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hookline.hooks import catalogue, load
from hookline.trainer.hook import GraphHook, HostHook
from tests.support.command import overrides_for, run_small
from tests.support.reported import check_reported
from tests.support.resumed import check_same, run_cut

HOOKS = [
    name for name in sorted(catalogue()) if issubclass(load(name), GraphHook) and not issubclass(load(name), HostHook)
]


@pytest.mark.parametrize("name", HOOKS)
def test_a_run_with_the_hook_resumes_with_its_bits(name: str, tmp_path: Path) -> None:
    parts = ["trainer.accumulation_steps=2"] if name in ("center_loss", "ema") else []
    overrides = [f"+hooks={name}", *overrides_for(name), *parts]
    whole = run_small("baseline", *overrides, run_dir=tmp_path / "whole")
    found = run_cut("baseline", *overrides, cuts=[7], run_dir=tmp_path / "cut")
    check_same(tmp_path / "cut", found, tmp_path / "whole", whole)
    assert min(each["images_per_second"] for each in (whole, found)) > 0
    assert found["hooks"][name] == whole["hooks"][name]
    check_reported(name, tmp_path / "whole")
