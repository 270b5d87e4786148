"""What stands in the text tab."""

from __future__ import annotations

import json

import pytest

from hooks.monitors.dashboard.texts import environment_as_markdown


def test_the_environment_is_a_table(tmp_path) -> None:
    facts = {
        "python": "3.11",
        "packages": {"keras": "3.15"},
        "plugins": {"moons": "1.0"},
        "gpus": [],
        "git_commit": None,
        "cpu_flags": ["avx", "f|a"],
    }
    (tmp_path / "environment.json").write_text(json.dumps(facts))
    assert environment_as_markdown(tmp_path).splitlines() == [
        "| | |",
        "|---|---|",
        "| python | 3.11 |",
        "| gpus | none |",
        "| git_commit | none |",
        "| cpu_flags | avx, f\\|a |",
        "| keras | 3.15 |",
        "| moons | 1.0 |",
    ]


@pytest.mark.parametrize("none", [{}, {"plugins": {}}, {"packages": {}, "plugins": {}}])
def test_no_plugins_are_no_row(tmp_path, none) -> None:
    (tmp_path / "environment.json").write_text(json.dumps({"python": "3.11", **none}))
    assert environment_as_markdown(tmp_path).splitlines()[2:] == ["| python | 3.11 |"]


@pytest.mark.parametrize("content", [None, "not JSON"])
def test_without_a_readable_file_there_is_no_text(tmp_path, content) -> None:
    if content is not None:
        (tmp_path / "environment.json").write_text(content)
    assert environment_as_markdown(tmp_path) == ""
