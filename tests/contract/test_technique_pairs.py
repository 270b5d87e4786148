"""Every pair of technique hooks trains together, or says in one line why it cannot."""

from __future__ import annotations

import itertools
import json
import math

import pytest

from hooks import catalogue, load
from tests.support.command import run_small
from trainer.errors import UserError
from trainer.hook import GraphHook, HostHook

TECHNIQUES = [name for name in sorted(catalogue()) if issubclass(load(name), GraphHook) and name != "nan_guard"]
PAIRS = list(itertools.combinations(TECHNIQUES, 2))


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=["+".join(pair) for pair in PAIRS])
def test_pair_trains_together_or_says_why_not(first: str, second: str, tmp_path) -> None:
    try:
        summary = run_small("baseline", f"+hooks=[{first},{second}]", run_dir=tmp_path / "run")
    except UserError as error:
        assert "\n" not in str(error)
        assert first in str(error) or second in str(error)
        assert not (tmp_path / "run").exists()
        return
    assert summary["status"] == "completed"
    assert {first, second} <= set(summary["hooks"])
    assert all(math.isfinite(value) for value in summary["final"].values())
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["test"] == summary["test"]


def test_there_are_pairs_and_no_host_hook_among_them() -> None:
    assert len(PAIRS) >= 1
    assert not any(issubclass(load(name), HostHook) and not issubclass(load(name), GraphHook) for name in TECHNIQUES)
