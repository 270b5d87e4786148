"""The help lists what exists with its purpose, and costs nothing."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.config.listing import CONFIG_DIR, TITLES, help_text, purpose

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("group", TITLES)
def test_every_option_is_listed_with_its_purpose(group: str) -> None:
    text = " ".join(help_text(width=100).split())
    for path in (CONFIG_DIR / group).glob("*.yaml"):
        if path.stem != "default":
            assert re.search(rf"\b{path.stem} (\* )?{re.escape(purpose(path))}", text), path


def test_hooks_that_run_by_default_are_marked(tree: Path) -> None:
    text = help_text(tree)
    assert re.search(r"^  checkpoint \* ", text, re.M)
    assert re.search(r"^  progress \* +Show progress$", text, re.M)
    assert re.search(r"^  center_loss +-$", text, re.M), "a file without a purpose is listed all the same"
    assert "default" not in text.split("Hooks")[1].split("Data")[0].replace("by default", "")


def test_lines_keep_to_the_width() -> None:
    assert max(map(len, help_text(width=80).partition("Recipes")[2].partition("Flags")[0].splitlines())) <= 80


def test_the_purpose_is_the_first_comment_that_is_no_instruction(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text("# @package _global_\n#\n#  What it is for.\n# More.\na: 1\n")
    assert purpose(path) == "What it is for"
    path.write_text("a: 1\n# Too late\n")
    assert purpose(path) == ""


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_takes_less_than_a_second_and_imports_nothing_heavy(flag: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-X", "importtime", "train.py", "recipe=bnn", flag]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
    assert done.stdout.startswith("Usage: python train.py")
    imported = set(re.findall(r"\| +([\w.]+)$", done.stderr, re.M))
    assert "trainer.config.listing" in imported
    assert not {"tensorflow", "keras", "numpy", "hydra", "omegaconf", "yaml"} & imported
