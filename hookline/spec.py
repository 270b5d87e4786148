"""The parts of a trainer, how a run is assembled from them, and their record in the run directory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints
from weakref import WeakValueDictionary

import keras
import numpy as np

from hookline.checks import embedded_inputs
from hookline.deploy.plain_model import architecture
from hookline.hook_list import HISTORY, PROGRESS, Maker, Watch, hook_makers
from hookline.hooks.monitors.early_stopping import EarlyStopping
from hookline.inputs import Form, model_dtypes
from hookline.optimizers import check_new, config_of, copied
from hookline.recipes.losses import ACCURACY, ACCURACY_METRIC, ONE, ONE_HOT, Loss
from hookline.recipes.model_checks import model_inputs
from hookline.recipes.supervised import MODEL, output_shapes, recipe_of
from hookline.trainer.config.schema import TrainerConfig, check_fields, describe, fits
from hookline.trainer.deferred import plain_warnings
from hookline.trainer.errors import UserError, check_choice
from hookline.trainer.files import read_json, write_whole
from hookline.trainer.graph import is_graph
from hookline.trainer.hook import Hook
from hookline.trainer.input.data import Data
from hookline.trainer.network import (
    FUNCTION_OPTIONS,
    Network,
    check_model,
    inner_of,
    layers_digest,
    settings_of,
    undecayed,
)
from hookline.trainer.objective import Objective
from hookline.trainer.recipe import Recipe
from hookline.trainer.run.blueprint import Blueprint
from hookline.trainer.run.finished import PYTHON, foreign_parts
from hookline.trainer.run.machine import kept_seeds, memory_errors, released_graphs
from hookline.trainer.run.results import AUTO, TOTAL_LOSS
from hookline.trainer.step.stage import order_hooks
from hookline.trainer.step.trainer import Trainer as StepTrainer

OF_FIT = ("epochs", "steps", "batch_size", "class_weights", "max_seconds")
OF_COMMAND_LINE = (
    *("precision", "allow_slow_precision", "strategy", "replicas", "worker_timeout", "threads"),
    *("report_every_steps", "evaluate_every_epochs"),
)


def checked_models(model: keras.Model | None, networks: Mapping[str, keras.Model] | None) -> dict[str, keras.Model]:
    """Return the networks by name."""
    if (model is None) == (networks is None):
        raise UserError(f"{'No model' if model is None else 'model and networks'} received. Expected one of them.")
    models: dict[str, Any] = {MODEL: model} if networks is None else dict(networks)
    for name, each in models.items():
        check_model(name, each)
    return models


def trainer_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `trainer` section of a config: the defaults updated by the given settings."""
    defaults = {each.name: each.default for each in fields(TrainerConfig)}
    for name in given:
        if name in OF_FIT:
            raise UserError(f"{name} received. Expected it as an argument of fit().")
        check_choice("setting", name, defaults.keys() - {*OF_FIT, *OF_COMMAND_LINE})
        if not fits(given[name], hint := get_type_hints(TrainerConfig)[name]):
            raise UserError(f"{name}={given[name]!r} received. Expected {describe(hint)}.")
    check_fields(TrainerConfig, settings := {**defaults, **given}, "")
    return settings


@dataclass
class Spec:
    """Hold the arguments of a trainer."""

    models: dict[str, keras.Model]  # by network name, "model" for a single model
    optimizers: dict[str, keras.optimizers.Optimizer]
    seed: int
    settings: dict[str, Any]  # the `trainer` section of a config, except what `fit` sets
    run_dir: Path | None
    init_from: str | None = None  # the run or file that initial weights are taken from
    given: list[Any] = field(default_factory=list)  # the `hooks` argument, as a list
    losses: dict[str, Loss] = field(default_factory=dict)  # by output, ONE for a single output; empty with objectives
    metrics: dict[str, list[Any]] = field(default_factory=dict)
    loss_weights: dict[str, float] = field(default_factory=dict)
    objectives: list[Objective] = field(default_factory=list)  # instead of losses
    makers: dict[str, Maker] = field(default_factory=dict)  # of the hooks of the next fit, by name
    taken_off: dict[int, tuple[Any, str]] = field(default_factory=dict)
    """Layers that lose their activation while a run is traced, with its name; by the layer's id."""
    given_optimizers: WeakValueDictionary[str, keras.optimizers.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        self.given_optimizers = WeakValueDictionary(self.optimizers)

    def choose_hooks(self, mode: str | None, *, restore_best: bool = False) -> None:
        """Choose the hooks and the monitored value of the next fit; `mode` is that of the hook `progress`, or None."""
        makers = hook_makers(self.given, on_disk=self.run_dir is not None, mode=mode, restore_best=restore_best)
        asked = self.metrics.get(ONE, [])
        accuracy = next((each for each in asked if isinstance(each, str) and each in ACCURACY), "")
        names = {ACCURACY_METRIC: accuracy} if self.losses else {}
        if self.losses and not accuracy and self.settings["monitor"] == AUTO:
            self.settings["monitor"] = TOTAL_LOSS  # `history` has no accuracy then
        self.makers = {**makers, HISTORY: Maker(HISTORY, lambda: Watch(names), {})}

    @contextmanager
    def working(self) -> Iterator[None]:
        """Trace and train as the command line does, and restore the state of the process afterwards."""
        with plain_warnings(), kept_seeds(), released_graphs(), memory_errors(), self.ending(as_given=False):
            yield

    @contextmanager
    def ending(self, *, as_given: bool) -> Iterator[None]:
        """Let models end as given, or without the activations that their losses include, within the block."""
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
        """Return how inputs and targets are read and converted."""
        if len(self.models) > 1:
            return Form()  # each has its own inputs
        (model,), loss = self.models.values(), self.losses.get(ONE)
        dtypes = model_dtypes(model)
        if not self.losses:
            return Form(dtypes)
        known: dict[str, Any] = {"inputs": model_inputs(model), "rows": embedded_inputs(model)}
        known |= {"outputs": output_shapes(model), "losses": self.losses}
        if loss is None:
            struct = getattr(model, "output", None) if is_graph(model) else None
            names = tuple(name for name in known["outputs"] or self.losses if name in self.losses)
            return Form(dtypes, names=names, by_name=isinstance(struct, dict), **known)
        shape = known["outputs"].get(ONE, ())
        classes = int(shape[1] or 0) if shape and loss.classifies(shape) else 0
        return Form(dtypes, classes, loss.kind == ONE_HOT, **known)

    def recipe(self, data: Data, total_steps: int) -> Recipe:
        """Return the networks and objectives for some data."""
        del total_steps  # a Keras schedule has its own
        if not self.losses:
            trained = {name for each in self.objectives for name in each.trains}
            fixed = {name for name, model in self.models.items() if not model.trainable_variables} - trained
            networks = [
                Network(name, model, self.optimizers[name], fixed=name in fixed) for name, model in self.models.items()
            ]
            return Recipe(networks, list(self.objectives))
        self._end(as_given=True)
        model = self.models[MODEL]
        shapes = output_shapes(model, data)
        optimizer = self.optimizers[MODEL]
        recipe = recipe_of(model, optimizer, self.losses, self.metrics, data, shapes, weights=self.loss_weights)
        for each in recipe.networks[0].final_activations:
            if each.attribute:
                self.taken_off[id(each.operation)] = (each.operation, each.name)
        return recipe

    def blueprint(
        self, data: Data, fit: Mapping[str, Any], config: Mapping[str, Any], class_weights: Any = None
    ) -> Blueprint:
        """Return the blueprint of a fit, from a dict as `planned_fit` returns it and the result of `config`."""
        own = {"steps": fit["total_steps"], "batch_size": fit["batch_size"], "class_weights": class_weights}
        return Blueprint(
            {**config, "trainer": {**self.settings, **own}},
            "python",
            open_data=lambda: data,
            build_recipe=self.recipe,
            build_hooks=self.hooks,
            build_hook=self._hook,
            first_step=fit["first_step"],
            planned_steps=fit["planned_steps"],
        )

    def hooks(self) -> list[Hook]:
        keras.utils.set_random_seed(self.seed)  # as the command line does
        return order_hooks([self._hook(name) for name in self.makers])

    def _hook(self, name: str) -> Hook:
        hook = self.makers[name].make()
        hook.name = name
        return hook

    def waiting_hooks(self) -> list[str]:
        """Return the hooks that need evaluations on validation data, as named in messages."""
        return [f"The hook '{name}'" for name, each in self.makers.items() if isinstance(each.make(), EarlyStopping)]

    def renew_optimizers(self, before: StepTrainer | None) -> None:
        """Copy optimizers that hold variables of layers that hooks inserted, since the next fit has new layers.

        If the user still holds the original optimizer, the copies share its learning rate. Before the first fit, refuse
        optimizers that another trainer has built since this one was created.
        """
        for name, model in self.models.items():
            if before is None:
                check_new(self.optimizers[name], model.variables)
                continue
            own = {id(each) for each in model.trainable_variables}
            trained = before.networks[name]
            known = {id(each): each.path for each in trained.model.trainable_variables}
            built = {id(each) for each in inner_of(trained.optimizer)._trainable_variables}
            if new := [path for key, path in known.items() if key not in built]:
                raise UserError(f"'{new[0]}' is trainable now, but was not in the last fit. Expected a new Trainer.")
            if known.keys() - own:
                self.optimizers[name] = copied(self.given_optimizers.get(name, self.optimizers[name]))

    @cached_property
    def _before_training(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the optimizers and layers for config.yaml, cached: training may lower a rate or freeze a layer."""
        optimizers: dict[str, Any] = {name: _plain_config(each) for name, each in self.optimizers.items()}
        for name, each in optimizers.items():
            if places := undecayed(self.optimizers[name], self.models[name]):
                each["exclude_from_weight_decay"] = places
        return optimizers, {name: layers_digest(model) for name, model in self.models.items()}

    def config(self) -> dict[str, Any]:
        """Return the contents of config.yaml: plain values, the same in every process that makes this trainer."""
        metrics = {
            name: [each if isinstance(each, str) else str(getattr(each, "name", type(each).__name__)) for each in given]
            for name, given in self.metrics.items()
        }
        losses = {name: each.name for name, each in self.losses.items()}
        settings = {name: settings_of(each.given) for name, each in self.losses.items()}
        optimizers, layers = self._before_training
        return {
            "seed": self.seed,
            "run_dir": None,
            "init_from": self.init_from,
            "resume": None,
            "plugins": [],
            "debug": False,
            "task": {
                "_target_": PYTHON,
                "loss": losses.get(ONE, losses or None),
                "loss_settings": json.dumps(settings.get(ONE, settings)),
                "metrics": metrics.get(ONE, list(metrics) and metrics),
                "loss_weights": self.loss_weights or None,
            },
            "data": {"_target_": PYTHON},
            "model": {
                "_target_": PYTHON,
                "weights": {name: model.count_params() for name, model in self.models.items()},
                "layers": layers,
            },
            "optimizer": {"_target_": PYTHON, **(optimizers[MODEL] if list(optimizers) == [MODEL] else optimizers)},
            "schedule": {"_target_": PYTHON},
            "trainer": dict(self.settings),
            "augment": {},
            "hooks": {name: each.node for name, each in self.makers.items() if name not in (PROGRESS, HISTORY)},
        }


def _plain_config(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    config = config_of(optimizer)
    config.pop("name", None)  # Keras numbers it: "adam_1"
    rate = config.pop("learning_rate", None)
    if (inner := inner_of(optimizer)) is not optimizer:
        config["inner_optimizer"] = _plain_config(inner)
    plain: dict[str, Any] = json.loads(json.dumps(config, default=str))  # lists that Keras tracks become plain ones
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        try:
            rate = keras.optimizers.schedules.serialize(rate)
        except NotImplementedError:
            rate = type(rate.schedule).__name__
    return {**plain, "learning_rate": float(rate) if isinstance(rate, float | int | np.floating) else str(rate)}


RECORD = "trainer.json"
OURS = {"keras", "builtins", "hookline"}  # packages that a record may name parts of


def write_record(directory: Path, spec: Spec) -> None:
    """Write the record that a later process rebuilds the trainer from, without parts that Keras cannot serialize."""
    excludes = MODEL in spec.models and undecayed(spec.optimizers[MODEL], spec.models[MODEL])
    with spec.ending(as_given=True):
        parts = {
            "model": _described(spec.models.get(MODEL)),
            "optimizer": None if excludes else _described(spec.optimizers.get(MODEL)),  # Keras does not save exclusions
            "loss": _by_output({name: _described(each.given) for name, each in spec.losses.items()}),
            "metrics": _by_output({name: list(map(_described, each)) for name, each in spec.metrics.items()}) or [],
            "loss_weights": spec.loss_weights or None,
        }
    hooks = {name: each.whole for name, each in spec.makers.items() if each.node and name != PROGRESS}
    paths = {
        name: {kind: [part.path or part.name for part in parts] for kind, parts in _parts(model).items()}
        for name, model in spec.models.items()
    }
    write_whole(directory / RECORD, json.dumps({**parts, "hooks": hooks, "paths": paths}, indent=1) + "\n")


def read_record(directory: Path) -> dict[str, Any]:
    """Return the record of a run."""
    try:
        record = read_json(directory / RECORD)
    except (OSError, ValueError):
        record = None
    if not isinstance(record, dict) or not isinstance(record.get("hooks"), dict):
        raise UserError(f"{directory / RECORD} cannot be read. Expected the directory of a run of hookline.Trainer.")
    return record


def restore_paths(record: Mapping[str, Any], models: Mapping[str, keras.Model]) -> None:
    """Give the variables and layers of models the paths that they had in the run; checkpoints name variables by path.

    Keras numbers layers by what the process has built before, and a Sequential model that is rebuilt from its config
    has other paths than the original. Models with another structure keep their own paths.
    """
    for name, model in models.items():
        recorded = (record.get("paths") or {}).get(name) or {}
        for kind, parts in _parts(model).items():
            paths = recorded.get(kind) or ()
            if len(paths) == len(parts):
                for part, path in zip(parts, paths, strict=True):
                    part._path = path


def _parts(model: keras.Model) -> dict[str, list[Any]]:
    return {"variables": list(model.variables), "layers": list(model._flatten_layers())}


def rebuilt_part(described: Any, name: str) -> Any:
    """Return a part of a record, rebuilt. Nothing that the file names outside the packages `OURS` is imported."""
    if isinstance(described, str):
        return described
    if isinstance(described, list):
        return [rebuilt_part(each, name) for each in described]
    if isinstance(described, dict) and list(described) == ["outputs"]:
        return {output: rebuilt_part(each, name) for output, each in described["outputs"].items()}
    foreign = sorted(set(foreign_parts(described, OURS))) if described is not None else ["no description"]
    if foreign:
        raise UserError(f"The run's {name} cannot be rebuilt from its files: {', '.join(foreign)}. Expected {name}=.")
    try:
        return keras.saving.deserialize_keras_object(described)
    except Exception as error:  # many kinds: an unknown function, a Lambda, an argument of another version
        raise UserError(f"The run's {name} cannot be rebuilt from its files. Expected {name}=.") from error


def _by_output(values: dict[str, Any]) -> Any:
    return values[ONE] if list(values) == [ONE] else {"outputs": values} if values else None


def _described(part: Any) -> Any:
    if part is None or isinstance(part, str):
        return part
    try:
        described = architecture(part)
        json.dumps(described)
        own = getattr(part, FUNCTION_OPTIONS, None)  # not all in its config, such as the delta of Huber
        if own is not None and getattr(type(part).from_config(part.get_config()), FUNCTION_OPTIONS) != own:
            return None
    except (TypeError, ValueError, NotImplementedError, AttributeError):
        return None
    return described
