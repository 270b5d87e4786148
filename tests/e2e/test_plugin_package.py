"""A plugin package, built and installed as users do it: its recipe, hook, model and data are used by name."""

import json
import shutil
import sys

import pytest

from hookline import train
from hookline.scripts import evaluate, export, plan
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.results import read_summary
from hookline.trainer.run.state import changed_environment
from tests.support.workers import ROOT, run_python

SOURCE = ROOT / "tests" / "support" / "moons_plugin"
INSTALL = ("install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index")
QUIET = ("hooks.tensorboard=null", "hooks.pictures=null", "hooks.projector=null")
SHORT = ("trainer.epochs=2", "trainer.compile=off", *QUIET)
MADE = 12
"""Steps of two epochs of 240 points in batches of 40."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(SOURCE, folder / "source")
    run_python("-m", "pip", *INSTALL, "--target", folder / "site", folder / "source")
    return folder / "site"


@pytest.fixture(scope="module")
def run(site, tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        assert train.main(["recipe=moons", *SHORT, "trainer.max_seconds=0", f"run_dir={directory}"]) == 0
        assert read_summary(directory)["status"] == "paused"
        assert train.main([f"resume={directory}", "trainer.max_seconds=null"]) == 0
    forget()
    return directory


@pytest.fixture
def installed(site, monkeypatch):
    monkeypatch.syspath_prepend(site)
    yield site
    forget()


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "hookline_moons"]:
        del sys.modules[name]


def test_paused_run_of_plugin_recipe_resumes_to_completion(run):
    summary = read_summary(run)
    assert (summary["recipe"], summary["status"], summary["steps"]) == ("moons", "completed", MADE)
    assert 0 < summary["resumed_at"][0] < MADE
    assert summary["final"]["weight_noise/steps"] > 1
    assert summary["params"]["total"] == 2 * 16 + 16 + 16 * 2 + 2
    store = CheckpointStore(run / "checkpoints")
    assert store.load("last").tensors["hook/weight_noise/steps"] == MADE, "the state of its hook went on, too"
    assert json.loads((run / "environment.json").read_text())["plugins"] == {"moons": "1.2.0"}


def test_plugin_run_is_exported_evaluated_and_planned(run, installed, capsys):
    assert export.main([f"run={run}"]) == 0
    assert list((run / "export").glob("*.keras"))
    assert evaluate.main([f"run={run}"]) == 0
    assert "lower" in capsys.readouterr().out, "the names of its classes"
    assert plan.main(["recipe=baseline", "data=moons", "model=bumps", "+hooks=weight_noise", *QUIET]) == 0
    assert "weight_noise" in capsys.readouterr().out


def test_run_is_refused_in_one_line_without_its_plugin_package(run, capsys):
    for main, argument in ((train.main, "resume"), (export.main, "run"), (evaluate.main, "run")):
        assert main([f"{argument}={run}"]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith("Error: The run uses hookline_moons.")
        assert "'hookline_moons' is not a plugin that is installed here" in line
    assert train.main(["recipe=moons"]) == 2
    assert "'moons'" in capsys.readouterr().err


def test_changed_plugin_version_is_reported_only_for_runs_that_use_it(run, site, tmp_path, monkeypatch):
    shutil.copytree(site, tmp_path / "site")
    (metadata,) = (tmp_path / "site").glob("*.dist-info/METADATA")
    metadata.write_text(metadata.read_text().replace("Version: 1.2.0", "Version: 1.3.0"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert changed_environment(run) == ["the plugin moons was 1.2.0 and is 1.3.0"]
    config = (run / "config.yaml").read_text().replace("hookline_moons", "hooks")
    (other := tmp_path / "other").mkdir()
    (other / "config.yaml").write_text(config)
    shutil.copy(run / "environment.json", other)
    assert changed_environment(other) == []
