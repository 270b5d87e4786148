"""Every recipe opens with purpose, paper, command and what comes of it; the command composes, the figures are ours."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from scripts.documentation.recipe_header import RecipeHeader, missing_figures, read_header
from trainer.config.command import parse_command
from trainer.config.preflight import preflight_each

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "configs" / "recipe").glob("*.yaml"))
RESULTS = ROOT / "recipes" / "results.json"
TIME = re.compile(r"\b\d+ (s|min)( on 2 cores)?$")


@pytest.fixture(scope="module")
def headers() -> dict[str, RecipeHeader]:
    return {path.stem: read_header(path) for path in RECIPES}


def test_every_header_names_a_paper_seeds_and_time(headers: dict[str, RecipeHeader]) -> None:
    for name, header in headers.items():
        assert header.paper == "none." or re.search(r"\b(19|20)\d\d\b", header.paper), name
        assert "seed" in header.expected, name
        assert "on 2 cores" in header.expected, name
        assert TIME.search(header.expected), f"{name}: the line ends with the time, such as '3 s on 2 cores'"


def test_every_command_composes_to_its_recipe(headers: dict[str, RecipeHeader], tmp_path: Path) -> None:
    words = [shlex.split(re.sub("<[^>]*>", str(tmp_path), header.command)) for header in headers.values()]
    assert {tuple(each[:2]) for each in words} == {("python", "train.py")}
    jobs = preflight_each(parse_command([]), [each[2:] for each in words])
    assert [job.recipe for job in jobs] == list(headers)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_expected_figures_are_those_that_were_measured(path: Path) -> None:
    rows = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    assert missing_figures(read_header(path), rows) == []
