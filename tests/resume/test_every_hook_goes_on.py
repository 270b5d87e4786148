"""Every technique hook, and several networks, resume where a run was left, which makes three fits in one process."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from hookline.hooks import catalogue, load
from hookline.scripts.documentation.description import parse_docstring
from hookline.trainer.hook import GraphHook, HostHook
from tests.support.command import overrides_for, run_small
from tests.support.resumed import check_same, run_cut

OF_ALL_RUNS = re.compile(r"loss/(total|cross_entropy)|metric/accuracy|(grad_norm|opt|time)/.*")
"""Names that the trainer and the classification report by themselves."""
CONDITION = re.compile(r"\b(where|if) (\S+ is set|there is one|there are any)")


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


HOOKS = [
    name for name in sorted(catalogue()) if issubclass(load(name), GraphHook) and not issubclass(load(name), HostHook)
]
TOGETHER = [
    ("bernoulli_attention", "gradient_override", "synchronized_batch_norm"),
    ("bnn_rounding", "center_loss", "clip_gradients", "ema"),
    ("distillation", "freeze_layers", "prune"),
    ("frozen_mask", "fused_batch_norm", "sam"),
]
REWOUND = ["hooks.prune.rewind_epoch=0.3", "hooks.prune.end_epoch=1", "hooks.prune.frequency=2", "schedule=constant"]
ALONE = [(name,) for name in HOOKS if name not in itertools.chain(*TOGETHER)]


@pytest.mark.parametrize("names", [*TOGETHER, *ALONE], ids="+".join)
def test_a_run_with_the_hook_resumes_with_its_bits(names, tmp_path):
    parts = ["trainer.accumulation_steps=2"] if "ema" in names else []
    parts += REWOUND if "prune" in names else []
    overrides = [f"+hooks=[{','.join(names)}]", *overrides_for(*names), *parts]
    whole = run_small("baseline", *overrides, run_dir=tmp_path / "whole")
    found = run_cut("baseline", *overrides, cuts=[7], run_dir=tmp_path / "cut")
    check_same(tmp_path / "cut", found, tmp_path / "whole", whole)
    assert min(each["images_per_second"] for each in (whole, found)) > 0
    for name in names:
        assert found["hooks"][name] == whole["hooks"][name]
    check_reported(names, tmp_path / "whole")


def test_networks_that_copy_one_another_resume_with_their_bits(tmp_path):
    overrides = ["task.messenger_every=3", "task.messenger_optimizer=reset", "trainer.batch_size=60"]
    whole = run_small("sgan", *overrides, run_dir=tmp_path / "whole")
    found = run_cut("sgan", *overrides, cuts=[4], run_dir=tmp_path / "cut")  # copies before the cut and after it
    check_same(tmp_path / "cut", found, tmp_path / "whole", whole)
