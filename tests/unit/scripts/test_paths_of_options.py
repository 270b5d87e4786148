"""Paths that scripts are given: one line and exit code 2 where they lead nowhere, whatever they look like."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

PATHS = {"nobody's home": "~no-such-user/x", "too long": "a" * 300, "not there": "nowhere/at/all"}
OPTIONS = [
    ("benchmark", "what=training chart={path}/a.png"),
    ("benchmark", "what=training environments={path}"),
    ("benchmark", "what=training out={path}/a.json"),
    ("compare", "{path}"),
    ("compare", "{path} metrics=[{path}]"),
    ("evaluate", "run={path}"),
    ("evaluate", "model={path}"),
    ("export", "run={path}"),
    ("predict", "model={path}.keras images=."),
    ("predict", "model={path}.packed.safetensors images={path}.npy"),
    ("predict", "model={path}.keras images=[{path}.png,{path}.jpg]"),
    ("reproduce", "mnist={path}"),
    ("reproduce", "targets={path}"),
    ("sensitivity", "run={path}"),
    ("verify", "run={path}"),
]


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize(("script", "arguments"), OPTIONS, ids=[" ".join(each) for each in OPTIONS])
def test_a_path_that_leads_nowhere_is_one_line(script, arguments, path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    code = importlib.import_module(f"scripts.{script}").main(arguments.format(path=path).split())
    told = capsys.readouterr()
    assert code == 2
    (line,) = told.err.strip().splitlines()
    assert line.startswith("Error: ")
    assert path in line
    assert not list(tmp_path.iterdir())
