"""The shipped configs: each composes, is documented, and matches the code's arguments and defaults."""

import dataclasses
import inspect
import re
import shlex

import keras
import pytest
import yaml

from hookline.scripts.help import purpose
from hookline.trainer.config.build import bind, parameters_of, resolve
from hookline.trainer.config.command import CONFIG_DIR, open_composer, parse_command, typed, with_values
from hookline.trainer.config.preflight import preflight_each
from hookline.trainer.config.schema import NAMED, TrainConfig, TrainerConfig, validate
from hookline.trainer.run.blueprint import split_binding

OF_KERAS = ("mnist", "fashion_mnist", "cifar10")
"""Options of data=keras_dataset with their own file."""
FILES = sorted(CONFIG_DIR.rglob("*.yaml"))
INJECTED = {
    "model": {"input_shape", "classes", "role", "latent_size", "stacked", "preparation", "packages"},
    "task": {"parts"},
    "schedule": {"learning_rate", "total_steps"},
    "optimizer": {"name"},
}


def names(group):
    return sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml") if path.stem != "default")


def read(path):
    return yaml.safe_load(path.read_text()) or {}


def test_every_recipe_composes_from_its_header_command_with_valid_arguments(tmp_path):
    texts = {name: (CONFIG_DIR / "recipe" / f"{name}.yaml").read_text() for name in names("recipe")}
    commands = [re.search(r"^# Command: (.*)$", text, re.MULTILINE)[1] for text in texts.values()]
    words = [shlex.split(re.sub("<[^>]*>", shlex.quote(str(tmp_path)), command)) for command in commands]
    assert {tuple(each[:2]) for each in words} == {("python", "train.py")}
    jobs = preflight_each(parse_command([]), [each[2:] for each in words])
    assert [job.recipe for job in jobs] == list(texts)
    default = read(CONFIG_DIR / "hooks" / "default.yaml")["defaults"]
    for recipe, config in ((job.recipe, job.config) for job in jobs):
        own = read(CONFIG_DIR / "recipe" / f"{recipe}.yaml").get("hooks", {})
        assert set(default) - set(config["hooks"]) == {name for name, node in own.items() if node is None}
        sections = {name: config[name] for name in ("task", "data", "model", "optimizer", "schedule")}
        hooks = [("hooks", split_binding(hook)[0]) for hook in config["hooks"].values()]
        for group, node in [*sections.items(), *hooks]:
            bind(node, group=group, injected=INJECTED.get(group, set()))


OWN = {
    "model": "hookline.recipes.models.mlp.mlp",
    "optimizer": "keras.optimizers.Adafactor",
    "schedule": "keras.optimizers.schedules.CosineDecay",
    "task": "hookline.recipes.classification.classification",
}


@pytest.mark.full
def test_every_option_of_every_group_composes():
    """Compose options of different groups at once: each of the largest group with one of every other group."""
    options = ("data", "model", "optimizer", "schedule", "task", "trainer")
    groups = {group: [path.stem for path in (CONFIG_DIR / group).glob("*.yaml")] for group in options}
    with open_composer(parse_command([])) as composer:
        for number in range(max(map(len, groups.values()))):
            chosen = {group: found[number % len(found)] for group, found in groups.items()}
            texts = ["recipe=bnn", *(f"{group}={name}" for group, name in chosen.items())]
            for group, name in chosen.items():
                for key, value in read(CONFIG_DIR / group / f"{name}.yaml").items():
                    if value == "???" or (key == "_target_" and value is None):  # the user's own
                        texts.append(f"{group}.{key}={OWN[group] if value is None else 'given'}")
            validate(typed(with_values(composer.compose(texts), [])))


def test_bnn_differs_from_its_float_baseline_only_in_rounding():
    recipes = [["recipe=bnn"], ["recipe=[bnn,baseline]"], ["recipe=[baseline,bnn]"], ["recipe=baseline"]]
    binary, *same, baseline = (job.config for job in preflight_each(parse_command([]), recipes))
    assert same == [binary, binary]
    rounding = binary["hooks"].pop("bnn_rounding")
    assert binary == baseline
    assert rounding["_target_"] == "hookline.hooks.bnn_rounding.BnnRounding"


def test_config_keys_and_values_match_the_target_signature():
    for path in FILES:
        group, content = path.relative_to(CONFIG_DIR).parts[0], read(path)
        for node in content.values() if group in NAMED else [content]:
            if not isinstance(node, dict) or node.get("_target_") is None:  # null: the user's own
                continue
            given, injected = split_binding(node)[0] if group == "hooks" else node, INJECTED.get(group, set())
            target = resolve(node["_target_"], group=group)
            taken, takes_any = parameters_of(target)
            assert not takes_any
            assert set(given) - {"_target_"} == set(taken) - injected, path
            bind(given, group=group, injected=injected)
            if group in ("optimizer", "schedule") or not node["_target_"].startswith("hookline."):
                continue
            for name, parameter in inspect.signature(target).parameters.items():
                needed = parameter.default is parameter.empty
                if name in injected or (group == "hooks" and needed):  # a hook's file gives an example
                    continue
                expected = path.stem if path.stem in OF_KERAS and name == "name" else parameter.default
                expected = "???" if needed and expected != path.stem else expected
                assert node[name] == (list(expected) if isinstance(expected, tuple) else expected), (path, name)


def test_optimizer_values_are_keras_defaults_unless_marked():
    for path in (CONFIG_DIR / "optimizer").glob("*.yaml"):
        if path.stem == "custom":
            continue
        content, said = read(path), dict(re.findall(r"^(\w+): .*# Keras' own default: (\S+)$", path.read_text(), re.M))
        defaults = getattr(keras.optimizers, content.pop("_target_").rpartition(".")[2])().get_config()
        for name, value in content.items():
            expected = yaml.safe_load(said[name]) if name in said else value
            assert defaults[name] == pytest.approx(expected), (path, name)


def test_root_and_trainer_configs_match_the_schema_and_all_have_a_purpose():
    assert [path for path in FILES if not 10 < len(purpose(path)) < 130] == []
    for schema in (TrainConfig, TrainerConfig):
        assert all(field.metadata["help"] for field in dataclasses.fields(schema))
    root = read(CONFIG_DIR / "train.yaml")
    groups = {next(iter(entry)) for entry in root.pop("defaults") if isinstance(entry, dict)}
    assert {*root, *groups, "hooks"} - {"hydra", "recipe"} == {field.name for field in dataclasses.fields(TrainConfig)}
    trainer = {field.name: field.default for field in dataclasses.fields(TrainerConfig)}
    assert read(CONFIG_DIR / "trainer" / "default.yaml") == trainer
