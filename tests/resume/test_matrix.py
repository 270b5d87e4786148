"""Every recipe with every technique hook, killed at every kind of cut, resumes with the bits of the whole run.

The whole matrix takes hours: `pytest -m long tests/resume/test_matrix.py`, in parts with -k "bnn and prune-1".
Combinations that are refused are skipped tests; -rs lists them.
"""

import gc
import itertools
import math
import shutil
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from hookline.hooks import catalogue, load
from hookline.trainer.errors import UserError
from hookline.trainer.hook import GraphHook, HostHook
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.checkpoint_files import Checkpoint, read_checkpoint, read_manifests
from tests.support.command import IMAGE_MODEL, run_small
from tests.support.copies import Copies
from tests.support.resumed import PLUGIN, check_same, go_on

RECIPES = sorted(path.stem for path in (Path(__file__).parents[2] / "configs" / "recipe").glob("*.yaml"))
TECHNIQUES = [
    name for name in sorted(catalogue()) if issubclass(load(name), GraphHook) and not issubclass(load(name), HostHook)
]
SAVING = "checkpoint"
"""The hook whose saves come at different moments in two runs."""
BETWEEN, EVALUATION = "within an epoch, between reports", "during an evaluation"
CHANGE = "right after a change of state"
REPORT = 4
OWN = {"frozen_mask": ("prune", "frozen_mask"), "incremental_quantization": ("incremental_quantization", "frozen_mask")}
"""Recipes that have hooks whose state changes at some steps."""
NETWORK = {"gan": "generator", "sgan": "global_generator"}
FIRST_LAYER = {
    **dict.fromkeys(("attention", "clothing_retrieval"), "block_1_conv"),
    "center_loss": "conv_1_1",
    "gradient_reversal": "conv_1",
    "custom_gradient": "b",
}
DENSE_MODEL = ("baseline", "bnn", "frozen_mask", "incremental_quantization", "retrieval")


@dataclass(frozen=True)
class Case:
    recipe: str
    hook: str
    parts: int
    more: tuple[str, ...] = ()

    def overrides(self):
        """Return the overrides for a small run of it, with changes of state in the middle."""
        given = {"trainer.evaluate_every_epochs": "1", "trainer.report_every_steps": str(REPORT)}
        given["trainer.accumulation_steps"] = str(self.parts)
        if self.recipe == "clothing_retrieval":
            given["trainer.epochs"] = "3"  # of two steps each
        if self.hook != "alone":
            given["+hooks"] = self.hook
        if self.hook == "bernoulli_attention" and self.recipe in DENSE_MODEL:
            given |= dict(each.split("=", 1) for each in IMAGE_MODEL)
        if self.hook == "freeze_layers":
            given |= {"hooks.freeze_layers.layers": FIRST_LAYER.get(self.recipe, "dense_1")}
            given |= {"hooks.freeze_layers.end_epoch": "1.2"}
        if self.hook == "bnn_rounding" and self.recipe != "bnn":
            given["hooks.bnn_rounding.input_quantizer"] = "null"  # inputs behind a relu have no signs
        if self.recipe in NETWORK and self.hook != "alone":
            given[f"hooks.{self.hook}.network"] = NETWORK[self.recipe]
        for hook in {self.hook, *OWN.get(self.recipe, ())}:
            given |= self._changing(hook)
        return [*(f"{key}={value}" for key, value in given.items()), *self.more]

    def _changing(self, hook):
        if hook == "prune":
            return {"hooks.prune.frequency": "2"}
        if hook == "frozen_mask" and self.recipe not in OWN:
            return {"hooks.frozen_mask.begin_epoch": "0.6"}
        if hook == "ema" and self.recipe not in NETWORK:
            return {"hooks.ema.begin_epoch": "0.6"}
        return {}


@dataclass(frozen=True)
class Whole:
    """Hold an uninterrupted run, and copies of it as a kill leaves it after each step and in each evaluation."""

    directory: Path
    copies: Path
    summary: dict[str, Any]
    states: dict[int, Checkpoint]


def changed_now_and_then(states):
    """Return the steps that changed a variable of a hook which most steps leave unchanged."""
    found = set()
    steps = sorted(states)
    for key in (key for key in states[steps[0]].tensors if key.startswith("hook/")):
        at = [
            step
            for before, step in itertools.pairwise(steps)
            if not np.array_equal(states[before].tensors[key], states[step].tensors[key])
        ]
        if len(at) <= len(steps) / 2:
            found |= set(at)
    return sorted(found)


def make_whole(case, directory):
    run, copies = directory / "whole", directory / "copies"
    hook = f"+hooks.copies={{_target_:tests.support.copies.Copies,to:{copies}}}"
    summary = run_small(case.recipe, *case.overrides(), PLUGIN, hook, run_dir=run)
    states = {manifest.step: read_checkpoint(manifest) for manifest in read_manifests(run / "checkpoints")}
    assert sorted(states) == list(range(1, summary["steps"] + 1))
    return Whole(run, copies, summary, states)


def choose_cuts(whole):
    """Return cuts, one of each kind: the name of a copy and the step that it resumes from."""
    total, epochs = whole.summary["steps"], whole.summary["epochs"]
    end = math.ceil(total / epochs - 1e-9)  # of the first epoch
    between = next(step for step in range(end + 1, total) if step % REPORT)
    changes = [step for step in changed_now_and_then(whole.states) if 1 < step < total]
    cuts = [
        (("after_2", 1), "first step"),  # killed within the next step
        ((f"after_{between + 1}", between), BETWEEN),
        ((f"in_evaluation_{end}", end - 1), EVALUATION),
        ((f"after_{end + 1}", end), "end of an epoch"),
        *(((f"after_{step + 1}", step), CHANGE) for step in changes[:1]),
    ]
    kinds = {}
    for cut, kind in cuts:
        kinds[cut] = f"{kinds[cut]}; {kind}" if cut in kinds else kind
    return kinds


def check_cut(whole, name, step):
    """Resume a copy and compare everything at the end with the whole run."""
    run = whole.copies / name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Copies, "silent", True)
        summary = go_on(run)
    assert summary["resumed_at"] == [step]
    check_same(run, summary, whole.directory, whole.summary)
    _check_state(CheckpointStore(run / "checkpoints").load("last"), whole.states[whole.summary["steps"]])
    expected = {name: _untimed(values) for name, values in whole.summary["hooks"].items() if name != SAVING}
    assert {name: _untimed(summary["hooks"][name]) for name in expected} == expected
    for split in ("train", "validation", "test"):
        assert curves(run, split) == curves(whole.directory, split), split
    for animation in (whole.directory / "pictures").glob("*.gif"):
        assert (run / "pictures" / animation.name).read_bytes() == animation.read_bytes(), animation.name


def _check_state(found, expected):
    assert found.step == expected.step
    assert found.tensors.keys() == expected.tensors.keys()
    assert [key for key, value in expected.tensors.items() if value.tobytes() != found.tensors[key].tobytes()] == []
    for key in ("best", "final", "rolled_back", "returns", "data"):
        assert _untimed(found.state["run"][key]) == _untimed(expected.state["run"][key]), key
    for name, state in expected.state["hooks"].items():
        if name != SAVING:
            assert found.state["hooks"][name] == state, name


def _untimed(values):
    if not isinstance(values, Mapping):
        return values
    return {key: value for key, value in values.items() if not key.startswith("time/") and key != "host_seconds"}


def curves(run, split):
    """Return the curves of a split in TensorBoard, without times, by name."""
    events = EventAccumulator(str(run / "tensorboard" / split), size_guidance={"tensors": 0})
    events.Reload()
    found = {}
    for tag in events.Tags()["tensors"]:
        points = events.Tensors(tag)
        if not tag.startswith("time/") and len(points[0].tensor_proto.float_val) == 1:
            found[tag] = [(each.step, float(each.tensor_proto.float_val[0])) for each in points]
    return found


MASKS = ("frozen_mask", "incremental_quantization", "prune")
ALL = [Case(recipe, hook, parts) for parts in (1, 2) for recipe in RECIPES for hook in ("alone", *TECHNIQUES)]


@pytest.fixture
def directory(tmp_path):
    """Return a directory that is removed after its test: the runs of a matrix would fill a disk, and memory."""
    yield tmp_path / "runs"
    shutil.rmtree(tmp_path)
    gc.collect()


def test_run_with_micro_batches_masks_and_animation_resumes(directory):
    whole = make_whole(Case("baseline", "prune", 2, ("hooks.pictures.animate=true",)), directory)
    assert list(whole.directory.glob("pictures/*.gif"))
    cuts = {cut: kind for cut, kind in choose_cuts(whole).items() if CHANGE in kind or EVALUATION in kind}
    assert len(cuts) == 2
    for name, step in cuts:
        check_cut(whole, name, step)


@pytest.mark.long
@pytest.mark.parametrize("case", ALL, ids=[f"{case.recipe}-{case.hook}-{case.parts}" for case in ALL])
def test_recipe_with_a_hook_resumes_from_every_cut(case, directory):
    try:
        whole = make_whole(case, directory)
    except UserError as error:
        assert not (directory / "whole").exists()
        line, shown = str(error), "".join(traceback.format_exception_only(error))
        assert "\n" not in line
        assert case.hook in shown or "trainer.accumulation_steps" in line, shown
        pytest.skip(f"refused: {line}")
    cuts = choose_cuts(whole)
    assert case.hook not in MASKS or any(CHANGE in kind for kind in cuts.values())
    for (name, step), kind in cuts.items():
        if case.parts == 1 or BETWEEN in kind or CHANGE in kind:
            check_cut(whole, name, step)
