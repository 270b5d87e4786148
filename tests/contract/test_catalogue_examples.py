"""The example commands of every hook train as they stand."""

from __future__ import annotations

import shlex

import pytest

from hookline.hooks import catalogue, load
from hookline.scripts.documentation.description import parse_docstring
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.run.session import execute


def examples():
    texts = [parse_docstring(load(name).__doc__).sections.get("Example", "") for name in sorted(catalogue())]
    lines = dict.fromkeys(line for text in texts for line in text.replace("\\\n", "").splitlines())
    return [line for line in lines if " -m " not in line]  # tests/scripts/sweep has the searches


SHORT = ("trainer.epochs=null", "trainer.steps=2", "trainer.evaluate_every_epochs=1000")
OWN_LENGTH = {
    "schedule=splicing": ("hooks.prune.begin_epoch=0",),
    "rewind_epoch": ("hooks.prune.begin_epoch=0.05", "hooks.prune.rewind_epoch=0"),
    "end_epoch=10": ("hooks.freeze_layers.end_epoch=0.05",),
    "recipe=incremental_quantization": ("hooks.incremental_quantization.shares=[0.5,1.0]",),
    "+hooks=incremental_quantization": ("hooks.incremental_quantization.shares=[0.5,1.0]",),
}
"""What does not fit into two steps of 20 an epoch, by a word of the command."""
FINISHED = "runs/float"
"""A run of the baseline, in examples that start from one."""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The hook 'advisor':UserWarning")  # its own example shows what it warns of
@pytest.mark.parametrize("command", examples())
def test_an_example_trains(command, tmp_path):
    words = shlex.split(command.replace(FINISHED, str(tmp_path / "finished")))
    assert words[:2] == ["python", "train.py"]
    for extra in ("wandb", "mlflow"):
        if f"+hooks={extra}" in words:
            pytest.importorskip(extra, reason=f"{extra} is an extra, not among the test requirements")
    if FINISHED in command:
        trained(["recipe=baseline", *SHORT, f"run_dir={tmp_path / 'finished'}"])
    fitting = [override for word, overrides in OWN_LENGTH.items() if word in command for override in overrides]
    changed = {override.partition("=")[0] for override in (*SHORT, *fitting)}
    kept = [word for word in words[2:] if word.partition("=")[0] not in changed]
    assert trained([*kept, *SHORT, *fitting, f"run_dir={tmp_path / 'run'}"])["steps"] == 2


def trained(overrides):
    (job,) = preflight(parse_command(overrides))
    return execute(job.config, job.recipe, job.overrides).summary
