"""--explain says what set a value, and gives the value that Hydra composes, for every key."""

import pytest
from omegaconf import OmegaConf

from hookline.scripts.explain import explain
from hookline.trainer.config.command import CONFIG_DIR, Command, open_composer, parse_command, parse_overrides
from hookline.trainer.config.keys import chain_of, layers_of
from hookline.trainer.config.preflight import preflight
from hookline.trainer.config.schema import leaves
from tests.support.refusals import assert_refused, refusal

LINES = [
    ["recipe=sgan"],
    ["recipe=[bnn,frozen_mask]", "hooks.prune.final_sparsity={dense_.*: 0.9}", "hooks.early_stopping=null"],
    ["recipe=bnn", "+augment=[crop,standard_digits]", "+hooks=[ema,prune]", "hooks.ema={decay: 0.5}", "data=mnist"],
]


def within(config, path):
    named = {str(name): value for name, value in config.items()}
    if path in named:
        return named[path]
    (name,) = [name for name in named if path.startswith(f"{name}.") and isinstance(named[name], dict)]
    return within(named[name], path.removeprefix(f"{name}."))


@pytest.fixture
def explained(tree):
    return lambda *arguments: explain(parse_command(list(arguments)), tree)


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_each_chain_ends_with_the_composed_value_and_names_its_lines(line):
    with open_composer(Command(())) as composer:
        composed = OmegaConf.to_container(composer.compose(line))
        layers = layers_of(parse_overrides(line, composer.loader), composer)
    found = dict(leaves(composed))
    assert len(found) > 60
    for leaf in found:
        chain = chain_of(leaf, layers)
        assert not chain[-1].removes, leaf
        if chain[-1].value != {}:
            assert chain[-1].value == within(composed, leaf), leaf
        for step in chain:
            name, _, number = step.place.rpartition(":")
            if name.endswith((".yaml", ".py")) and number.isdecimal():
                text = (CONFIG_DIR.parent / name).read_text().splitlines()[int(number) - 1]
                assert step.path.rpartition(".")[2] in text, (leaf, step.place)
            else:
                assert step.place.startswith(("the command line, ", "trainer/config/schema.py")), (leaf, step.place)


def test_node_lists_each_key_and_a_removed_key_says_so(explained):
    dotted = "model.activation={dense_.*: 0.9}"
    text = explained("recipe=bnn", "hooks.bnn_rounding.clip=2", dotted, "--explain", "hooks.bnn_rounding")
    rows = {line.split()[0]: line.split("  ")[-1].strip() for line in text.splitlines()[1:]}
    assert rows["hooks.bnn_rounding.clip"] == "the command line, hooks.bnn_rounding.clip=2"
    assert rows["hooks.bnn_rounding.layers"].endswith("hooks/bnn_rounding.yaml:3")
    assert len(rows) == 6
    text = explained("recipe=bnn", dotted, "--explain", "model.activation.dense_.*")
    assert text.startswith("model.activation.dense_.* = 0.9\n")
    for how in ("hooks.progress=null", "~hooks.progress"):
        text = explained("recipe=bnn", how, "--explain", "hooks.progress.every_seconds")
        assert text.startswith("hooks.progress.every_seconds is not part of this run\n")
        assert "removes hooks.progress" in text.splitlines()[-1]


def test_resumed_run_shows_its_own_config(tree, tmp_path):
    begun = ["recipe=bnn", "optimizer.learning_rate=0.5", "+hooks=center_loss", "+augment=both"]
    (job,) = preflight(parse_command(begun), tree)
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(job.config))
    (tmp_path / "overrides.txt").write_text("\n".join(begun))

    def explained(*arguments):
        return explain(parse_command([f"resume={tmp_path}", *arguments]), tree)

    rate, threads = explained("trainer.threads=2", "--explain", "optimizer.learning_rate,trainer.threads").split("\n\n")
    assert rate.startswith("optimizer.learning_rate = 0.5\n")
    assert f"set by {tmp_path / 'config.yaml'}:" in rate
    assert rate.endswith("the run was begun with optimizer.learning_rate=0.5")
    assert threads.startswith("trainer.threads = 2\n")
    assert "the command line, trainer.threads=2" in threads
    assert "begun" not in explained("--explain", "trainer.epochs")
    assert explained("--explain", "hooks.center_loss.weight").endswith("  the run was begun with +hooks=center_loss")
    assert explained("--explain", "augment.flip.probability").endswith("  the run was begun with +augment=both")
    assert_refused("'recipe' chooses among files and has no value", explained, "--explain", "recipe")
    assert_refused("plugins=null received", explained, "plugins=null", "--explain", "seed")


def test_mistakes_in_explain_are_reported(explained):
    for line, words in {
        "recipe=bnn --explain model.units.7": "Expected one of: model.units.0, model.units.1.",
        "recipe=bnn -m --explain seed": "Expected it without -m and --run.",
        "recipe=bnn trainer.epoch=3 --explain seed": "Did you mean 'trainer.epochs'?",
    }.items():
        assert words in refusal(explained, *line.split()), line
