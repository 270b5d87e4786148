"""The configs that are shipped: each composes, is documented, and says what the code takes."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import keras
import pytest
import yaml

from trainer.config.build import bind, parameters_of
from trainer.config.command import parse_command
from trainer.config.compose import CONFIG_DIR
from trainer.config.listing import purpose
from trainer.config.preflight import preflight
from trainer.config.resolve import resolve
from trainer.config.schema import NAMED, TrainConfig, TrainerConfig
from trainer.errors import UserError
from trainer.run.build_hook import split_binding

FILES = sorted(CONFIG_DIR.rglob("*.yaml"))
INJECTED = {
    "model": {"input_shape", "classes", "role", "latent_size", "stacked"},
    "task": {"parts"},
    "schedule": {"learning_rate", "total_steps"},
    "optimizer": {"name"},
}


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml") if path.stem != "default")


def compose(*overrides: str) -> dict[str, Any]:
    """The config of a command that also gives whatever the chosen files ask the user for, such as a path."""
    try:
        (job,) = preflight(parse_command(overrides))
    except UserError as error:
        key, asks, _ = str(error).partition(" has no value.")
        if not asks:
            raise
        return compose(*overrides, f"{key}=given")
    return job.config


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text()) or {}


def nodes() -> list[Any]:
    """Every node with a target in the shipped files, with the file's group."""
    found = []
    for path in FILES:
        group = path.relative_to(CONFIG_DIR).parts[0]
        content = read(path)
        for node in content.values() if group in NAMED else [content]:
            if isinstance(node, dict) and node.get("_target_") is not None:  # null: the user's own
                found.append(pytest.param(group, node, id=path.relative_to(CONFIG_DIR).as_posix()))
    return found


@pytest.mark.parametrize("recipe", names("recipe"))
def test_every_recipe_composes_with_the_default_hooks_that_it_does_not_take_out(recipe: str) -> None:
    config = compose(f"recipe={recipe}")
    default = read(CONFIG_DIR / "hooks" / "default.yaml")["defaults"]
    own = read(CONFIG_DIR / "recipe" / f"{recipe}.yaml").get("hooks", {})
    assert set(default) - set(config["hooks"]) == {name for name, node in own.items() if node is None}


@pytest.mark.parametrize("recipe", names("recipe"))
def test_every_part_of_every_recipe_exists_and_takes_its_arguments(recipe: str) -> None:
    config = compose(f"recipe={recipe}")
    sections = {name: config[name] for name in ("task", "data", "model", "optimizer", "schedule")}
    hooks = [("hooks", split_binding(hook)[0]) for hook in config["hooks"].values()]
    for group, node in [*sections.items(), *hooks]:
        bind(node, group=group, injected=INJECTED.get(group, set()))


def test_every_hook_can_be_added_to_every_recipe() -> None:
    for recipe in names("recipe"):
        config = compose(f"recipe={recipe}", f"+hooks=[{','.join(names('hooks'))}]")
        assert set(names("hooks")) <= set(config["hooks"])


def test_every_augmentation_can_be_added() -> None:
    single = {name for name in names("augment") if "defaults" not in read(CONFIG_DIR / "augment" / f"{name}.yaml")}
    assert set(compose("recipe=baseline", f"+augment=[{','.join(names('augment'))}]")["augment"]) == single


@pytest.mark.parametrize("group", ["data", "model", "optimizer", "schedule", "task", "trainer"])
def test_every_option_of_every_group_composes(group: str) -> None:
    for path in (CONFIG_DIR / group).glob("*.yaml"):
        own = [f"{group}._target_=recipes.models.mlp.mlp"] if read(path).get("_target_", "") is None else []
        compose("recipe=bnn", f"{group}={path.stem}", *own)


def test_the_twins_differ_in_the_rounding_alone() -> None:
    binary, twin = compose("recipe=bnn"), compose("recipe=baseline")
    rounding = binary["hooks"].pop("bnn_rounding")
    assert binary == twin
    assert rounding["_target_"] == "hooks.bnn_rounding.BnnRounding"


def test_both_twins_together_are_the_binary_network() -> None:
    assert compose("recipe=[bnn,baseline]") == compose("recipe=bnn") == compose("recipe=[baseline,bnn]")


def test_a_folder_of_images_needs_its_path() -> None:
    with pytest.raises(UserError, match="data.path has no value. Expected data.path=<value>."):
        preflight(parse_command(["recipe=bnn", "data=image_folder"]))
    assert compose("recipe=bnn", "data=image_folder")["data"]["path"] == "given"


@pytest.mark.parametrize(("group", "node"), nodes())
def test_keys_are_the_arguments_of_the_target(group: str, node: dict[str, Any]) -> None:
    taken, takes_any = parameters_of(resolve(node["_target_"], group=group))
    assert not takes_any
    node = split_binding(node)[0] if group == "hooks" else node
    assert set(node) - {"_target_"} == set(taken) - INJECTED.get(group, set())


@pytest.mark.parametrize(("group", "node"), nodes())
def test_values_fit_the_signature(group: str, node: dict[str, Any]) -> None:
    node = split_binding(node)[0] if group == "hooks" else node
    bind(node, group=group, injected=INJECTED.get(group, set()))


@pytest.mark.parametrize("path", sorted((CONFIG_DIR / "optimizer").glob("*.yaml")), ids=lambda path: path.stem)
def test_optimizer_values_are_those_of_keras_unless_the_file_says_so(path: Path) -> None:
    content, said = read(path), dict(re.findall(r"^(\w+): .*# Keras' own default: (\S+)$", path.read_text(), re.M))
    optimizer = getattr(keras.optimizers, content.pop("_target_").rpartition(".")[2])
    defaults = optimizer().get_config()
    for name, value in content.items():
        expected = yaml.safe_load(said[name]) if name in said else value
        assert defaults[name] == pytest.approx(expected), name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(CONFIG_DIR).as_posix())
def test_every_file_says_what_it_is_for(path: Path) -> None:
    assert 10 < len(purpose(path)) < 130


def test_the_root_file_and_the_trainer_file_name_the_schema() -> None:
    root = read(CONFIG_DIR / "train.yaml")
    groups = {next(iter(entry)) for entry in root.pop("defaults") if isinstance(entry, dict)}
    assert {*root, *groups, "hooks"} - {"hydra", "recipe"} == {field.name for field in dataclasses.fields(TrainConfig)}
    trainer = {field.name: field.default for field in dataclasses.fields(TrainerConfig)}
    assert read(CONFIG_DIR / "trainer" / "default.yaml") == trainer


def test_every_setting_has_a_help_text() -> None:
    for schema in (TrainConfig, TrainerConfig):
        assert all(field.metadata["help"] for field in dataclasses.fields(schema))
