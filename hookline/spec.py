"""What a trainer is made of, and how a run is assembled from it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import keras
import numpy as np

from hookline.callbacks import NAME as HISTORY
from hookline.callbacks import Watch
from hookline.hook_list import PROGRESS, Maker, hook_makers
from hookline.inputs import Form, model_dtypes
from hookline.recipes.losses import ONE, ONE_HOT, Loss, losses_of, metrics_of, weights_of
from hookline.recipes.measures import ACCURACY, ACCURACY_METRIC
from hookline.recipes.optimizers import fused_update
from hookline.recipes.supervised import MODEL, output_names, output_shapes, recipe_of
from hookline.trainer.config.schema import TrainerConfig
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.hook import Hook
from hookline.trainer.input.data import Data
from hookline.trainer.network import Network
from hookline.trainer.objective import Objective
from hookline.trainer.order import order_hooks
from hookline.trainer.quiet import plain_warnings
from hookline.trainer.rate_schedules import ScaledRate
from hookline.trainer.recipe import Recipe
from hookline.trainer.run.blueprint import Blueprint
from hookline.trainer.run.finished import PYTHON
from hookline.trainer.run.machine import memory_errors, released_graphs
from hookline.trainer.step.trainer import Trainer as StepTrainer

FUSED = {
    "adam": fused_update.Adam,
    "adamw": fused_update.AdamW,
    "rmsprop": fused_update.RMSprop,
    "sgd": fused_update.SGD,
}
"""What configs/optimizer has under these names: Keras's formulas, one kernel a variable."""
OF_FIT = ("epochs", "steps", "batch_size", "class_weights", "max_seconds")
OF_COMMAND_LINE = (
    *("precision", "allow_slow_precision", "strategy", "replicas", "worker_timeout", "threads"),
    *("report_every_steps", "evaluate_every_epochs"),
)


def resolve_optimizer(given: Any) -> keras.optimizers.Optimizer:
    """Return an optimizer; a schedule in it can be lowered afterwards."""
    if isinstance(given, str) and given.lower() in FUSED:
        return FUSED[given.lower()]()
    if isinstance(given, str):
        try:
            return keras.optimizers.get(given)
        except ValueError:
            known = [each.__name__.lower() for each in keras.optimizers.Optimizer.__subclasses__()]
            raise unknown_name("optimizer", given, {*FUSED, *known, "adagrad", "lion", "nadam"}) from None
    if not isinstance(given, keras.optimizers.Optimizer):
        raise UserError(
            f"optimizer is a {type(given).__name__}. Expected a name such as 'adam', or a keras.optimizers object."
        )
    if given.built:
        raise UserError(
            f"The optimizer {type(given).__name__} has been built for another training. Expected a new one: "
            "type(optimizer).from_config(optimizer.get_config())."
        )
    if isinstance(given._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        given._learning_rate = ScaledRate(given._learning_rate)
    return given


def trainer_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section `trainer` of a config, with what was given."""
    defaults = {each.name: each.default for each in fields(TrainerConfig)}
    for name in given:
        if name in OF_FIT:
            raise UserError(f"{name} received. Expected it by fit().")
        if name not in defaults or name in OF_COMMAND_LINE:
            raise unknown_name("setting", name, set(defaults) - {*OF_FIT, *OF_COMMAND_LINE})
    return {**defaults, **given}


@dataclass
class Plan:
    """Say how far a fit goes.

    Attributes:
        first_step: at which the first epoch of the data begins.
        total_steps: at which the fit ends.
        planned_steps: over how many steps hooks lay out their schedules: those of the first fit.
        batch_size: examples a step.
        epochs_before: of this data, before this fit.
        class_weights: by label; None for all alike.
    """

    first_step: int
    total_steps: int
    planned_steps: int
    batch_size: int
    epochs_before: int = 0
    class_weights: dict[int, float] | None = None


@dataclass
class Spec:
    """Hold what a trainer was given.

    Attributes:
        models: by name of the network, "model" for the only one.
        optimizers: likewise.
        seed: of the run.
        settings: the section `trainer` of a config, but for what `fit` says.
        run_dir: where runs are written; None for nowhere.
        init_from: the run or file whose weights the networks start from; None for their own.
        given: the hooks that were asked for.
        losses: of the only network, by output, by ONE where it has one; none where there are objectives.
        metrics: likewise.
        loss_weights: of several losses, by output.
        objectives: that were given in place of a loss.
        makers: of the hooks of the next fit, by name.
        taken_off: layers whose activation is taken off while a run traces, with its name.
    """

    models: dict[str, keras.Model]
    optimizers: dict[str, keras.optimizers.Optimizer]
    seed: int
    settings: dict[str, Any]
    run_dir: Path | None
    init_from: str | None = None
    given: list[Any] = field(default_factory=list)
    losses: dict[str, Loss] = field(default_factory=dict)
    metrics: dict[str, list[Any]] = field(default_factory=dict)
    loss_weights: dict[str, float] = field(default_factory=dict)
    objectives: list[Objective] = field(default_factory=list)
    makers: dict[str, Maker] = field(default_factory=dict)
    taken_off: dict[int, tuple[Any, str]] = field(default_factory=dict)

    def minimise(self, loss: Any, metrics: Any, weights: Mapping[str, float] | None) -> None:
        """Set the losses and metrics of the only network."""
        self.losses = losses_of(loss, output_names(self.models[MODEL]))
        self.metrics, self.loss_weights = metrics_of(metrics, self.losses), weights_of(weights, self.losses)

    def choose_hooks(self, mode: str | None, *, restore_best: bool = False) -> None:
        """Choose the hooks of the next fit: with the progress of a mode, and what keeps the best weights."""
        given = ["checkpoint", *self.given] if restore_best and self.run_dir is None else self.given
        makers = hook_makers(given, on_disk=self.run_dir is not None, mode=mode)
        asked = self.metrics.get(ONE, [])
        accuracy = next((each for each in asked if isinstance(each, str) and each in ACCURACY), "")
        names = {ACCURACY_METRIC: accuracy} if self.losses else {}
        self.makers = {**makers, HISTORY: Maker(HISTORY, lambda: Watch((), None, names), {})}

    @contextmanager
    def working(self) -> Iterator[None]:
        """Trace and train as the command line does, and leave the state of the process as it was."""
        python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - what `set_random_seed` sets
        try:
            with plain_warnings(), released_graphs(), memory_errors(), self.ending(as_given=False):
                yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002

    @contextmanager
    def ending(self, *, as_given: bool) -> Iterator[None]:
        """Let models end as they were given, or without the activations that the loss has, while the block runs."""
        try:
            self._end(as_given=as_given)
            yield
        finally:
            self._end(as_given=not as_given)

    def _end(self, *, as_given: bool) -> None:
        for layer, name in self.taken_off.values():
            layer.activation = getattr(keras.activations, name) if as_given else keras.activations.linear

    @property
    def form(self) -> Form:
        """Return what becomes of inputs and targets."""
        dtypes, loss = model_dtypes(next(iter(self.models.values()))), self.losses.get(ONE)
        if loss is None:
            return Form(dtypes, names=tuple(self.losses))
        names = output_names(self.models[MODEL])
        shape = output_shapes(self.models[MODEL])[ONE] if names == [ONE] else ()
        classes = int(shape[1] or 0) if shape and loss.classifies(shape) else 0
        return Form(dtypes, classes, loss.kind == ONE_HOT)

    def recipe(self, data: Data, total_steps: int) -> Recipe:
        """Return the networks and objectives for some data."""
        del total_steps  # a schedule of Keras knows its own
        if not self.losses:
            networks = [Network(name, model, self.optimizers[name]) for name, model in self.models.items()]
            return Recipe(networks, list(self.objectives))
        self._end(as_given=True)
        model = self.models[MODEL]
        recipe = recipe_of(
            model,
            self.optimizers[MODEL],
            self.losses,
            self.metrics,
            data,
            output_shapes(model, data),
            weights=self.loss_weights,
        )
        for each in recipe.networks[0].final_activations:
            if each.attribute:
                self.taken_off[id(each.operation)] = (each.operation, each.name)
        return recipe

    def blueprint(self, data: Data, plan: Plan, config: Mapping[str, Any]) -> Blueprint:
        """Return the blueprint of a fit; the config is as `config` returned it."""
        return Blueprint(
            {**config, "trainer": self.fit_settings(plan)},
            "python",
            open_data=lambda: data,
            build_recipe=self.recipe,
            build_hooks=self.hooks,
            build_hook=self._hook,
            first_step=plan.first_step,
            planned_steps=plan.planned_steps,
        )

    def fit_settings(self, plan: Plan) -> dict[str, Any]:
        """Return the section `trainer` of a fit."""
        return {
            **self.settings,
            "steps": plan.total_steps,
            "batch_size": plan.batch_size,
            "class_weights": plan.class_weights,
        }

    def hooks(self) -> list[Hook]:
        """Return the hooks of a fit, in order."""
        keras.utils.set_random_seed(self.seed)  # as the command line does
        return order_hooks([self._hook(name) for name in self.makers])

    def _hook(self, name: str) -> Hook:
        hook = self.makers[name].make()
        hook.name = name
        return hook

    def renew_optimizers(self, before: StepTrainer) -> None:
        """Copy optimizers that hold variables of layers that hooks put in, since the next fit has new ones."""
        for name, model in self.models.items():
            own = {id(each) for each in model.trainable_variables}
            if any(id(each) not in own for each in before.networks[name].model.trainable_variables):
                optimizer = self.optimizers[name]
                config = optimizer.get_config()
                if isinstance(rate := optimizer._learning_rate, ScaledRate):
                    config["learning_rate"] = ScaledRate(rate.schedule, float(rate.factor.numpy()))
                self.optimizers[name] = type(optimizer).from_config(config)

    def config(self) -> dict[str, Any]:
        """Return what config.yaml says: plain values, the same in every process that makes this trainer."""
        hooks = {name: each.node for name, each in self.makers.items() if name not in (PROGRESS, HISTORY)}
        losses = {name: each.name for name, each in self.losses.items()}
        metrics = {name: [_name_of(each) for each in given] for name, given in self.metrics.items()}
        weights = self.loss_weights or None
        task: dict[str, Any] = {"_target_": PYTHON, "loss": losses.get(ONE, losses or None)}
        task |= {"metrics": metrics.get(ONE, list(metrics) and metrics), "loss_weights": weights}
        optimizers = {name: _plain_config(each) for name, each in self.optimizers.items()}
        sizes = {name: model.count_params() for name, model in self.models.items()}
        return {
            "seed": self.seed,
            "run_dir": None,
            "init_from": self.init_from,
            "resume": None,
            "plugins": [],
            "debug": False,
            "task": task,
            "data": {"_target_": PYTHON},
            "model": {"_target_": PYTHON, "weights": sizes},
            "optimizer": {"_target_": PYTHON, **(optimizers[MODEL] if list(optimizers) == [MODEL] else optimizers)},
            "schedule": {"_target_": PYTHON},
            "trainer": dict(self.settings),
            "augment": {},
            "hooks": hooks,
        }


def _name_of(metric: Any) -> str:
    return metric if isinstance(metric, str) else str(getattr(metric, "name", type(metric).__name__))


def _plain_config(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    config = optimizer.get_config()
    config.pop("name", None)  # Keras counts on: "adam_1"
    rate = config.get("learning_rate")
    return {**config, "learning_rate": float(rate) if isinstance(rate, float | int | np.floating) else str(rate)}
