"""Every pair of technique hooks trains together, or says in one line why it cannot."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from hooks import catalogue, load
from tests.support.command import overrides_for, run_small
from trainer.errors import UserError
from trainer.hook import GraphHook, HostHook

EVERYWHERE = {"fused_batch_norm", "nan_guard"}  # every run has them, so every pair trains beside them
TECHNIQUES = [name for name in sorted(catalogue()) if issubclass(load(name), GraphHook) and name not in EVERYWHERE]
SYNCHRONIZED = "synchronized_batch_norm"  # takes the layers in training: the kernel has those of evaluations
FUSED = ("hooks.fused_batch_norm.min_entries=0",)  # these networks are too small for it otherwise
PAIRS = list(itertools.combinations(TECHNIQUES, 2))


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=["+".join(pair) for pair in PAIRS])
def test_pair_trains_together_or_says_why_not(first: str, second: str, tmp_path) -> None:
    summary, refusal = train_or_refuse(first, second, tmp_path / "run")
    if refusal is not None:
        assert "\n" not in refusal
        assert first in refusal or second in refusal
        assert not (tmp_path / "run").exists()
        return
    assert summary["status"] == "completed"
    assert {first, second, *EVERYWHERE} <= set(summary["hooks"])
    normalizing = summary["hooks"].get(SYNCHRONIZED) or summary["hooks"]["fused_batch_norm"]["training"]
    assert normalizing["layers" if SYNCHRONIZED in (first, second) else "fused"]
    assert all(math.isfinite(value) for value in summary["final"].values())
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["test"] == summary["test"]


def train_or_refuse(first: str, second: str, directory: Path) -> tuple[dict[str, Any], str | None]:
    try:
        overrides = [f"+hooks=[{first},{second}]", *overrides_for(first, second), *FUSED, "hooks.tensorboard=null"]
        return run_small("baseline", *overrides, run_dir=directory), None
    except UserError as error:
        return {}, str(error)


def test_there_are_pairs_and_no_host_hook_among_them() -> None:
    assert len(PAIRS) >= 1
    assert not any(issubclass(load(name), HostHook) and not issubclass(load(name), GraphHook) for name in TECHNIQUES)
