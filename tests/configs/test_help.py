"""The help lists every option with its purpose."""

import dataclasses
import re
import shlex

import pytest

from hookline import train
from hookline.scripts import help as module
from hookline.scripts.help import CONFIG_DIR, EXAMPLES, TITLES, entry_text, help_text, purpose
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.config.schema import TrainerConfig


@pytest.fixture(autouse=True)
def wide(monkeypatch) -> None:
    """Make lines so wide that none is wrapped."""
    monkeypatch.setattr(module, "terminal_width", lambda: 500)


def test_help_lists_every_option_with_purpose_and_every_text_has_a_command():
    listed = " ".join(help_text().split())
    for group in TITLES:
        for path in (CONFIG_DIR / group).glob("*.yaml"):
            if path.stem != "default":
                assert re.search(rf"\b{path.stem} (\* )?{re.escape(purpose(path))}", listed), path
                text = entry_text(name := f"{group}.{path.stem}")
                assert " ".join(text.split()).startswith(f"{name}: {purpose(path)}")
                assert f"configs/{group}/{path.name}" in text
                assert re.search(r"^  command +python train\.py .*recipe=\w+", text, re.M)
    for field in dataclasses.fields(TrainerConfig):
        assert f" {field.name} {field.metadata['help']}" in listed
    assert not re.search(r"[^\n\x20-\x7e]", help_text())


def test_help_examples_are_valid():
    for example in EXAMPLES:
        arguments = shlex.split(example)
        assert f"python train.py {example}" in help_text()
        if "--help" in arguments:
            assert train.asked_help(arguments)
        elif arguments[0].startswith("resume="):
            assert parse_command(arguments).overrides == (arguments[0],)
        else:
            assert preflight(parse_command([each for each in arguments if not each.startswith("run_dir")]))


def test_help_text_shows_keys_defaults_and_comments():
    text = entry_text("hooks.prune")
    assert re.search(
        r"^ +hooks\.prune\.power=3\.0 +polynomial, splicing: exponent; 3 is the cubic schedule$", text, re.M
    )
    assert text == entry_text("+hooks.prune.final_sparsity.dense")
    assert "16 s on 2 cores" in entry_text("recipe.gradient_reversal")  # from the header's second line
    seed = "seed=0 int; seed of everything random; at least 0; at most 2147483647"
    assert " ".join(entry_text("seed").split()).endswith(seed)
    listed = re.findall(r"^  ([a-z]\w+)(?: \*)? {2,}\S", help_text().partition("Flags")[0], re.M)
    assert {"bnn", "prune", "custom", "seed", "epochs"} < set(listed)
    assert all(entry_text(name) for name in listed if listed.count(name) == 1)


def test_help_for_an_unknown_name_is_an_error(capsys):
    for name, said in {
        "recipe.bn": "Did you mean 'recipe.bnn'?",
        "frozen_mask": "Expected one of: recipe.frozen_mask, hooks.frozen_mask.",
        "zzz": "no such name",
    }.items():
        assert train.main(["--help", name]) == 2
        assert said in capsys.readouterr().err
