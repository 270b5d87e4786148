"""A finished run, built again from its directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from scripts import export, sensitivity, verify
from tests.support.command import run_small
from trainer.errors import UserError
from trainer.run.checkpoint import CheckpointStore
from trainer.run.finished import read_config, restore
from trainer.run.state import run_variables


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("finished") / "run"
    run_small(
        "baseline", "+hooks=prune", "hooks.prune.schedule=one_shot", "optimizer.use_ema=true",
        "trainer.monitor_mode=max", "hooks.advisor=null", run_dir=directory,
    )  # fmt: skip
    return directory


@pytest.mark.parametrize("tag", ["best", "last"])
def test_every_variable_has_the_value_of_the_checkpoint(run: Path, tag: str):
    restored = restore(str(run), read_config(str(run)), tag)
    saved = CheckpointStore(run / "checkpoints").load(tag)
    trainer = restored.parts.trainer
    accumulators = restored.parts.loop.accumulators.variable
    variables = run_variables(trainer.networks.values(), trainer.hooks, accumulators)
    assert (restored.checkpoint, restored.step) == (tag, saved.step)
    assert variables.keys() == saved.tensors.keys()
    assert any(key.startswith("hook/prune/mask/") for key in variables)
    for key, variable in variables.items():
        if key != "accumulators":
            np.testing.assert_array_equal(variable.numpy(), saved.tensors[key])
    assert not accumulators.numpy().any()


def test_without_a_tag_it_is_the_best_and_evaluates_as_the_run_did(run: Path):
    summary = json.loads((run / "summary.json").read_text())
    restored = restore(str(run), read_config(str(run)))
    assert (restored.checkpoint, restored.step) == ("best", summary["best"]["step"])
    assert restored.step < summary["steps"]  # of two checkpoints that differ
    found = restored.parts.validation.run(restored.step)
    for name, value in found.items():
        assert value == pytest.approx(summary["best"]["values"][name], rel=1e-5)
    assert restored.parts.test.run(restored.step)["metric/accuracy"] == summary["test"]["metric/accuracy"]


def test_a_run_without_a_best_checkpoint_is_restored_from_the_last(tmp_path):
    run_small("baseline", "hooks.checkpoint.keep_best=false", "trainer.epochs=1", run_dir=tmp_path / "run")
    config = read_config(str(tmp_path / "run"))
    assert restore(str(tmp_path / "run"), config).checkpoint == "last"
    with pytest.raises(UserError, match="Unknown checkpoint 'best'. Expected one of: last."):
        restore(str(tmp_path / "run"), config, "best")


def test_where_the_run_started_from_does_not_matter_any_more(run: Path, tmp_path):
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text().replace("init_from: null", "init_from: x"))
    assert "init_from: x" in (tmp_path / "config.yaml").read_text()
    assert read_config(str(tmp_path)) == read_config(str(run))


def test_what_is_no_run_is_refused(run: Path, tmp_path):
    with pytest.raises(UserError, match=r"run=.* has no config.yaml that can be read. Expected a run directory."):
        read_config(str(tmp_path))
    (tmp_path / "config.yaml").write_text("[1, 2]\n")
    with pytest.raises(UserError, match="is not the config of a run"):
        read_config(str(tmp_path))
    with pytest.raises(UserError, match="has no checkpoints. Expected a run with the hook 'checkpoint'."):
        restore(str(tmp_path), read_config(str(run)))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "index.json").write_text("{")
    with pytest.raises(
        UserError, match=r"has no checkpoints. .*index.json is damaged: it is not JSON. .* Expected a run"
    ):
        restore(str(tmp_path), read_config(str(run)))


def test_a_damaged_index_is_told_and_the_manifests_say_which_is_the_best(run: Path, tmp_path):
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    best = restore(str(run), read_config(str(run))).step
    (copy / "checkpoints" / "index.json").write_text("{")
    with pytest.warns(UserWarning, match=r"index.json is damaged: it is not JSON. The manifests say which"):
        restored = restore(str(copy), read_config(str(copy)))
    assert (restored.checkpoint, restored.step) == ("best", best)


def test_packages_that_a_run_names_are_used_only_when_the_user_names_them_too(run: Path, tmp_path: Path):
    config = (run / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(config.replace("plugins: []", "plugins: [pip]"))
    for given in ((), ["another"]):
        with pytest.raises(UserError, match=r"plugins=\[pip\], which run= does not take from its file"):
            read_config(str(tmp_path), given)
    with pytest.raises(UserError, match="Expected a list of packages"):
        read_config(str(tmp_path), "pip")
    assert read_config(str(tmp_path), ["pip"])["plugins"] == ["pip"]


@pytest.mark.parametrize("script", [export, sensitivity, verify])
def test_the_scripts_take_them_from_their_command_line(script, run: Path, tmp_path: Path, capsys):
    config = (run / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(config.replace("plugins: []", "plugins: [pip]"))
    shutil.copytree(run / "checkpoints", tmp_path / "checkpoints")
    for name in ("overrides.txt", "environment.json", "metrics.jsonl", "summary.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    extra = ["replay=1"] if script is verify else []
    assert script.main([f"run={tmp_path}", *extra]) == 2
    assert "Expected plugins=[pip] beside it, if you trust it" in capsys.readouterr().err
    assert script.parse([f"run={tmp_path}", "plugins=[pip]"]).plugins == ["pip"]
