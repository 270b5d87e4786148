"""The parts of a run as Python objects; the command line builds them from its config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import keras

from hookline.trainer.config.build import bind, build, parameters_of, resolve
from hookline.trainer.config.schema import BINDING, PARTS, TARGET
from hookline.trainer.errors import UserError, did_you_mean
from hookline.trainer.hook import AT, GraphHook, Hook
from hookline.trainer.input.augment import Augment
from hookline.trainer.input.data import Data
from hookline.trainer.network import Network, check_names, told_in_one_line
from hookline.trainer.objective import Objective
from hookline.trainer.recipe import Parts, Recipe
from hookline.trainer.step.stage import order_hooks

Config = Mapping[str, Any]
GROUP = "hooks"


@dataclass(frozen=True)
class Blueprint:
    """Hold the parts of a run. `build_recipe` and `build_hooks` are called once for each replica."""

    config: Config  # of which "seed" and the section "trainer" are read
    recipe: str  # its name
    open_data: Callable[[], Data]
    build_recipe: Callable[[Data, int], Recipe]  # takes the data and the number of steps
    build_hooks: Callable[[], list[Hook]]  # in order, not yet bound to networks
    build_hook: Callable[[str], Hook]  # one more instance of a hook, by its key
    build_augments: Callable[[], list[Augment]] = list
    check: Callable[[], None] = lambda: None  # refuses mistakes before anything is built
    init_from: str | None = None  # the run or file that gives the initial weights
    first_step: int = 0  # at which the first epoch of the data begins; above 0 if a run continues with other data
    planned_steps: int | None = None  # over which hooks plan their schedules; None for those of the run

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the section `trainer` of the config."""
        return self.config["trainer"]


def from_config(config: Config, recipe: str = "") -> Blueprint:
    """Return the blueprint of a resolved config; nothing is built yet."""
    plugins = config["plugins"]

    def check() -> None:  # hooks and augmentations are checked as they are built, also before the data is opened
        for section in PARTS:
            bind(config[section], group=section, plugins=plugins)

    return Blueprint(
        config,
        recipe,
        open_data=lambda: build(config["data"], group="data", kind=Data, plugins=plugins),
        build_recipe=partial(_build_recipe, config),
        build_hooks=partial(build_hooks, config),
        build_hook=lambda key: build_hook(key, config["hooks"][key], plugins=plugins),
        build_augments=lambda: build_augments(config.get("augment", {}), plugins),
        check=check,
        init_from=config["init_from"],
    )


def build_hooks(config: Config) -> list[Hook]:
    """Return the hooks that a config names, in order, not yet bound to networks."""
    keras.utils.set_random_seed(config["seed"])  # a hook may have layers among its arguments
    nodes = {name: node for name, node in config["hooks"].items() if node is not None}
    return order_hooks([build_hook(name, node, plugins=config["plugins"]) for name, node in nodes.items()])


def _check_several(target: Callable[..., Any], data: Data, wanted: Mapping[str, Any]) -> None:
    """Refuse a built-in network for data with several inputs; that of a file may have them."""
    if data.preparations and target.__module__.startswith("hookline.") and "packages" not in wanted:
        raise UserError(
            f"Data '{data.name}' has the inputs {', '.join(data.preparations)}, and {target.__name__} takes one. "
            "Expected model=custom model._target_=<module>.<function> plugins=[<module>], or model=keras_file."
        )


def _build_recipe(config: Config, data: Data, total_steps: int) -> Recipe:
    from hookline.trainer.rate_schedules import ScaledRate, SeveralUpdates  # loads Keras: only if needed

    plugins: Sequence[str] = config["plugins"]

    def build_model(**injected: Any) -> keras.Model:
        with told_in_one_line(f"model._target_={config['model'].get(TARGET)}", data):
            offered = {"preparation": data.preparation, "packages": tuple(plugins)}
            target = resolve(config["model"][TARGET], group="model", plugins=plugins)
            wanted = {name: each for name, each in offered.items() if name in parameters_of(target)[0]}
            _check_several(target, data, wanted)
            model = build(config["model"], group="model", kind=keras.Model, plugins=plugins, **injected, **wanted)
        check_names(model)
        return model

    def build_optimizer(learning_rate: float | None = None, updates: int = 1) -> keras.optimizers.Optimizer:
        rate = float(config["optimizer"]["learning_rate"] if learning_rate is None else learning_rate)  # Keras: no int
        schedule = build(
            config["schedule"], group="schedule", plugins=plugins, learning_rate=rate, total_steps=total_steps
        )
        if updates > 1 and callable(schedule):
            schedule = SeveralUpdates(schedule, updates)
        if callable(schedule):
            schedule = ScaledRate(schedule)
        node = {**config["optimizer"], "learning_rate": schedule}
        return build(node, group="optimizer", kind=keras.optimizers.Optimizer, plugins=plugins)

    parts = Parts(data, build_model, build_optimizer, tuple(plugins))
    return build(config["task"], group="task", kind=Recipe, plugins=plugins, parts=parts)


def build_hook(name: str, node: Mapping[str, Any], *, plugins: Sequence[str] = ()) -> Hook:
    """Return the hook that a node of the config describes."""
    if AT in name:
        raise UserError(f"hooks.{name}: '{AT}' stands between a hook and its network. Expected a name without it.")
    try:
        arguments, binding = split_binding(node, plugins=plugins)
        hook: Hook = build(arguments, group=GROUP, kind=Hook, plugins=plugins)
        for key, pattern in binding.items():
            if not isinstance(hook, GraphHook):
                raise UserError(f"{key}={pattern} received, but it changes no step. Expected no {key}.")
            setattr(hook, key, pattern)
        for key in BINDING if isinstance(hook, GraphHook) else ():
            if not isinstance(pattern := getattr(hook, key), str) or not pattern:
                raise UserError(f"{key}={pattern!r} received. Expected a name, or a pattern such as '*'.")
    except UserError as error:
        raise UserError(f"hooks.{name}: {error}") from error
    hook.name = name
    return hook


def split_binding(node: Mapping[str, Any], *, plugins: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a hook's node into its target with the constructor's arguments, and the settings that bind the hook."""
    parameters, takes_any = parameters_of(resolve(node[TARGET], group=GROUP, plugins=plugins))
    binding = {key: node[key] for key in BINDING if key in node and key not in parameters and not takes_any}
    return {key: value for key, value in node.items() if key not in binding}, binding


def build_augments(nodes: Mapping[str, Any], plugins: Sequence[str]) -> list[Augment]:
    """Return the augmentations of a config, without those that were removed."""
    augments = []
    for name, node in nodes.items():
        if node is not None:
            try:
                augment = build(node, group="augment", kind=Augment, plugins=plugins)
            except UserError as error:
                raise UserError(f"augment.{name}: {error}") from error
            augment.name = name
            augments.append(augment)
    return augments


ANY = "*"


def bind_hooks(
    hooks: Sequence[Hook],
    networks: Sequence[Network],
    objectives: Sequence[Objective],
    build_again: Callable[[str], Hook],
) -> list[Hook]:
    """Return the hooks of a run, one graph hook for each of its networks: "<hook>@<network>" if there are several."""
    bound: list[Hook] = []
    for hook in hooks:
        if not isinstance(hook, GraphHook):
            bound.append(hook)
            continue
        names = _matching(hook, [network.name for network in networks], objectives)
        for name in names:
            instance = hook if len(names) == 1 else build_again(hook.key)
            assert isinstance(instance, GraphHook)
            instance.name = hook.key if len(names) == 1 else f"{hook.key}{AT}{name}"
            instance.network = name
            bound.append(instance)
    return bound


def _matching(hook: GraphHook, networks: Sequence[str], objectives: Sequence[Objective]) -> list[str]:
    """Return the names of the networks that a hook works on."""
    found = [name for name in networks if fnmatchcase(name, hook.network)]
    if not found:
        raise UserError(
            f"The hook '{hook.key}' works on the network '{hook.network}', which matches none."
            f"{did_you_mean(hook.network, networks)} Expected hooks.{hook.key}.network to be one of these, or a "
            f"pattern such as '*': {', '.join(networks)}."
        )
    if hook.objective == ANY:
        return found
    changing = {name: [each.name for each in objectives if name in each.trains] for name in found}
    taking_part = [name for name in found if any(fnmatchcase(each, hook.objective) for each in changing[name])]
    if not taking_part:
        known = list(dict.fromkeys(each for name in found for each in changing[name]))
        raise UserError(
            f"The hook '{hook.key}' takes part in the objective '{hook.objective}', but no such objective changes the "
            f"network {' or '.join(found)}.{did_you_mean(hook.objective, known)} Expected hooks.{hook.key}.objective "
            f"to be one of these, or a pattern such as '*': {', '.join(known) or 'none'}."
        )
    return taking_part
