"""--explain says what set a value; what it says is what Hydra composes, for every key of every recipe."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from trainer.config.command import Command, parse_command, parse_overrides
from trainer.config.compose import CONFIG_DIR, open_composer
from trainer.config.explain import explain
from trainer.config.origins import chain_of, layers_of, leaves_of
from trainer.config.preflight import preflight
from trainer.errors import UserError

ROOT = CONFIG_DIR.parent
RECIPES = sorted(path.stem for path in (CONFIG_DIR / "recipe").glob("*.yaml"))
LINES = [
    *([f"recipe={name}"] for name in RECIPES),
    ["recipe=[bnn,frozen_mask]", "hooks.prune.final_sparsity={dense_1: 0.9}", "hooks.early_stopping=null"],
    ["recipe=bnn", "+augment=[crop,standard_digits]", "~hooks.progress", "model=plain_cnn", "trainer={epochs: 3}"],
    ["recipe=frozen_mask", "hooks.prune.final_sparsity={dense_.*: 0.9}", "model.units.0=5"],
    ["recipe=baseline", "+hooks=[ema,prune]", "hooks.ema={decay: 0.5}", "model.units=[8,8]", "data=mnist"],
]


def within(config: Any, path: str) -> Any:
    """Return the value at a path of plain values; names may hold dots."""
    named = {str(name): value for name, value in config.items()}
    if path in named:
        return named[path]
    (name,) = [name for name in named if path.startswith(f"{name}.") and isinstance(named[name], dict)]
    return within(named[name], path.removeprefix(f"{name}."))


@pytest.fixture
def told(tree: Path) -> Callable[..., str]:
    """Explain by the small tree of configs."""
    return lambda *arguments: explain(parse_command(list(arguments)), tree)


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_the_last_of_each_chain_is_what_hydra_composes(line: list[str]) -> None:
    with open_composer(Command(())) as composer:
        composed = OmegaConf.to_container(composer.compose(line))
        layers = layers_of(parse_overrides(line, composer.loader), composer)
    leaves = leaves_of(composed, "")
    assert len(leaves) > 60
    for leaf in leaves:
        last = chain_of(leaf, layers)[-1]
        assert not last.removes, leaf
        if last.value != {}:
            assert last.value == within(composed, leaf), leaf


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_the_line_of_each_step_holds_the_key(line: list[str]) -> None:
    with open_composer(Command(())) as composer:
        composed = OmegaConf.to_container(composer.compose(line))
        layers = layers_of(parse_overrides(line, composer.loader), composer)
    for leaf in leaves_of(composed, ""):
        for step in chain_of(leaf, layers):
            file, _, number = step.place.rpartition(":")
            if file.endswith((".yaml", ".py")) and number.isdecimal():
                text = (ROOT / file).read_text().splitlines()[int(number) - 1]
                assert step.path.rpartition(".")[2] in text, (leaf, step.place)
            else:
                assert step.place.startswith(("the command line, ", "trainer/config/schema.py")), (leaf, step.place)


def test_each_file_is_struck_by_the_next(told: Callable[..., str]) -> None:
    text = told("recipe=prune", "trainer.epochs=9", "--explain", "trainer.epochs")
    lines = [line.split("  #")[0].rstrip() for line in text.splitlines()]
    assert lines[0] == "trainer.epochs = 9"
    assert lines[1] == "  passes over the training split"
    assert lines[2] == "  set by the command line, trainer.epochs=9"
    chain = [" ".join(line.split()) for line in lines[4:]]
    assert [step.partition(":")[0].rpartition("/")[2] for step in chain[:3]] == [
        "schema.py",
        "default.yaml",
        "prune.yaml",
    ]
    assert chain[2].endswith("prune.yaml:5 5 struck by the next")
    assert chain[3] == "the command line, trainer.epochs=9 9 stands"


def test_a_node_lists_each_key_with_its_origin(told: Callable[..., str]) -> None:
    text = told("recipe=bnn", "hooks.bnn_rounding.clip=2", "--explain", "hooks.bnn_rounding")
    rows = {line.split()[0]: line.split("  ")[-1].strip() for line in text.splitlines()[1:]}
    assert rows["hooks.bnn_rounding.clip"] == "the command line, hooks.bnn_rounding.clip=2"
    assert rows["hooks.bnn_rounding.layers"].endswith("hooks/bnn_rounding.yaml:3")
    assert len(rows) == 6


@pytest.mark.parametrize("how", ["hooks.progress=null", "~hooks.progress"])
@pytest.mark.parametrize("key", ["hooks.progress", "hooks.progress.every_seconds"])
def test_what_was_removed_says_so(told: Callable[..., str], how: str, key: str) -> None:
    text = told("recipe=bnn", how, "--explain", key)
    assert text.startswith(f"{key} is not part of this run\n")
    assert f"set by the command line, {how}\n" in text
    assert "hooks/progress.yaml:" in text
    assert "removes hooks.progress" in text.splitlines()[-1]


def test_a_key_with_a_dot_has_its_value_and_its_origin(told: Callable[..., str]) -> None:
    line = "model.activation={dense_.*: 0.9}"
    for key in ("model", "model.activation"):
        last = told("recipe=bnn", line, "--explain", key).splitlines()[-1]
        assert " ".join(last.split()) == f"model.activation.dense_.* = 0.9 the command line, {line}"
    text = told("recipe=bnn", line, "--explain", "model.activation.dense_.*")
    assert text.startswith("model.activation.dense_.* = 0.9\n")


def test_an_entry_of_a_list_is_explained_as_part_of_it(told: Callable[..., str]) -> None:
    entry = told("recipe=bnn", "model.units.1=5", "--explain", "model.units.1").splitlines()
    assert entry[0] == "model.units.1 = 5"
    assert [" ".join(line.split()).rpartition(".yaml:")[2] for line in entry[3:]] == [
        "2 256 struck by the next",
        "the command line, model.units.1=5 5 stands",
    ]
    whole = told("recipe=bnn", "model.units.1=5", "--explain", "model.units").splitlines()
    assert whole[0] == "model.units = [256,5]"
    assert " ".join(whole[-1].split()) == "the command line, model.units.1=5 [256,5] stands"
    first = told("recipe=bnn", "model.units.1=5", "--explain", "model.units.0").splitlines()
    assert (first[0], len(first)) == ("model.units.0 = 256", 2)


def test_an_entry_within_an_entry_is_set_in_its_place(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "deep.yaml").write_text("# @package _global_\nmodel: {units: [{a: 1, b: [2, 3]}, 4]}\n")
    line = ["recipe=[bnn,deep]", "model.units.0.b.1=5", "--config-dir", str(tmp_path), "--explain"]
    for key, value in {"": "[{a:1,b:[2,5]},4]", ".0.b": "[2,5]", ".0.b.1": "5", ".0.a": "1", ".1": "4"}.items():
        text = explain(parse_command([*line, f"model.units{key}"]), tree)
        assert text.startswith(f"model.units{key} = {value}\n")
        stands = [row for row in text.splitlines() if row.endswith("  stands")]
        assert all(f"  {value}  " in row for row in stands)


def test_a_later_list_takes_the_place_of_entries(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "short.yaml").write_text("# @package _global_\nmodel: {units: [7]}\n")
    line = ["recipe=[bnn,short]", "--config-dir", str(tmp_path)]
    text = explain(parse_command([*line, "--explain", "model.units.0,model.units.1"]), tree)
    first, second = text.split("\n\n")
    assert first.startswith("model.units.0 = 7\n")
    assert second.startswith("model.units.1 is not part of this run\n")
    assert second.splitlines()[-1].endswith("recipe/short.yaml:2  [7]  stands")


def test_lines_keep_to_the_terminal(told: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    lines = told("recipe=bnn", "--explain", "trainer.evaluate_every_epochs").splitlines()
    assert lines[1:3] == ["  epochs between two evaluations on the validation", "  split"]


def test_an_escaped_reference_is_a_text(told: Callable[..., str]) -> None:
    text = told("recipe=bnn", r"run_dir=\${seed}", "--explain", "run_dir")
    assert text.startswith("run_dir = ${seed}\n")
    assert "refers to another value" not in text


def test_several_keys_are_explained_in_turn(told: Callable[..., str]) -> None:
    text = told("recipe=bnn", "--explain", "seed,debug", "--explain", "model.units")
    first = [part.splitlines()[0] for part in text.split("\n\n")]
    assert first == ["seed = 0", "debug = false", "model.units = [256,256]"]


def test_own_configs_and_references_are_followed(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    own = tmp_path / "recipe" / "mine.yaml"
    own.write_text("# @package _global_\n# Mine\ndefaults: [baseline, _self_]\nseed: ${trainer.epochs} # as long\n")
    text = explain(parse_command(["recipe=mine", "--config-dir", str(tmp_path), "--explain", "seed"]), tree)
    assert text.startswith("seed = 60\n")
    assert f"set by {own}:4" in text
    assert "it refers to another value: ${trainer.epochs}" in text


def test_a_resumed_run_shows_its_own_config(tree: Path, tmp_path: Path) -> None:
    (job,) = preflight(parse_command(["recipe=bnn", "optimizer.learning_rate=0.5"]), tree)
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(job.config))
    (tmp_path / "overrides.txt").write_text("recipe=bnn\noptimizer.learning_rate=0.5\n")
    command = [f"resume={tmp_path}", "trainer.threads=2", "--explain", "optimizer.learning_rate,trainer.threads"]
    rate, threads = explain(parse_command(command), tree).split("\n\n")
    assert rate.startswith("optimizer.learning_rate = 0.5\n")
    assert f"set by {tmp_path / 'config.yaml'}:" in rate
    assert rate.endswith("the run was begun with optimizer.learning_rate=0.5")
    assert threads.startswith("trainer.threads = 2\n")
    assert "the command line, trainer.threads=2" in threads


def test_of_the_hooks_a_run_was_begun_with_only_their_own_keys_tell(tree: Path, tmp_path: Path) -> None:
    begun = ["recipe=bnn", "+hooks=center_loss", "+augment=both", "hooks.bnn_rounding.layers={dense_.*: 3}"]
    (job,) = preflight(parse_command(begun), tree)
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(job.config))
    (tmp_path / "overrides.txt").write_text("\n".join(begun))

    def told(*arguments: str) -> str:
        return explain(parse_command([f"resume={tmp_path}", *arguments]), tree)

    for key in ("hooks.progress.every_seconds", "hooks.checkpoint", "seed"):
        assert "begun" not in told("--explain", key)
    assert told("--explain", "hooks.center_loss.weight").endswith("  the run was begun with +hooks=center_loss")
    for key in ("augment.flip.probability", "augment.crop.padding"):  # `both` brings two of other names
        assert told("--explain", key).endswith("  the run was begun with +augment=both")
    assert told("hooks.bnn_rounding.layers={dense_.*: 3}", "--explain", "hooks.bnn_rounding.layers.dense_.*")
    own = tmp_path / "own" / "augment" / "mixed.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("defaults:\n  - crop\n  - /hooks: center_loss\n  - _self_\nflip: {probability: 0.3}\n")
    (tmp_path / "overrides.txt").write_text("recipe=bnn\n+augment=[mixed,gone]\n")
    for key in ("augment.flip.probability", "augment.crop.padding"):
        text = told("--config-dir", str(tmp_path / "own"), "--explain", key)
        assert text.endswith("  the run was begun with +augment=[mixed,gone]")
    for given in ([], ["recipe=bnn"]):
        with pytest.raises(UserError, match="'recipe' chooses among files and has no value"):
            told(*given, "--explain", "recipe")
    with pytest.raises(UserError, match="plugins=null received"):
        told("plugins=null", "--explain", "seed")


WRONG = {
    "recipe=bnn --explain optimizer.lerning_rate": "Did you mean 'learning_rate'?",
    "recipe=bnn --explain epochs": "Did you mean 'trainer.epochs'?",
    "recipe=bnn --explain hooks.chekpoint": "Did you mean 'checkpoint'?",
    "recipe=bnn --explain recipe": "'recipe' chooses among files and has no value.",
    "recipe=bnn --explain hydra": "Unknown key 'hydra'. Expected one of: augment, data,",
    "recipe=bnn --explain hydra.run": "Unknown key 'hydra.run'. Expected one of: augment, data,",
    "recipe=bnn --explain hydra.launcher": "Unknown key 'hydra.launcher'. Expected one of: augment, data,",
    "recipe=bnn --explain hydra/launcher": "Unknown key 'hydra/launcher'. Expected one of: augment, data,",
    "recipe=bnn --explain model.units.7": "Expected one of: model.units.0, model.units.1.",
    "recipe=bnn --explain trainr.epoch": "Did you mean 'trainer.epochs'?",
    "recipe=bnn --explain trainr.zzz": "Did you mean 'trainer'?",
    "recipe=bnn --explain +hooks=prune": "Expected a key without a value: --explain hooks.",
    "recipe=bnn --explain ~hooks.prune=null": "Expected a key without a value: --explain hooks.prune.",
    "recipe=bnn --explain seed=3": "Expected a key without a value: --explain seed.",
    "recipe=bnn --explain": "expected one argument",
    "recipe=bnn -m --explain seed": "Expected it without -m and --run.",
    "recipe=bnn --cfg job --explain seed": "Expected one of them.",
    "recipe=bnn trainer.epoch=3 --explain seed": "Did you mean 'trainer.epochs'?",
    "--explain seed": "No recipe was given.",
    "recipe=bnn seed=1,2 --explain seed": "lists several values",
    "recipe=bnn seed=1 seed=2 --explain seed": "'seed' is given 2 times.",
}


@pytest.mark.parametrize("line", WRONG)
def test_mistakes_are_named(told: Callable[..., str], line: str) -> None:
    with pytest.raises(UserError) as caught:
        told(*line.split())
    assert WRONG[line] in str(caught.value)


def test_it_needs_neither_tensorflow_nor_numpy() -> None:
    code = (
        "import sys, train\n"
        "assert train.main(['recipe=bnn', '--explain', 'optimizer.learning_rate']) == 0\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("optimizer.learning_rate = 0.003\n  set by configs/recipe/baseline.yaml:15\n")
