"""Everything that can be checked before TensorFlow is imported: from the command line to validated configs."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from hookline.trainer.config.build import bind, parameters_of, resolve
from hookline.trainer.config.command import (
    CONFIG_DIR,
    Command,
    Composer,
    expand_sweep,
    open_composer,
    parse_overrides,
    typed,
    with_values,
)
from hookline.trainer.config.keys import chain_of, check_choice, check_value, foreign_nodes, is_group_choice, layers_of
from hookline.trainer.config.overrides import show
from hookline.trainer.config.parts import check_found, check_tree
from hookline.trainer.config.schema import BINDING, NAMED, PARTS, TARGET, children, is_part, lookup, validate
from hookline.trainer.config.stored import (
    FREE,
    PYTHON,
    check_plugins,
    is_free,
    is_place,
    read_stored,
    recipe_name,
    recipe_of,
)
from hookline.trainer.deferred import NeedsFramework, plain_warnings, quiet_start, run_precheck, without_frameworks
from hookline.trainer.errors import UserError, user_path

RESUME = "resume"
RECIPES_USE = "adam"  # the optimizer that the recipes' learning rates are for


@dataclass(frozen=True)
class Job:
    """Describe a run to start."""

    config: dict[str, Any]  # validated, plain values, references resolved; removed hooks and augmentations left out
    recipe: str  # the recipe's name; several are joined by "+"
    overrides: list[str]  # as the user wrote them, one value each


def preflight(command: Command, config_dir: Path = CONFIG_DIR) -> list[Job]:
    """Return the jobs of a command, each composed and checked."""
    with open_composer(command, config_dir) as composer:
        jobs = expand_sweep(parse_overrides(command.overrides, composer.loader), command.sweep)
        return [check_job(texts, composer) for texts in jobs]


def preflight_each(command: Command, jobs: Sequence[Sequence[str]]) -> list[Job]:
    """Return the jobs with the given overrides, each composed and checked."""
    with open_composer(command, overrides=[text for job in jobs for text in job]) as composer:
        for texts in jobs:
            expand_sweep(parse_overrides(texts, composer.loader), sweep=False)
        return [check_job(list(texts), composer) for texts in jobs]


def check_display(command: Command) -> None:
    """Check the overrides of a command that shows a config; the config may be incomplete."""
    with open_composer(command) as composer:
        ours = [each for each in parse_overrides(command.overrides, composer.loader) if not each.is_hydra_override()]
        expand_sweep(ours, sweep=False)
        _compose(ours, composer)


def check_job(texts: list[str], composer: Composer) -> Job:
    """Return the job of one command line, composed and checked."""
    overrides = parse_overrides(texts, composer.loader)
    _check_keys(overrides)
    run = resumed_run(overrides)
    if run is not None:
        composed, recipe = resumed_config(run, overrides, composer)
    else:
        composed, choices = _compose(overrides, composer)
        recipe = recipe_name(choices.get("recipe", ""))
    if not recipe:
        known = ", ".join(composer.options("recipe"))
        raise UserError(f"No recipe was given. Expected recipe=<name>, one of: {known}. See python train.py --help.")
    config = typed(composed)
    validate(config)
    check_tree(config, config["plugins"])
    check_found(config["plugins"])
    if run is None and _chooses_parts(overrides, recipe, composer):
        _leave_out(config, recipe, overrides, composer)
    for section in NAMED:
        config[section] = {name: part for name, part in config[section].items() if part is not None}
    return Job(config, recipe, texts)


def _chooses_parts(overrides: Sequence[Override], recipe: str, composer: Composer) -> bool:
    """Return whether anything but one of our recipes chose a part; only then can files set values for other parts."""
    found = composer.load(f"recipe/{recipe}")  # None for several recipes
    typed_in = any(each.key_or_group in PARTS or TARGET in str(each.input_line) for each in overrides)
    return typed_in or found is None or found.provider != "main"


def _leave_out(config: dict[str, Any], recipe: str, overrides: Sequence[Override], composer: Composer) -> None:
    """Remove, with a warning, arguments that files set for another `_target_` and the current one does not accept."""
    layers = layers_of(overrides, composer)
    recipes = [with_values(composer.compose([f"recipe={name}"]), []) for name in recipe.split("+")]
    nodes = [(config, name, name) for name in PARTS]
    nodes += [(config[section], name, f"{section}.{name}") for section in NAMED for name in config[section]]
    for parent, name, path in nodes:
        if (node := parent[name]) is None:
            continue
        said = [children(lookup(layer.tree, path)) for layer in layers]
        own: dict[str, Any] = next((each for each in reversed(said) if TARGET in each), {})  # set next to `_target_`
        typed_in = [each for layer, each in zip(layers, said, strict=True) if layer.file is None]
        given = {key for each in (own, *typed_in) for key in each}  # kept, even if wrong: refused later
        files = [*said, *(children(lookup(alone, path)) for alone in recipes)]
        others = {key for each in files if each.get(TARGET, node[TARGET]) != node[TARGET] for key in each}
        foreign = [key for key in node if key in others and key not in given]
        if foreign and (left := _refused(node, foreign, path.partition(".")[0], config["plugins"])):
            parent[name] = {key: value for key, value in node.items() if key not in left}
            places = {key: chain_of(f"{path}.{key}", layers)[-1].place for key in left}
            values = " and ".join(f"{path}.{key}={show(node[key])} ({place})" for key, place in places.items())
            them = "it" if len(left) == 1 else "them"
            with plain_warnings():
                warnings.warn(f"{values} left out: {node[TARGET]} does not take {them}.", stacklevel=2)


def _refused(node: Mapping[str, Any], names: Sequence[str], group: str, plugins: Sequence[str]) -> list[str]:
    """Return the arguments that a node's target does not take; none if it is unknown, which `bind` reports."""
    try:
        with quiet_start():  # resolving a part of Keras imports Keras
            taken, takes_any = parameters_of(resolve(node[TARGET], group=group, plugins=plugins))
    except UserError:
        return []
    return [] if takes_any else [name for name in names if name not in (*taken, *BINDING)]


def _check_keys(overrides: Sequence[Override]) -> None:
    """Check that each key is given once (Hydra would silently use one of several values) and is not Hydra's own."""
    for override in overrides:
        if override.is_hydra_override() or override.key_or_group == "hydra":
            raise UserError(
                f"'{override.input_line}' sets a value of Hydra itself, which a run does not use. Expected "
                "run_dir=<path> or, instead of a launcher, -m with --jobs or --trials, or scripts/submit.py."
            )
    for key, count in Counter(override.get_key_element() for override in overrides).items():
        if count > 1:
            several = f" For several, write {key}=[first,second]." if key.lstrip("+") in ("recipe", *NAMED) else ""
            raise UserError(f"'{key}' is given {count} times. Expected it once.{several}")


def _compose(overrides: Sequence[Override], composer: Composer) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the composed config and the option chosen for each group, after checking each override separately."""
    choosing = [override for override in overrides if is_group_choice(override, composer)]
    setting = [override for override in overrides if override not in choosing]
    choices = {each.key_or_group: show(each.value()) for each in choosing if each.type.name == "CHANGE"}
    for override in choosing:
        check_choice(override, composer)
    base = composer.compose([str(override.input_line) for override in choosing])  # shows which keys exist
    keys = with_values(base, [])
    foreign = foreign_nodes(setting, keys)
    for override in setting:
        check_value(override, keys, foreign, composer)
    return with_values(base, setting), choices


def resumed_run(overrides: Sequence[Override]) -> str | None:
    """Return the run directory given by resume=; None for a new run."""
    value = next((each.value() for each in overrides if each.get_key_element() == RESUME), None)
    return None if value is None else str(value)


def resumed_config(run: str, overrides: Sequence[Override], composer: Composer) -> tuple[dict[str, Any], str]:
    """Return the config of a resumed run with the permitted changes applied, and its recipe's name."""
    stored = {**read_stored(run, RESUME), RESUME: run}
    if (stored.get("task") or {}).get(TARGET) == PYTHON:
        raise UserError(
            f"resume={run} was trained from Python. Expected fit(..., resume=True) of the same hookline.Trainer there, "
            f"or hookline.load('{run}').fit(...) for more epochs."
        )
    recipe = recipe_of(run, RESUME)
    others = [each for each in overrides if each.get_key_element() != RESUME]
    choosing = [each for each in others if is_group_choice(each, composer)]
    for override in choosing:
        if override.key_or_group != "recipe" or recipe_name(show(override.value())) != recipe:
            raise UserError(
                f"'{override.input_line}' received with resume=. Expected no other recipe, group or hook: a resumed "
                f"run keeps its recipe '{recipe}'. To start a new run from its weights, use init_from=."
            )
    plugins = next((each.value() for each in others if each.get_key_element() == "plugins"), [])
    check_plugins(stored, plugins, RESUME)
    return _changed(stored, [each for each in others if each not in choosing], composer), recipe


def _changed(stored: Mapping[str, Any], overrides: Sequence[Override], composer: Composer) -> dict[str, Any]:
    """Return the stored config with the permitted overrides; refuse all others that change a value, in one message."""
    node, differing = OmegaConf.create(dict(stored)), []
    for override in overrides:
        key = override.get_key_element()
        if override.is_delete() or override.is_add():
            raise UserError(f"'{override.input_line}' received with resume=. Expected {RESUME}=<run> and key=value.")
        if not (is_part(key) and override.value() is None and lookup(stored, key) is None):  # already absent
            check_value(override, stored, set(), composer)
        found, value = OmegaConf.select(node, key), override.value()
        found = OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
        if is_free(key) or is_place(key, found, value) or (isinstance(value, str) and key in _outside(stored[RESUME])):
            OmegaConf.update(node, key, value)
        elif found != value:
            differing.append(f"{key} is {show(found)}, {show(value)} received")
    if differing:
        raise UserError(
            f"A resumed run keeps its config: {'; '.join(differing)}. Only {', '.join(FREE)} may change, and the "
            "paths of data and of files that hooks read, such as data.path. To start a new run from its weights, use "
            "init_from=."
        )
    return OmegaConf.to_container(node)  # type: ignore[return-value]


def _outside(run: str) -> Mapping[str, str]:
    """Return the digests of the data that hooks read, by the key that locates it; empty before the first checkpoint."""
    from hookline.trainer.run.checkpoint import CheckpointStore
    from hookline.trainer.run.checkpoint_files import LAST

    store = CheckpointStore(user_path(run, RESUME) / "checkpoints")
    return store.load(LAST).state["run"].get("outside", {}) if LAST in store.tags() else {}


def check_early(job: Job, *, directories: bool = True) -> None:
    """Run the checks that need neither TensorFlow nor Keras, including constructors of hooks and augmentations."""
    config, plugins = job.config, job.config["plugins"]
    with without_frameworks():
        from hookline.trainer.run.blueprint import build_augments

        checks: list[Callable[[], Any]] = [partial(_check_directories, config, job.recipe)] if directories else []
        checks += [partial(bind, config[part], group=part, plugins=plugins) for part in PARTS]
        checks += [partial(_precheck, config, part) for part in PARTS]
        checks += [partial(build_augments, {name: node}, plugins) for name, node in config.get("augment", {}).items()]
        checks.append(partial(_build_hooks, config["hooks"], plugins))
        for check in checks:
            _unless_it_needs_frameworks(check)
    _warn_of_rate(job)


def _unless_it_needs_frameworks(check: Callable[[], Any]) -> Any:
    """Return the result of a check; None if it needs TensorFlow or Keras."""
    before = set(sys.modules)
    try:
        return check()
    except NeedsFramework:
        for name in sorted(set(sys.modules) - before):  # a package before its modules
            above = name.rpartition(".")[0]
            if above and above not in sys.modules:  # a later import would not bind the module to its package
                del sys.modules[name]
        return None


def _check_directories(config: Mapping[str, Any], recipe: str) -> None:
    """Check where a run writes and what it starts from."""
    from hookline.trainer.run.directory import check_initial, choose_directory

    if config["resume"] is None:  # otherwise its directory was already read
        choose_directory(config["run_dir"], recipe, datetime.now())
        if config["init_from"] is not None:
            check_initial(config["init_from"])


def _warn_of_rate(job: Job) -> None:
    """Warn if a recipe's learning rate is unusual for the optimizer that was chosen on the command line."""
    typed_in = dict(text.partition("=")[::2] for text in job.overrides)
    name = typed_in.get("optimizer", RECIPES_USE)
    file = CONFIG_DIR / "optimizer" / f"{name}.yaml"
    if name == RECIPES_USE or "optimizer.learning_rate" in typed_in or not file.is_file():
        return
    usual, rate = (
        OmegaConf.select(OmegaConf.load(file), "learning_rate"),
        job.config["optimizer"].get("learning_rate", 0),
    )
    if rate and max(usual, rate) > 9.9 * min(usual, rate):  # Lion's is a tenth of Adam's
        line = f"optimizer.learning_rate={rate:g} is the recipe's, for its own optimizer; {file.name} has {usual:g}. "
        with plain_warnings():
            warnings.warn(f"{line}Set optimizer.learning_rate.", stacklevel=2)


def _precheck(config: Mapping[str, Any], part: str) -> None:
    target = resolve(config[part][TARGET], group=part, plugins=config["plugins"])
    run_precheck(target, {name: each for name, each in config[part].items() if name != TARGET})


def _build_hooks(nodes: Mapping[str, Any], plugins: Sequence[str]) -> None:
    """Construct every hook, and check those that could be constructed for conflicts."""
    from hookline.trainer.run.blueprint import build_hook
    from hookline.trainer.step.stage import order_hooks

    found = [_unless_it_needs_frameworks(partial(build_hook, *each, plugins=plugins)) for each in nodes.items()]
    order_hooks([hook for hook in found if hook is not None])
