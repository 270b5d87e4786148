"""The installed package: only `hookline/`, which runs from any directory, whatever files the user has there."""

import email
import json
import os
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from hookline.trainer.run.results import read_summary
from tests.support.workers import ROOT, run_python

ROOMS = ("configs", "deploy", "hooks", "recipes", "scripts", "trainer")
LEFT_OUT = ("scripts/benchmark", "scripts/catalogue", "scripts/documentation/", "scripts/kill_runs", "scripts/repro")
QUIET = ("hooks.tensorboard=null", "hooks.pictures=null", "hooks.projector=null")
SHORT = ("recipe=baseline", "trainer.epochs=1", "trainer.compile=off", *QUIET)
FOREIGN = ("trainer.py", "train.py", "hooks.py", "cli.py", "running.py", "deploy.py", "recipes/__init__.py")
FOREIGN += ("scripts/__init__.py", "scripts/export.py", "errors.py", "schema.py")


@pytest.fixture(scope="module")
def packaged():
    return {each.distribution_path for each in WheelBuilder(str(ROOT)).recurse_included_files()}


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_wheel_contains_all_modules_and_configs_except_project_tools(packaged):
    files = [path for room in ROOMS for kind in ("py", "yaml") for path in (ROOT / room).rglob(f"*.{kind}")]
    names = {path.relative_to(ROOT).as_posix() for path in files}
    wanted = {f"hookline/{name}" for name in names if not name.startswith(LEFT_OUT)}
    own = {path.relative_to(ROOT).as_posix() for path in (ROOT / "hookline").glob("*.py")}
    assert packaged == wanted | own | {"hookline/py.typed"}
    assert {"hookline/__main__.py", "hookline/train.py", "hookline/scripts/slurm.yaml"} <= packaged
    modules = [f"hookline.{each.strip('/').replace('/', '.')}" for each in LEFT_OUT]
    for name in packaged:
        text = (ROOT / name).read_text() if name.endswith(".py") else ""
        assert not [module for module in modules if module in text], name


def test_command_and_cuda_extra_are_declared():
    assert project()["scripts"] == {"hookline": "hookline.cli:main"}
    (cuda,) = project()["optional-dependencies"]["cuda"]
    (tensorflow,) = (each for each in project()["dependencies"] if each.startswith("tensorflow>"))
    assert cuda.replace("[and-cuda]", "") == tensorflow


def run(arguments, cwd, site=None, code=0):
    """Run Python as a user of the installed package does: with nothing from this clone earlier on the path."""
    environment = {**os.environ, "PYTHONPATH": str(site) if site else ""}
    return "".join(run_python(*arguments, code=code, cwd=cwd, env=environment, timeout=600))


def build(source, place, target):
    run(["-P", "-m", "hatchling", "build", "-t", target, "-d", place], source)
    (made,) = place.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("dist"), "wheel")


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--target", str(place))
    run(["-m", "pip", "install", *options, wheel], place)
    return place


@pytest.mark.full
def test_built_wheel_matches_selection_and_rebuild_from_sdist(wheel, packaged, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith("/METADATA"))
        read = email.message_from_bytes(archive.read(metadata))
    folder = metadata.partition("/")[0]
    assert folder == f"hookline-{project()['version']}.dist-info"
    assert {name for name in names if not name.startswith(f"{folder}/")} == packaged
    assert set(read.get_all("Provides-Extra")) == set(project()["optional-dependencies"])
    with tarfile.open(build(ROOT, tmp_path / "sdist", "sdist")) as opened:
        opened.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("hookline-*")
    again = build(source, tmp_path / "wheel", "wheel")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())
        assert [name for name in first.namelist() if first.read(name) != second.read(name)] == []


@pytest.mark.full
def test_installed_package_runs_beside_user_files_of_the_same_names(site, tmp_path):
    def command(*arguments, code=0):
        return run(["-m", "hookline", *arguments], tmp_path, site, code)

    for name in FOREIGN:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise RuntimeError('this is the file of the user')\n")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "train.yaml").write_text("x: [\n")
    own = (ROOT / "recipes" / "OWN.md").read_text().split("# my_models.py\n")[1].split("```")[0]
    (tmp_path / "my_models.py").write_text(own)
    seen = run(["-P", "-c", "import hookline; print(hookline.__file__)"], tmp_path, site)
    assert Path(seen.strip()).is_relative_to(site)
    version = run([site / "bin" / "hookline", "--version"], tmp_path, site)
    assert version == f"hookline {project()['version']}\n"
    assert "hookline train --help" in command("train", "seed=1", code=2)
    model = ("plugins=[my_models]", "model=custom", "model._target_=my_models.small_cnn", "+model.width=4")
    said = command("launch", "workers=2", *SHORT, *model, "trainer.max_seconds=0", "run_dir=own")
    assert "hookline train resume=own" in said
    assert read_summary(tmp_path / "own")["workers"]["count"] == 2
    command("resume", "own", "trainer.strategy=none", "trainer.max_seconds=null", model[0])
    assert read_summary(tmp_path / "own")["status"] == "completed"
    assert json.loads((tmp_path / "own" / "environment.json").read_text())["git_commit"] is None
    said = command("train", "-m", *SHORT, "model.units=[16]", "seed=1", "--jobs", "1", "--sweep", "sweep")
    assert "hookline compare sweep" in said
    (swept,) = (tmp_path / "sweep").glob("0*/")
    assert read_summary(swept)["status"] == "completed"
    command("export", f"run={swept}")
    assert (swept / "export" / "model.keras").is_file()
