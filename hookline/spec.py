"""What a trainer is made of, and how a run is assembled from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import keras
import numpy as np

from hookline.callbacks import NAME as HISTORY
from hookline.hook_list import PROGRESS, Maker
from hookline.inputs import Form, model_dtypes
from hookline.losses import MODEL, ONE_HOT, Loss, recipe_of
from hookline.planning import Plan
from hookline.recipes.optimizers import fused_update
from hookline.trainer.config.schema import TrainerConfig
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.hook import Hook
from hookline.trainer.input.data import Data
from hookline.trainer.network import Network
from hookline.trainer.objective import Objective
from hookline.trainer.order import order_hooks
from hookline.trainer.rate_schedules import ScaledRate
from hookline.trainer.recipe import Recipe
from hookline.trainer.run.blueprint import Blueprint
from hookline.trainer.run.finished import PYTHON
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
    """Return an optimizer; a schedule in it can be lowered afterwards.

    Args:
        given: a name, or an optimizer of Keras that has made no step.

    Raises:
        UserError: no such optimizer, or one that has trained already.
    """
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


def copied_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return an optimizer of the same settings, not built yet.

    Args:
        optimizer: to copy.
    """
    config = optimizer.get_config()
    if isinstance(rate := optimizer._learning_rate, ScaledRate):
        config["learning_rate"] = ScaledRate(rate.schedule, float(rate.factor.numpy()))
    return type(optimizer).from_config(config)


def trainer_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section `trainer` of a config, with what was given.

    Args:
        given: by name, such as {"accumulation_steps": 4}.

    Raises:
        UserError: a name that there is not, or that has another place here.
    """
    defaults = {each.name: each.default for each in fields(TrainerConfig)}
    for name in given:
        if name in OF_FIT:
            raise UserError(f"{name} received. Expected it by fit().")
        if name not in defaults or name in OF_COMMAND_LINE:
            raise unknown_name("setting", name, set(defaults) - {*OF_FIT, *OF_COMMAND_LINE})
    return {**defaults, "monitor": "", "monitor_mode": "", **given}


@dataclass
class Spec:
    """Hold what a trainer was given.

    Attributes:
        models: by name of the network, "model" for the only one.
        optimizers: likewise.
        makers: of hooks, by name.
        seed: of the run.
        settings: the section `trainer` of a config, but for what `fit` says.
        loss: of the only network; None where there are objectives.
        metrics: beside it.
        objectives: that were given in place of a loss.
        taken_off: layers whose activation is taken off while a run traces, with its name.
    """

    models: dict[str, keras.Model]
    optimizers: dict[str, keras.optimizers.Optimizer]
    makers: dict[str, Maker]
    seed: int
    settings: dict[str, Any]
    loss: Loss | None = None
    metrics: list[Any] = field(default_factory=list)
    objectives: list[Objective] = field(default_factory=list)
    taken_off: dict[int, tuple[Any, str]] = field(default_factory=dict)

    @property
    def form(self) -> Form:
        """Return what becomes of inputs and targets."""
        if self.loss is None:
            return Form(model_dtypes(next(iter(self.models.values()))))
        shape = output_shape(self.models[MODEL])
        classes = int(shape[1] or 0) if shape and self.loss.classifies(shape) else 0
        return Form(model_dtypes(self.models[MODEL]), classes, self.loss.kind == ONE_HOT)

    @contextmanager
    def as_trained(self) -> Iterator[None]:
        """Let models end as they are trained, without the activations that the loss has, while the block runs."""
        try:
            for layer, _ in self.taken_off.values():
                layer.activation = keras.activations.linear
            yield
        finally:
            for layer, name in self.taken_off.values():
                layer.activation = getattr(keras.activations, name)

    @contextmanager
    def as_given(self) -> Iterator[None]:
        """Let models end as they were given, within `as_trained`."""
        for layer, name in self.taken_off.values():
            layer.activation = getattr(keras.activations, name)
        yield
        for layer, _ in self.taken_off.values():
            layer.activation = keras.activations.linear

    def recipe(self, data: Data, total_steps: int) -> Recipe:
        """Return the networks and objectives for some data.

        Args:
            data: to train on.
            total_steps: of the run.
        """
        del total_steps  # a schedule of Keras knows its own
        if self.loss is None:
            networks = [Network(name, model, self.optimizers[name]) for name, model in self.models.items()]
            return Recipe(networks, list(self.objectives))
        for layer, name in self.taken_off.values():
            layer.activation = getattr(keras.activations, name)
        model = self.models[MODEL]
        recipe = recipe_of(
            model, self.optimizers[MODEL], self.loss, self.metrics, data, output_shape(model) or _called(model, data)
        )
        for each in recipe.networks[0].final_activations:
            if each.attribute:
                self.taken_off[id(each.operation)] = (each.operation, each.name)
        return recipe

    def blueprint(self, data: Data, plan: Plan) -> Blueprint:
        """Return the blueprint of a fit.

        Args:
            data: to train on.
            plan: how far.
        """
        return Blueprint(
            seed=self.seed,
            settings=self.fit_settings(plan),
            open_data=lambda: data,
            build_recipe=self.recipe,
            build_hooks=self.hooks,
            build_hook=self._hook,
            first_step=plan.first_step,
            planned_steps=plan.planned_steps,
        )

    def fit_settings(self, plan: Plan) -> dict[str, Any]:
        """Return the section `trainer` of a fit.

        Args:
            plan: how far.
        """
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
        """Copy optimizers that hold variables of layers that hooks put in, since the next fit has new ones.

        Args:
            before: of the fit before.
        """
        for name, model in self.models.items():
            own = {id(each) for each in model.trainable_variables}
            if any(id(each) not in own for each in before.networks[name].model.trainable_variables):
                self.optimizers[name] = copied_optimizer(self.optimizers[name])

    def config(self) -> dict[str, Any]:
        """Return what config.yaml says: plain values, the same in every process that makes this trainer."""
        hooks = {name: each.node for name, each in self.makers.items() if name not in (PROGRESS, HISTORY)}
        task = {"_target_": PYTHON, "loss": self.loss.name if self.loss else None, "metrics": self._metric_names()}
        optimizers = {name: _rate_as_text(each.get_config()) for name, each in self.optimizers.items()}
        for each in optimizers.values():
            each.pop("name", None)  # Keras counts on: "adam_1"
        sizes = {name: model.count_params() for name, model in self.models.items()}
        return {
            "seed": self.seed,
            "run_dir": None,
            "init_from": None,
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

    def _metric_names(self) -> list[str]:
        return [each if isinstance(each, str) else getattr(each, "name", type(each).__name__) for each in self.metrics]


def output_shape(model: keras.Model) -> tuple[int | None, ...]:
    """Return the shape of a model's output, the batch first; () where it does not tell.

    Args:
        model: built.
    """
    shape = getattr(model, "output_shape", None) if getattr(model, "outputs", None) else None
    nested = isinstance(shape, tuple) and any(isinstance(each, tuple | list) for each in shape)
    return tuple(shape) if isinstance(shape, tuple) and not nested else ()


def _called(model: keras.Model, data: Data) -> tuple[int | None, ...]:
    """Return the shape of what a subclassed model returns for the first example."""
    batch = data.train.source.gather(data.train.indices[:1])
    values = [[each.value for each in kind] for kind in (model.trainable_variables, model.non_trainable_variables)]
    outputs, _ = model.stateless_call(*values, batch["inputs"])  # nothing is written
    shape = getattr(outputs, "shape", None)
    return () if shape is None else (None, *tuple(shape)[1:])


def _rate_as_text(config: dict[str, Any]) -> dict[str, Any]:
    rate = config.get("learning_rate")
    plain = float(rate) if isinstance(rate, float | int | np.floating) else str(rate)
    return {**config, "learning_rate": plain}
