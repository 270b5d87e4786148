"""The help lists what exists with its purpose, and costs nothing."""

from __future__ import annotations

import dataclasses
import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import train
from trainer.config.command import parse_command
from trainer.config.entry_help import entry_text
from trainer.config.listing import CONFIG_DIR, EXAMPLES, TITLES, help_text, purpose
from trainer.config.preflight import preflight
from trainer.config.schema import TrainerConfig

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


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_are_right(example: str) -> None:
    arguments = shlex.split(example)
    assert f"python train.py {example}" in help_text()
    if "--help" in arguments:
        assert train.asked_help(arguments)
    elif arguments[0].startswith("resume="):
        assert parse_command(arguments).overrides == (arguments[0],)
    else:
        assert preflight(parse_command([each for each in arguments if not each.startswith("run_dir")]))


def test_every_setting_of_the_schema_is_listed() -> None:
    text = " ".join(help_text(width=100).split())
    for field in dataclasses.fields(TrainerConfig):
        assert f" {field.name} {field.metadata['help']}" in text
    assert " monitor_mode whether a larger or a smaller value is better; max | min " in text


ENTRIES = [
    *(
        f"{group}.{path.stem}"
        for group in TITLES
        for path in (CONFIG_DIR / group).glob("*.yaml")
        if path.stem != "default"
    ),
    *("trainer", "recipe", "hooks", "data"),
]


def test_every_name_has_a_text_of_its_own() -> None:
    for name in ENTRIES:
        text = entry_text(name, width=80)
        assert max(len(line) for line in text.splitlines() if "=" not in line.split("  ")[-1]) <= 80, name
        group, _, option = name.partition(".")
        if not option:
            continue
        path = CONFIG_DIR / group / f"{option}.yaml"
        assert " ".join(text.split()).startswith(f"{name}: {purpose(path)}")
        assert f"configs/{group}/{option}.yaml" in text
        assert "python train.py " in text
        assert "  -" not in text


def test_a_text_shows_keys_defaults_and_comments() -> None:
    text = entry_text("hooks.prune", width=100)
    assert re.search(r"^ +hooks\.prune\.power=3\.0 +polynomial, splicing: 3 is the cubic schedule$", text, re.M)
    assert "command  python train.py recipe=baseline +hooks=prune" in text
    assert re.search(r"^ +data\.path=\?\?\?", entry_text("data.image_folder"), re.M)
    assert "recipe=baseline data=image_folder data.path=<path>" in entry_text("image_folder")
    assert re.search(r"^  trainer.monitor_mode=max$", entry_text("trainer"), re.M)
    recipe = entry_text("recipe=bnn", width=120)
    for line in ("paper +Hubara", "command +python train.py recipe=bnn", "expected +98"):
        assert re.search(f"^  {line}", recipe, re.M)
    assert "16 s on 2 cores" in entry_text("recipe.gradient_reversal", width=120)  # from the header's second line


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hooks.prun", "Did you mean 'hooks.prune'?"),
        ("prun", "Did you mean 'prune'?"),
        ("recipe.bn", "Did you mean 'recipe.bnn'?"),
        ("frozen_mask", "Expected one of: recipe.frozen_mask, hooks.frozen_mask."),
        ("zzz", "no such name. Expected one that python train.py --help lists."),
    ],
)
def test_a_name_that_does_not_exist_is_a_mistake(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--help", name]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["recipe=bnn", "--explain", "hooks"], ["recipe=bnn", "--cfg", "job"]]
)
def test_a_reader_that_leaves_gets_no_traceback(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "train.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_pipe_gets_plain_text() -> None:
    assert not re.search(r"[^\n\x20-\x7e]", help_text())


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
