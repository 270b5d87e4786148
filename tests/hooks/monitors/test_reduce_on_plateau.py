"""The learning rate falls where the metric stands still, and a resumed run falls with it."""

from __future__ import annotations

import json

import pytest

from hookline.hooks.monitors.reduce_on_plateau import ReduceOnPlateau
from hookline.trainer.errors import UserError
from tests.support.command import run_small
from tests.support.resumed import check_same, run_cut

FLAT = ("+hooks=reduce_on_plateau", "hooks.reduce_on_plateau.patience=1", "hooks.reduce_on_plateau.min_delta=100")
PLATEAU = (*FLAT, "hooks.reduce_on_plateau.factor=0.5", "trainer.epochs=5", "schedule=constant")


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:metric/accuracy did not improve", "ignore:loss/cross_entropy did not improve")
def test_the_rate_falls_again_and_again_also_after_a_resume(tmp_path) -> None:
    summary = run_small("baseline", *PLATEAU, "optimizer.learning_rate=0.008", run_dir=tmp_path / "whole")
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    rates = [line["opt/learning_rate"] for line in lines if line["split"] == "train"]
    assert rates == pytest.approx([0.008, 0.008, 0.004, 0.002, 0.001])  # the first evaluation is the best
    assert summary["hooks"]["reduce_on_plateau"]["share"] == 0.125
    cut = run_cut("baseline", *PLATEAU, "optimizer.learning_rate=0.008", cuts=[35], run_dir=tmp_path / "cut")
    check_same(tmp_path / "cut", cut, tmp_path / "whole", summary)


@pytest.mark.filterwarnings("ignore:metric/accuracy did not improve")
def test_it_stops_at_the_least_share(make_run) -> None:
    hook, run = ReduceOnPlateau(factor=0.1, patience=1, least=0.005), make_run()
    run.lower_rates = lambda factor: None
    for _ in range(5):
        hook.out_of_patience(run)
    assert hook.summary()["share"] == pytest.approx(0.01)
    with pytest.raises(UserError, match="factor"):
        ReduceOnPlateau(factor=0.0)
