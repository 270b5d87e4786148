"""The script that makes environments for other frameworks: one clear line, and nothing half-made counts as whole."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from scripts.benchmarks.contender import Contender, Settings, Work
from scripts.benchmarks.process import interpreter

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "benchmarks" / "environments.sh"
NAMES = ("torch", "larq", "tfmot")
# Stands for Python: it makes environments that hold itself, and installs nothing; $FAILS names packages that it cannot.
STUB = """#!/bin/sh
case $1$2 in
-mvenv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
-mpip)
    echo "$*" >>"$LOG"
    case "$*" in *"${FAILS:-nothing}"*) echo "ERROR: No matching distribution found" >&2; exit 1 ;; esac ;;
esac
"""


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.write_text(STUB)
    path.chmod(0o755)
    return path


def call(*arguments: object, log: Path | None = None, **variables: object) -> tuple[int, str, str]:
    given = {key: str(value) for key, value in variables.items()}
    environment = {**os.environ, "LOG": str(log or os.devnull), **given}
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT), *map(str, arguments)], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def refused(*arguments: object, **variables: object) -> str:
    code, output, errors = call(*arguments, **variables)
    assert (code, output, errors.count("\n")) == (2, "", 1)
    return errors


def found(name: str, folder: Path) -> Path | None:
    def prepare(settings: Settings) -> Work:
        raise NotImplementedError

    return interpreter(Contender("a", "b", "c", prepare, environment=name), str(folder))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "got 0 arguments. Expected a folder: sh scripts/benchmarks/environments.sh <folder>"),
        (("a", "b"), "got 2 arguments"),
        (("--help",), "got '--help'. Expected a folder"),
        (("",), "got ''. Expected a folder"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: tuple[str, ...], message: str, stub: Path) -> None:
    assert f"environments: {message}" in refused(*arguments, HOOKLINE_PYTHON=stub)


def test_a_place_that_is_no_folder_is_one_line(stub: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "file cannot be made a folder" in refused(tmp_path / "file", HOOKLINE_PYTHON=stub)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("variables", [{"HOOKLINE_PYTHON": "/absent/python"}, {"PATH": "/absent"}], ids=str)
def test_without_a_python_nothing_is_made(variables: dict[str, str], tmp_path: Path) -> None:
    assert "3.11 or 3.12 with venv" in refused(tmp_path / "new", **variables)
    assert not (tmp_path / "new").exists()


def test_a_second_call_makes_nothing_anew(stub: Path, tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "a folder"
    assert call(folder, log=log, HOOKLINE_PYTHON=stub)[0] == 0
    installed = log.read_text()
    assert installed.count("install") == len(NAMES)
    assert [found(name, folder) for name in NAMES] == [folder / name / "bin" / "python" for name in NAMES]
    code, output, _ = call(folder, log=log, HOOKLINE_PYTHON=stub)
    assert (code, output.count("is there already")) == (0, len(NAMES))
    assert log.read_text() == installed


def test_what_an_installation_left_half_made_does_not_count_and_is_started_over(stub: Path, tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "new"
    code, _, errors = call(folder, log=log, HOOKLINE_PYTHON=stub, FAILS="larq==")
    assert code == 2
    assert errors.splitlines()[-1].startswith(f"environments: the installation into {folder}/larq failed; the reason")
    assert found("torch", folder)
    assert found("larq", folder) is None
    assert not (folder / "tfmot").exists()
    (folder / "larq" / "left").touch()
    log.unlink()
    assert call(folder, log=log, HOOKLINE_PYTHON=stub)[0] == 0
    assert log.read_text().count("install") == 2
    assert all(found(name, folder) for name in NAMES)
    assert not (folder / "larq" / "left").exists()


def test_a_folder_of_somebody_else_is_left_alone(stub: Path, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "mine").touch()
    assert "torch exists and is no virtual environment. Move it away" in refused(tmp_path, HOOKLINE_PYTHON=stub)
    assert (tmp_path / "torch" / "mine").exists()
