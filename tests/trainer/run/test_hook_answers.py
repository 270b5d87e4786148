"""What hooks answer after training: an answer that is none is one line, and all others are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hookline.trainer.hook import Bits
from hookline.trainer.run.state import answer
from tests.support.command import run_small
from tests.support.toy import StatelessHook

STAGES = ("summary", "shipped_bits")
LOOP: list = []
LOOP.append(LOOP)


class Raising(StatelessHook):
    """Answer nothing of use in every stage that is asked after training."""

    def summary(self):
        raise RuntimeError("no summary")

    def shipped_bits(self, shipped):
        return Bits({next(iter(shipped)): "four"})


@pytest.mark.parametrize("found", [None, [], {1: 2}, {"layers": np.zeros(2)}, {"a": LOOP}], ids=str)
def test_an_answer_that_is_none_is_left_out_in_one_line(found) -> None:
    hook = StatelessHook("probe")
    hook.summary = lambda: found
    with pytest.warns(UserWarning, match="^The hook 'probe', stage summary: ") as caught:
        assert answer(hook, "summary", {}) == {}
    assert len(caught) == 1


def test_what_is_right_is_kept() -> None:
    hook = StatelessHook("probe")
    hook.summary = lambda: {"layers": [{"layer": "dense", "share": 0.5}], "nothing": None}
    assert answer(hook, "summary", {}) == hook.summary()


def test_a_hook_that_answers_wrongly_costs_nothing_but_its_answers(tmp_path: Path) -> None:
    hook = "+hooks.probe={_target_:tests.trainer.run.test_hook_answers.Raising}"
    options = ("plugins=[tests.trainer]", "trainer.epochs=1", "hooks.advisor=null")
    with pytest.warns(UserWarning, match="The hook 'probe', stage") as caught:
        summary = run_small("bnn", hook, *options, run_dir=tmp_path / "r")
    told = [str(each.message).partition(":")[0] for each in caught]
    assert sorted(told) == sorted(f"The hook 'probe', stage {stage}" for stage in STAGES)
    assert (summary["status"], summary["hooks"]["probe"]) == ("completed", {})
    assert summary["hooks"]["checkpoint"]["steps"]
    assert summary["bytes"]["deployed"] < summary["bytes"]["float32"]  # as bnn_rounding stores it
