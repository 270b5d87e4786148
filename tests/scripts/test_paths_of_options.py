"""Paths that scripts are given: one line and exit code 2 where they lead nowhere, whatever they look like."""

from __future__ import annotations

import importlib

import pytest

PATHS = ("~no-such-user/x", "a" * 300, "nowhere/at/all")
OPTIONS = {
    "benchmark": ["what=training chart={}/a.png", "what=training environments={}", "what=training out={}/a.json"],
    "compare": ["{}", "{} metrics=[{}]"],
    "evaluate": ["run={}", "model={}"],
    "export": ["run={}"],
    "predict": ["model={}.keras images=.", "model={}.packed.safetensors images={}.npy"],
    "reproduce": ["mnist={}", "targets={}"],
    "sensitivity": ["run={}"],
    "verify": ["run={}"],
}


@pytest.mark.parametrize("script", OPTIONS)
def test_a_path_that_leads_nowhere_is_one_line(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for arguments in OPTIONS[script]:
        for path in PATHS:
            assert importlib.import_module(f"scripts.{script}").main(arguments.replace("{}", path).split()) == 2
            (line,) = capsys.readouterr().err.strip().splitlines()
            assert line.startswith("Error: ")
            assert path in line
            assert not list(tmp_path.iterdir())
