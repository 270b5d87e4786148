"""Valid command lines, and the configs that they give."""

import json

import pytest
from omegaconf import OmegaConf

from hookline.trainer.config.command import open_composer, parse_command, parse_overrides, with_values
from hookline.trainer.config.keys import is_group_choice
from hookline.trainer.config.preflight import preflight
from hookline.trainer.config.schema import lookup


def jobs(tree, *arguments):
    return preflight(parse_command(arguments), tree)


def config(tree, *arguments):
    (job,) = jobs(tree, "recipe=bnn", *arguments)
    return job.config


def test_last_recipe_wins_and_command_line_overrides_recipes(tree):
    for choice, name, epochs, model in (
        ("recipe=bnn", "bnn", 60, "mlp.mlp"),
        ("recipe=[bnn,prune]", "bnn+prune", 5, "cnn.plain_cnn"),
        ("recipe=[prune,bnn]", "prune+bnn", 60, "cnn.plain_cnn"),
        ("recipe=[bnn,prune] model=mlp trainer.epochs=7", "bnn+prune", 7, "mlp.mlp"),
    ):
        (job,) = jobs(tree, *choice.split())
        assert job.recipe == name
        assert set(job.config["hooks"]) == {"progress", "checkpoint", "bnn_rounding"}
        assert job.config["trainer"]["epochs"] == epochs
        assert job.config["model"]["_target_"] == f"hookline.recipes.models.{model}"


def test_hooks_and_augmentations_are_added_set_and_removed(tree):
    hooks = config(tree, "+hooks=center_loss", "hooks.center_loss.weight=0.5")["hooks"]
    assert hooks["center_loss"] == {"_target_": "hookline.hooks.center_loss.CenterLoss", "weight": 0.5}
    assert json.loads(json.dumps(hooks)) == hooks  # plain values
    assert set(config(tree, "+hooks=[center_loss,progress]")["hooks"]) == {*hooks}
    crop = {"_target_": "hookline.recipes.augment.translation.Crop", "padding": 3, "border": "reflect"}
    assert config(tree)["augment"] == {}
    assert config(tree, "+augment=crop", "augment.crop.padding=3")["augment"] == {"crop": crop}
    assert config(tree, "+augment=both")["augment"]["crop"]["padding"] == 2
    for how in ("{}=null", "~{}"):
        assert set(config(tree, how.format("hooks.checkpoint"))["hooks"]) == {"progress", "bnn_rounding"}
        assert set(config(tree, "+augment=both", how.format("augment.flip"))["augment"]) == {"crop"}


def test_user_parts_are_named_by_import_path(tree):
    model = ("model._target_=tests.net", "~model.units", "~model.activation", "+model.width=3")
    dotted = ("+hooks.mine._target_=tests.Hook", "+hooks.mine.every=3")
    for overrides in (dotted, ["+hooks.mine={_target_: tests.Hook, every: 3}"]):
        found = config(tree, "plugins=[tests]", *overrides, *model, "+augment.blur._target_=tests.Blur")
        assert found["hooks"]["mine"] == {"_target_": "tests.Hook", "every": 3}
        assert found["model"] == {"_target_": "tests.net", "width": 3}
        assert found["augment"] == {"blur": {"_target_": "tests.Blur"}}


def test_user_config_dir_adds_hooks_augmentations_and_values(tree, tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [/augment/crop, /hooks/center_loss, _self_]\n"
        "augment: {crop: {padding: 1}}\ntrainer: {epochs: 3}\n"
    )
    (job,) = jobs(tree, "recipe=[bnn,mine]", "+augment=flip", "--config-dir", str(tmp_path))
    assert (job.recipe, job.config["trainer"]["epochs"]) == ("bnn+mine", 3)
    assert set(job.config["augment"]) == {"crop", "flip"}
    assert job.config["augment"]["crop"]["padding"] == 1
    assert "center_loss" in job.config["hooks"]


def test_overrides_set_values_with_their_types(tree):
    for override, key, value in (
        ("trainer.batch_size=1_000", "trainer.batch_size", 1000),
        ("optimizer.learning_rate=1", "optimizer.learning_rate", 1),
        ("optimizer.learning_rate=3e-3", "optimizer.learning_rate", 3e-3),
        ("hooks.bnn_rounding.skip.0=second", "hooks.bnn_rounding.skip", ["second", "last"]),
        ("hooks.bnn_rounding={scale: {a: 1}}", "hooks.bnn_rounding.scale", {"a": 1}),
        ("hooks.bnn_rounding.clip={dense_1: 1.0}", "hooks.bnn_rounding.clip", {"dense_1": 1.0}),
        ("hooks.bnn_rounding.skip={a: [1]}", "hooks.bnn_rounding.skip", {"a": [1]}),  # instead of a list
        ("hooks.bnn_rounding.scale={_target_: keras.initializers.Zeros, a: 2}", "hooks.bnn_rounding.scale.a", 2),
        ("trainer.steps=${trainer.batch_size}", "trainer.steps", 64),
        ("run_dir=runs/a b", "run_dir", "runs/a b"),
    ):
        found = lookup(config(tree, override, *(["trainer.epochs=null"] if "steps" in override else [])), key)
        assert found == value
        assert type(found) is type(value)


def test_sweep_is_the_ordered_product_of_its_values(tree):
    found = jobs(tree, "recipe=bnn,prune", "-m", "seed=1,2")
    assert [(job.recipe, job.config["seed"]) for job in found] == [("bnn", 1), ("bnn", 2), ("prune", 1), ("prune", 2)]
    assert found[1].overrides == ["recipe=bnn", "seed=2"]
    (first, _) = jobs(tree, "-m", "recipe=baseline", "+hooks=[center_loss,bnn_rounding]", "seed=1,2")
    assert {"center_loss", "bnn_rounding"} <= set(first.config["hooks"])
    added = jobs(tree, "-m", "recipe=bnn", "+hooks=choice([progress],[progress,center_loss])")
    assert ["center_loss" in job.config["hooks"] for job in added] == [False, True]
    assert [job.recipe for job in jobs(tree, "-m", "recipe=glob(b*)")] == ["baseline", "bnn"]


@pytest.mark.parametrize(
    "line",
    [
        ["recipe=bnn", "~hooks.progress", "+hooks=center_loss", "hooks.center_loss.weight=0.5"],
        ["recipe=[prune,bnn]", "optimizer={learning_rate: 0.5}", "++model.extra={a: [1]}", "run_dir=${recipe}/${seed}"],
    ],
)
def test_values_set_on_a_composed_config_match_hydra(tree, line):
    with open_composer(parse_command(line), tree) as composer:
        overrides = parse_overrides(line, composer.loader)
        choosing = [str(each.input_line) for each in overrides if is_group_choice(each, composer)]
        setting = [each for each in overrides if each.input_line not in choosing]
        base = composer.compose(choosing)
        kept = OmegaConf.to_container(base)
        assert with_values(base, setting) == OmegaConf.to_container(composer.compose(line)) != kept
        assert OmegaConf.to_container(base) == kept
