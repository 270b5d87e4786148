"""Every technique hook resumes where a run was killed, in the process that made the whole run."""

import json
import re

import pytest

from hookline.hooks import load
from hookline.scripts.documentation.description import parse_docstring
from hookline.trainer.run.checkpoint import CheckpointStore
from tests.resume.test_matrix import TECHNIQUES
from tests.support.command import overrides_for, run_small
from tests.support.copies import Copies
from tests.support.resumed import PLUGIN, check_same, go_on

OF_ALL_RUNS = re.compile(r"loss/(total|cross_entropy)|metric/accuracy|(grad_norm|opt|time)/.*")
"""Names that the trainer and the classification objective report."""
CONDITION = re.compile(r"\bif (\S+ is set|there is one|there are any)")


def check_reported(names, directory):
    """Compare the names in a run's reports with the sections "Scalars:" of hooks."""
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    reported = {key for line in lines for key in line} - {"step", "split"}
    entries = {
        key: text for name in names for key, text in parse_docstring(load(name).__doc__).entries("Scalars").items()
    }
    assert differing_names(entries, reported) == []


def differing_names(entries, reported):
    """Return which names are reported and not described, or described and not reported."""
    own = [name for name in reported if not OF_ALL_RUNS.fullmatch(name)]
    patterns = {name: re.compile("(metric/)?" + re.escape(name).replace("<layer>", ".+")) for name in entries}
    unknown = [name for name in sorted(own) if not any(pattern.fullmatch(name) for pattern in patterns.values())]
    absent = [
        name
        for name, text in entries.items()
        if not CONDITION.search(text) and not any(patterns[name].fullmatch(each) for each in own)
    ]
    return [*(f"{name} is not described" for name in unknown), *(f"{name} is not reported" for name in absent)]


TOGETHER = {
    ("bernoulli_attention", "gradient_override", "incremental_quantization", "synchronized_batch_norm"): "",
    ("bnn_rounding", "bop", "center_loss", "clip_gradients", "ema", "reduce_on_plateau"): (
        "trainer.accumulation_steps=2 trainer.epochs=4 trainer.batch_size=256 schedule=constant "  # 5 steps an epoch
        "hooks.reduce_on_plateau.patience=1 hooks.reduce_on_plateau.min_delta=100 hooks.reduce_on_plateau.factor=0.9 "
        "hooks.center_loss.warm_up_epochs=0"
    ),
    ("distillation", "freeze_layers", "prune", "weight_clustering"): (
        "hooks.prune.rewind_epoch=0.3 hooks.prune.end_epoch=1.5 hooks.prune.frequency=2 schedule=constant "
        "hooks.weight_clustering.preserve_sparsity=true"
    ),
    ("frozen_mask", "fused_batch_norm", "quantization_aware_training", "sam"): (
        "hooks.quantization_aware_training.ranges=learned hooks.quantization_aware_training.freeze_epoch=1.5"
    ),
}
"""The fewest runs that include every hook, with the overrides that they need. A new hook gets its own run."""
RUNS = TOGETHER | {(name,): "" for name in sorted({*TECHNIQUES}.difference(*TOGETHER))}


@pytest.mark.filterwarnings("ignore:(metric/accuracy|loss/cross_entropy) did not improve")
@pytest.mark.parametrize("names", RUNS, ids="+".join)
def test_run_with_hooks_resumes_bit_for_bit(names, tmp_path, monkeypatch):
    overrides = [f"+hooks=[{','.join(names)}]", *overrides_for(*names), *RUNS[names].split(), PLUGIN]
    copies = f"+hooks.copies={{_target_:tests.support.copies.Copies,to:{tmp_path / 'copies'},steps:[12,13]}}"
    whole = run_small("baseline", *overrides, copies, run_dir=tmp_path / "whole")
    monkeypatch.setattr(Copies, "silent", True)
    found = go_on(cut := tmp_path / "copies" / "after_13")
    assert found["resumed_at"] == [12]
    check_same(cut, found, tmp_path / "whole", whole)
    assert min(each["images_per_second"] for each in (whole, found)) > 0
    for name in {*TECHNIQUES} & {*names}:
        assert found["hooks"][name] == whole["hooks"][name]
    check_reported(names, tmp_path / "whole")
    if "reduce_on_plateau" in names:
        assert whole["hooks"]["reduce_on_plateau"]["share"] == pytest.approx(0.9**2)  # at steps 10 and 15
        assert whole["final"]["opt/learning_rate"] == pytest.approx(0.003 * 0.9**2)
        kept = CheckpointStore(tmp_path / "whole" / "checkpoints").load("last").state["run"]["returns"]
        assert kept == [{"to": step, "rate_factor": 0.9} for step in (10, 15)]  # for a replay by scripts/verify.py
