"""What a run is made of, as Python objects and what makes them: the command line has them from its config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras

from hookline.trainer.config.build import TARGET, build, parameters_of, resolve
from hookline.trainer.errors import UserError
from hookline.trainer.hook import Hook
from hookline.trainer.input.augment import Augment
from hookline.trainer.input.data import Data
from hookline.trainer.model_checks import check_names, told_in_one_line
from hookline.trainer.order import order_hooks
from hookline.trainer.rate_schedules import ScaledRate, SeveralUpdates
from hookline.trainer.recipe import Parts, Recipe
from hookline.trainer.run.build import build_augments, build_hook, build_part
from hookline.trainer.run.early import part_checks

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Blueprint:
    """Hold what a run is made of. Each function is called once a run, and once more for each further replica.

    Attributes:
        config: as config.yaml says it; of it are read "seed" and the section "trainer", where `epochs` and `steps` say
            how long.
        recipe: the recipe's name.
        open_data: returns the data.
        build_recipe: returns networks and objectives, of the data and the number of steps.
        build_hooks: returns the hooks, in order, not yet bound to networks.
        build_hook: returns one more instance of a hook, by its key, for another network.
        build_augments: returns the augmentations.
        check: refuses what is wrong before anything is built.
        init_from: the run or file whose weights the networks start from; None for their own.
        first_step: the step at which the first epoch of the data begins; above 0 where a run continues with other data.
        planned_steps: over how many steps hooks lay out their schedules; None for those of the run.
    """

    config: Config
    recipe: str
    open_data: Callable[[], Data]
    build_recipe: Callable[[Data, int], Recipe]
    build_hooks: Callable[[], list[Hook]]
    build_hook: Callable[[str], Hook]
    build_augments: Callable[[], list[Augment]] = list
    check: Callable[[], None] = lambda: None
    init_from: str | None = None
    first_step: int = 0
    planned_steps: int | None = None

    @property
    def seed(self) -> int:
        """Return the seed of the run."""
        return int(self.config["seed"])

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the section `trainer` of the config."""
        settings: Mapping[str, Any] = self.config["trainer"]
        return settings


def from_config(config: Config, recipe: str = "") -> Blueprint:
    """Return the blueprint of a resolved config; nothing is built yet."""
    plugins = config["plugins"]

    def check() -> None:
        for each in part_checks(config):
            each()

    return Blueprint(
        config,
        recipe,
        open_data=lambda: build_part("data", config["data"], Data, plugins=plugins),
        build_recipe=partial(_build_recipe, config),
        build_hooks=partial(build_hooks, config),
        build_hook=lambda key: build_hook(key, _hook_nodes(config)[key], plugins=plugins),
        build_augments=lambda: build_augments(config.get("augment", {}), plugins),
        check=check,
        init_from=config["init_from"],
    )


def build_hooks(config: Config) -> list[Hook]:
    """Return the hooks that a config names, in order, not yet bound to networks."""
    keras.utils.set_random_seed(config["seed"])  # a hook may be given layers, which are built with it
    nodes = _hook_nodes(config)
    return order_hooks([build_hook(name, node, plugins=config["plugins"]) for name, node in nodes.items()])


def _hook_nodes(config: Config) -> dict[str, Any]:
    return {name: node for name, node in config["hooks"].items() if node is not None}


def _check_several(target: Callable[..., Any], data: Data, wanted: Mapping[str, Any]) -> None:
    """Refuse a network of ours for several inputs; that of a file may have them."""
    if data.preparations and target.__module__.startswith("hookline.") and "packages" not in wanted:
        raise UserError(
            f"Data '{data.name}' has the inputs {', '.join(data.preparations)}, and {target.__name__} takes one. "
            "Expected model=custom model._target_=<module>.<function> plugins=[<module>], or model=keras_file."
        )


def _build_recipe(config: Config, data: Data, total_steps: int) -> Recipe:
    plugins: Sequence[str] = config["plugins"]

    def build_model(**injected: Any) -> keras.Model:
        with told_in_one_line(f"model._target_={config['model'].get(TARGET)}", data):
            offered = {"preparation": data.preparation, "packages": tuple(plugins)}
            target = resolve(config["model"][TARGET], group="model", plugins=plugins)
            wanted = {name: each for name, each in offered.items() if name in parameters_of(target)[0]}
            _check_several(target, data, wanted)
            model = build_part("model", config["model"], keras.Model, plugins=plugins, **injected, **wanted)
        check_names(model)
        return model

    def build_optimizer(learning_rate: float | None = None, updates: int = 1) -> keras.optimizers.Optimizer:
        rate = config["optimizer"]["learning_rate"] if learning_rate is None else learning_rate
        schedule = build(
            config["schedule"], group="schedule", plugins=plugins, learning_rate=rate, total_steps=total_steps
        )
        if updates > 1 and callable(schedule):
            schedule = SeveralUpdates(schedule, updates)
        if callable(schedule):
            schedule = ScaledRate(schedule)
        node = {**config["optimizer"], "learning_rate": schedule}
        return build_part("optimizer", node, keras.optimizers.Optimizer, plugins=plugins)

    parts = Parts(data, build_model, build_optimizer, tuple(plugins))
    return build_part("task", config["task"], Recipe, plugins=plugins, parts=parts)
