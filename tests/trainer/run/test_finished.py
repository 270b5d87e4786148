"""A finished run, rebuilt from its directory."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hookline.hooks.frozen_mask import read_zeros
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.finished import read_config, restore
from hookline.trainer.run.initial_weights import load_run
from tests.support.command import run_small
from tests.support.refusals import assert_refused


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished") / "run"
    run_small(
        "baseline", "+hooks=prune", "hooks.prune.schedule=one_shot", "optimizer.use_ema=true",
        "trainer.monitor_mode=max", "hooks.advisor=null", run_dir=directory,
    )  # fmt: skip
    return directory


def test_restored_variables_have_the_values_of_the_checkpoint(run):
    restored = restore(str(run), read_config(str(run)), "last")  # the best is restored below
    saved = CheckpointStore(run / "checkpoints").load("last")
    variables, accumulators = restored.variables, restored.loop.accumulators.variable
    assert (restored.checkpoint, restored.step) == ("last", saved.step)
    assert variables.keys() == saved.tensors.keys()
    assert any(key.startswith("hook/prune/mask/") for key in variables)
    for key in variables.keys() - {"accumulators"}:
        np.testing.assert_array_equal(variables[key].numpy(), saved.tensors[key])
    assert not accumulators.numpy().any()


def test_restore_without_tag_uses_the_best_and_evaluates_like_the_run(run, tmp_path):
    summary = json.loads((run / "summary.json").read_text())
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    (copy / "checkpoints" / "index.json").write_text("{")
    restored = restore(str(copy), read_config(str(copy)))  # the manifests say which is the best
    (copy / "checkpoints" / f"step_{summary['steps']:08d}" / "manifest.json").write_text("{")
    for read, *given in ((restore, str(copy), read_config(str(copy)), "last"), (read_zeros, str(copy), None, []),
                         (load_run, [], copy / "checkpoints", "x")):  # fmt: skip
        assert_refused("manifest.json is damaged.* to use an older one", read, *given)
    assert (restored.checkpoint, restored.step) == ("best", summary["best"]["step"])
    assert restored.step < summary["steps"]  # the two checkpoints differ
    for name, value in restored.held_out["validation"].run(restored.step).items():
        assert value == pytest.approx(summary["best"]["values"][name], rel=1e-5)
    assert restored.held_out["test"].run(restored.step)["metric/accuracy"] == summary["test"]["metric/accuracy"]


def test_restore_needs_checkpoints_and_plugins_named_by_the_user(run, tmp_path):
    assert_refused("has no checkpoints", restore, str(tmp_path), read_config(str(run)))
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text().replace("init_from: null", "init_from: x"))
    assert "init_from: x" in (tmp_path / "config.yaml").read_text()
    assert read_config(str(tmp_path)) == read_config(str(run))  # init_from no longer matters
    config = (run / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(config.replace("plugins: []", "plugins: [pip]"))
    assert_refused(r"plugins=\[pip\]", read_config, str(tmp_path), ["another"])
    assert read_config(str(tmp_path), ["pip"])["plugins"] == ["pip"]
