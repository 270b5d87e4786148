"""What a user may write, and the config that comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from trainer.config.choices import is_group_choice
from trainer.config.command import parse_command, parse_overrides
from trainer.config.compose import open_composer, with_values
from trainer.config.preflight import Job, check_display, preflight


def jobs(tree: Path, *arguments: str) -> list[Job]:
    return preflight(parse_command(arguments), tree)


def config(tree: Path, *arguments: str) -> dict[str, Any]:
    (job,) = jobs(tree, "recipe=bnn", *arguments)
    return job.config


def test_a_recipe_brings_its_hooks_and_values(tree: Path) -> None:
    (job,) = jobs(tree, "recipe=bnn")
    assert job.recipe == "bnn"
    assert set(job.config["hooks"]) == {"progress", "checkpoint", "bnn_rounding"}
    assert job.config["trainer"]["epochs"] == 60
    assert job.config["optimizer"]["_target_"] == "recipes.optimizers.adam.Adam"


@pytest.mark.parametrize(
    ("choice", "name", "epochs", "model"),
    [
        ("recipe=[bnn,prune]", "bnn+prune", 5, "recipes.models.plain_cnn.plain_cnn"),
        ("recipe=[prune,bnn]", "prune+bnn", 60, "recipes.models.plain_cnn.plain_cnn"),
        ("recipe=[bnn,baseline]", "bnn+baseline", 60, "recipes.models.mlp.mlp"),
    ],
)
def test_recipes_combine_and_the_last_wins(tree: Path, choice: str, name: str, epochs: int, model: str) -> None:
    (job,) = jobs(tree, choice)
    assert job.recipe == name
    assert "bnn_rounding" in job.config["hooks"]
    assert (job.config["trainer"]["epochs"], job.config["model"]["_target_"]) == (epochs, model)


def test_the_command_line_beats_the_recipe(tree: Path) -> None:
    (job,) = jobs(tree, "recipe=prune", "model=mlp", "trainer.epochs=7")
    assert job.config["model"]["_target_"] == "recipes.models.mlp.mlp"
    assert job.config["trainer"]["epochs"] == 7


def test_hooks_are_added_and_set(tree: Path) -> None:
    hooks = config(tree, "+hooks=center_loss", "hooks.center_loss.weight=0.5")["hooks"]
    assert hooks["center_loss"] == {"_target_": "hooks.center_loss.CenterLoss", "weight": 0.5}
    assert set(config(tree, "+hooks=[center_loss,progress]")["hooks"]) == {*hooks}


@pytest.mark.parametrize("override", ["hooks.bnn_rounding.scale={a: 1}", "hooks.bnn_rounding={scale: {a: 1}}"])
def test_a_mapping_takes_the_place_of_null(tree: Path, override: str) -> None:
    assert config(tree, override)["hooks"]["bnn_rounding"]["scale"] == {"a": 1}


@pytest.mark.parametrize("override", ["hooks.checkpoint=null", "~hooks.checkpoint"])
def test_hooks_are_removed(tree: Path, override: str) -> None:
    assert set(config(tree, override)["hooks"]) == {"progress", "bnn_rounding"}


@pytest.mark.parametrize(
    "overrides",
    [
        ["+hooks.mine._target_=tests.Hook", "+hooks.mine.every=3"],
        ["+hooks.mine={_target_: tests.Hook, every: 3}"],
        ["+hooks={mine: {_target_: tests.Hook, every: 3}}"],
    ],
)
def test_a_hook_of_ones_own_is_added_by_its_path(tree: Path, overrides: list[str]) -> None:
    hooks = config(tree, "plugins=[tests]", *overrides)["hooks"]
    assert hooks["mine"] == {"_target_": "tests.Hook", "every": 3}


def test_augmentations_are_added_set_and_removed(tree: Path) -> None:
    assert config(tree)["augment"] == {}
    crop = {"_target_": "recipes.augment.crop.Crop", "padding": 3, "border": "reflect"}
    assert config(tree, "+augment=crop", "augment.crop.padding=3")["augment"] == {"crop": crop}
    assert set(config(tree, "+augment=[crop,flip]")["augment"]) == {"crop", "flip"}
    assert config(tree, "+augment=both")["augment"]["crop"]["padding"] == 2
    for removed in ("augment.flip=null", "~augment.flip"):
        assert set(config(tree, "+augment=both", removed)["augment"]) == {"crop"}


def test_an_augmentation_of_ones_own_is_added_by_its_path(tree: Path) -> None:
    augment = config(tree, "plugins=[tests]", "+augment.blur._target_=tests.Blur", "+augment.blur.width=3")["augment"]
    assert augment == {"blur": {"_target_": "tests.Blur", "width": 3}}


def test_a_recipe_brings_augmentations(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [/augment/crop, _self_]\naugment: {crop: {padding: 1}}\n"
    )
    (job,) = jobs(tree, "recipe=[bnn,mine]", "+augment=flip", "--config-dir", str(tmp_path))
    assert set(job.config["augment"]) == {"crop", "flip"}
    assert job.config["augment"]["crop"]["padding"] == 1


def test_a_section_may_build_something_else(tree: Path) -> None:
    model = config(
        tree, "model._target_=tests.net", "~model.units", "~model.activation", "+model.width=3", "plugins=[tests]"
    )["model"]
    assert model == {"_target_": "tests.net", "width": 3}


def test_a_part_may_stand_where_a_name_stood(tree: Path) -> None:
    quantizer = {"_target_": "keras.initializers.Constant", "value": 2}
    hooks = config(tree, "hooks.bnn_rounding.quantizer={_target_: keras.initializers.Constant, value: 2}")["hooks"]
    assert hooks["bnn_rounding"]["quantizer"] == quantizer


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("trainer.batch_size=1_000", ("trainer", "batch_size"), 1000),
        ("trainer={batch_size: 8}", ("trainer", "batch_size"), 8),
        ("++trainer.batch_size=8", ("trainer", "batch_size"), 8),
        ("optimizer.learning_rate=1", ("optimizer", "learning_rate"), 1),
        ("optimizer.learning_rate=3e-3", ("optimizer", "learning_rate"), 3e-3),
        ("optimizer.clipnorm=1.0", ("optimizer", "clipnorm"), 1.0),
        ("hooks.bnn_rounding.clip=null", ("hooks", "bnn_rounding", "clip"), None),
        ("hooks.bnn_rounding.skip=[]", ("hooks", "bnn_rounding", "skip"), []),
        ("hooks.bnn_rounding.skip.0=second", ("hooks", "bnn_rounding", "skip"), ["second", "last"]),
        ("trainer.steps=${trainer.batch_size}", ("trainer", "steps"), 64),
        ("run_dir=runs/a b", ("run_dir",), "runs/a b"),
        ("trainer.compile=on", ("trainer", "compile"), "on"),
    ],
)
def test_values_are_set(tree: Path, override: str, path: tuple[str, ...], value: Any) -> None:
    more = ["trainer.epochs=null"] if "steps" in override else []
    found: Any = config(tree, override, *more)
    for part in path:
        found = found[part]
    assert found == value
    assert type(found) is type(value)


def test_a_data_set_has_keys_of_its_own(tree: Path) -> None:
    assert config(tree, "data=mnist", "data.path=/no/such.npz")["data"]["path"] == "/no/such.npz"


def test_a_sweep_is_the_product_of_its_values_in_order(tree: Path) -> None:
    found = jobs(tree, "-m", "recipe=bnn,prune", "seed=1,2")
    assert [(job.recipe, job.config["seed"]) for job in found] == [("bnn", 1), ("bnn", 2), ("prune", 1), ("prune", 2)]
    assert found[1].overrides == ["recipe=bnn", "seed=2"]


def test_a_sweep_keeps_every_added_hook(tree: Path) -> None:
    (first, _) = jobs(tree, "-m", "recipe=baseline", "+hooks=[center_loss,bnn_rounding]", "seed=1,2")
    assert {"center_loss", "bnn_rounding"} <= set(first.config["hooks"])


def test_a_sweep_over_hooks_and_patterns(tree: Path) -> None:
    added = jobs(tree, "-m", "recipe=bnn", "+hooks=choice([progress],[progress,center_loss])")
    assert ["center_loss" in job.config["hooks"] for job in added] == [False, True]
    assert [job.recipe for job in jobs(tree, "-m", "recipe=glob(b*)")] == ["baseline", "bnn"]


def test_flags_may_stand_anywhere(tree: Path) -> None:
    assert [job.config["seed"] for job in jobs(tree, "recipe=bnn", "-m", "seed=1,2")] == [1, 2]


def test_a_directory_of_ones_own_is_searched(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [/hooks/center_loss, _self_]\ntrainer: {epochs: 3}\n"
    )
    (job,) = jobs(tree, "recipe=[bnn,mine]", "--config-dir", str(tmp_path))
    assert job.recipe == "bnn+mine"
    assert job.config["trainer"]["epochs"] == 3
    assert "center_loss" in job.config["hooks"]


def test_showing_a_config_needs_no_recipe_and_allows_values_of_hydra(tree: Path) -> None:
    check_display(parse_command(["--cfg", "job", "seed=3", "hydra.verbose=true"]), tree)


def test_configs_of_jobs_are_plain_values(tree: Path) -> None:
    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(type(key) is str and plain(item) for key, item in value.items())
        return all(map(plain, value)) if type(value) is list else type(value) in (str, int, float, bool, type(None))

    assert plain(config(tree))


def test_a_mapping_may_stand_where_a_number_is_the_default_since_only_the_signature_knows(tree: Path) -> None:
    hooks = config(tree, "hooks.bnn_rounding.clip={dense_1: 1.0, dense_2: 0.5}")["hooks"]
    assert hooks["bnn_rounding"]["clip"] == {"dense_1": 1.0, "dense_2": 0.5}


@pytest.mark.parametrize(
    "line",
    [
        ["hooks.bnn_rounding.scale=2", "recipe=bnn", "model=mlp", "trainer.epochs=3"],
        ["recipe=bnn", "~hooks.progress", "+hooks=center_loss", "hooks.center_loss.weight=0.5"],
        ["recipe=bnn", "hooks.bnn_rounding=null", "+model.extra={a: [1, 2]}", "seed=3"],
        ["recipe=[prune,bnn]", "optimizer={learning_rate: 0.5}", "++model.extra=1", "run_dir=${recipe}/${seed}"],
        ["recipe=prune", "~hooks.checkpoint", "++hooks.bnn_rounding={_target_: hooks.bnn_rounding.BnnRounding}"],
    ],
)
def test_values_set_on_a_composed_config_give_what_hydra_composes(tree: Path, line: list[str]) -> None:
    with open_composer(parse_command(line), tree) as composer:
        overrides = parse_overrides(line, composer.loader)
        choosing = [str(each.input_line) for each in overrides if is_group_choice(each, composer)]
        setting = [each for each in overrides if each.input_line not in choosing]
        base = composer.compose(choosing)
        kept = OmegaConf.to_container(base)
        assert with_values(base, setting) == OmegaConf.to_container(composer.compose(line)) != kept
        assert OmegaConf.to_container(base) == kept
