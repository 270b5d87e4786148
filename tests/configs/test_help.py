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
from trainer.config.listing import CONFIG_DIR, EXAMPLES, SETTINGS, TITLES, help_text, options_of, purpose
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


def test_options_are_the_files_that_a_name_chooses(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("default", "some", "other", "inner/deep"):
        (tmp_path / f"{name}.yaml").write_text(f"# About {name}\ndefaults: [some]\n")
    assert list(options_of(tmp_path)) == [("other", "About other"), ("some *", "About some")]


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


EPOCHS = "int or null; passes over the training split; at least 1; at most 1000000000"


@pytest.mark.parametrize(
    ("name", "line", "about"),
    [
        ("seed", "seed=0", "int; everything random follows from it; at least 0; at most 2147483647"),
        ("plugins", "plugins=[]", "list[str]; packages that a _target_ may name"),
        ("run_dir=mine", "run_dir=null", "str or null; where the run is written; null: runs/<recipe>/<date_time>"),
        ("trainer.epochs", "trainer.epochs=null", EPOCHS),
        ("epochs", "trainer.epochs=null", EPOCHS),
    ],
)
def test_a_setting_has_a_text_of_its_own(name: str, line: str, about: str) -> None:
    title, empty, *rest = entry_text(name, width=100).splitlines()
    assert title in SETTINGS.values()
    assert (empty, [each.strip() for each in rest]) == ("", [line, about])


def test_every_name_that_the_help_lists_has_a_text() -> None:
    lists = help_text(width=500).partition("Flags")[0]
    listed = re.findall(r"^  ([a-z]\w+)(?: \*)? {2,}\S", lists, re.M)
    assert {"bnn", "prune", "custom", "seed", "epochs"} < set(listed)
    for name in listed:
        if listed.count(name) == 1:  # of several, the message names all
            assert entry_text(name, width=500)


@pytest.mark.parametrize("name", ["hooks.prune.power", "hooks.prune.power=3", "+hooks.prune.final_sparsity.dense"])
def test_a_key_of_an_option_has_the_text_of_the_option(name: str) -> None:
    assert entry_text(name) == entry_text("hooks.prune")


def shown_command(name: str) -> str:
    """Return the command that the text about a name shows."""
    return re.findall(r"^  command +python train\.py (.+)$", entry_text(name, width=500), re.M)[0]


@pytest.mark.parametrize(
    ("groups", "count"), [(("data", "model"), 18), pytest.param(tuple(TITLES), 60, marks=pytest.mark.long)]
)
def test_every_command_that_leaves_nothing_to_fill_in_is_right(groups: tuple[str, ...], count: int) -> None:
    commands = [shown_command(name) for name in ENTRIES if "." in name and name.startswith(groups)]
    complete = [shlex.split(each) for each in commands if "<" not in each]
    assert len(complete) >= count
    for line in complete:
        assert train.check(line, directories=False), line


@pytest.mark.parametrize("name", ["data.custom", "model.custom"])
def test_a_command_for_code_of_your_own_names_all_that_is_needed(name: str) -> None:
    command = re.sub("<(package|module)>", "tests", shown_command(name))
    command = re.sub("<(class|function)>", "conftest", command)
    assert "<" not in command
    (job,) = preflight(parse_command(shlex.split(command)))
    assert "tests.conftest" in str(job.config[name.partition(".")[0]])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hooks.prun", "Did you mean 'hooks.prune'?"),
        ("prun", "Did you mean 'prune'?"),
        ("recipe.bn", "Did you mean 'recipe.bnn'?"),
        ("frozen_mask", "Expected one of: recipe.frozen_mask, hooks.frozen_mask."),
        ("epoch", "Did you mean 'epochs'?"),
        ("trainer.epoch", "Did you mean 'trainer.epochs'?"),
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
