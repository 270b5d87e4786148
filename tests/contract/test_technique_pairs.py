"""Every pair of technique hooks trains together, or says in one line why it cannot."""

import itertools
import json
import math

import pytest

from hookline.trainer.errors import UserError
from tests.support.command import overrides_for, run_small
from tests.support.door import EVERYWHERE, techniques

TECHNIQUES = techniques()
SYNCHRONIZED = "synchronized_batch_norm"  # handles the layers in training; the kernel handles them in evaluations
FUSED = ("hooks.fused_batch_norm.min_entries=0",)  # these networks are too small for it otherwise
WITHOUT_MONITORS = [f"hooks.{each}=null" for each in ("tensorboard", "pictures", "projector", "randomness_guard")]
PAIRS = list(itertools.combinations(TECHNIQUES, 2))
APART = {*(("incremental_quantization", "prune"), ("bnn_rounding", "quantization_aware_training"))}
"""In the full tier; tests/resume/test_every_hook_resumes.py trains others together."""


@pytest.mark.parametrize(
    "pair", [pytest.param(each, marks=() if each in APART else pytest.mark.long) for each in PAIRS], ids="+".join
)
def test_pair_trains_together_or_says_why_not(pair, tmp_path):
    directory = tmp_path / "run"
    overrides = [f"+hooks=[{','.join(pair)}]", *overrides_for(*pair), *FUSED, *WITHOUT_MONITORS]
    try:
        summary = run_small("baseline", *overrides, run_dir=directory)
    except UserError as error:
        line = str(error)
        assert "\n" not in line
        assert any(name in line for name in pair)
        assert not directory.exists()
        return
    assert summary["status"] == "completed"
    assert {*pair, *EVERYWHERE} <= set(summary["hooks"])
    normalizing = summary["hooks"].get(SYNCHRONIZED) or summary["hooks"]["fused_batch_norm"]["training"]
    assert normalizing["layers" if SYNCHRONIZED in pair else "fused"]
    assert all(math.isfinite(value) for value in summary["final"].values())
    assert json.loads((directory / "summary.json").read_text())["test"] == summary["test"]
