"""What hooks answer after training: an answer that is none is one line, and all others are kept."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.command import run_small
from tests.support.toy import StatelessHook
from trainer.run.hook_answers import answer

KERNEL = "dense/kernel"
STAGES = ("summary", "stored_bits", "weight_bits", "input_bits")
LOOP: list[Any] = []
LOOP.append(LOOP)


class Raising(StatelessHook):
    """Raise in every stage that is asked after training."""

    def summary(self) -> Any:
        raise RuntimeError("no summary")

    def stored_bits(self, shipped: Any) -> Any:
        return {next(iter(shipped)): "four"}

    def weight_bits(self, shipped: Any) -> Any:
        return ["kernel"]

    def input_bits(self) -> Any:
        raise KeyError("layer")


@pytest.mark.parametrize("found", [None, [], "text", {1: 2}, {"layers": np.zeros(2)}, {"a": object()}, {"a": LOOP}])
def test_a_summary_that_is_no_json_is_left_out_in_one_line(found: Any) -> None:
    hook = StatelessHook("probe")
    hook.summary = lambda: found
    with pytest.warns(UserWarning, match="^The hook 'probe', stage summary: .* Its answer is left out") as caught:
        assert answer(hook, "summary") == {}
    assert len(caught) == 1


@pytest.mark.parametrize(
    "found",
    [None, [1], {KERNEL: None}, {KERNEL: -1}, {KERNEL: float("nan")}, {KERNEL: True}, {"other": 1}, {KERNEL: 1.5}],
)
def test_bits_that_are_none_are_left_out_in_one_line(found: Any) -> None:
    hook = StatelessHook("probe")
    hook.weight_bits = lambda: found
    with pytest.warns(UserWarning, match="^The hook 'probe', stage weight_bits: .* Its answer is left out"):
        assert answer(hook, "weight_bits", given={KERNEL: None}) == {}


def test_what_is_right_is_kept() -> None:
    hook = StatelessHook("probe")
    hook.summary = lambda: {"layers": [{"layer": "dense", "share": 0.5}], "nothing": None}
    hook.stored_bits = lambda: {KERNEL: np.float32(1.5)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answer(hook, "summary") == hook.summary()
        assert answer(hook, "stored_bits", given={KERNEL: None}) == {KERNEL: 1.5}


def test_a_hook_that_answers_wrongly_costs_nothing_but_its_answers(tmp_path: Path) -> None:
    hook = "+hooks.probe={_target_:tests.unit.run.test_hook_answers.Raising}"
    with pytest.warns(UserWarning, match="The hook 'probe', stage") as caught:
        run_small("bnn", "plugins=[tests.unit]", hook, "trainer.epochs=1", "hooks.advisor=null", run_dir=tmp_path / "r")
    told = [str(each.message).partition(":")[0] for each in caught]
    assert sorted(told) == sorted(f"The hook 'probe', stage {stage}" for stage in STAGES)
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["hooks"]["probe"] == {}
    assert summary["hooks"]["checkpoint"]["steps"]
    assert summary["bytes"]["deployed"] < summary["bytes"]["float32"]  # as bnn_rounding stores it
