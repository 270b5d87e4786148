"""Load a run from disk as a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import yaml

from hookline.fits import KEY, State, check_same
from hookline.hook_list import ALWAYS, HISTORY, ON_DISK, Watch
from hookline.inputs import INPUTS, Examples, split_of
from hookline.recipes.supervised import MODEL
from hookline.session import Trainer
from hookline.spec import OF_COMMAND_LINE, OF_FIT, Spec, read_record, rebuilt_part, restore_paths, trainer_settings
from hookline.trainer.config.overrides import resume_override
from hookline.trainer.config.stored import read_stored, spread_settings
from hookline.trainer.errors import UserError, user_path
from hookline.trainer.hook import HostHook
from hookline.trainer.input.data import Data
from hookline.trainer.network import settle
from hookline.trainer.objective import Objective
from hookline.trainer.run.build_run import build_trainer
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.directory import config_text
from hookline.trainer.run.finished import LAST, PYTHON, read_config, restore_beside
from hookline.trainer.run.machine import kept_seeds
from hookline.trainer.run.state import assign_variables, trainer_variables


@kept_seeds()
def load(
    run_dir: str | Path,
    *,
    checkpoint: str | None = None,
    plugins: Sequence[str] = (),
    model: keras.Model | None = None,
    optimizer: Any = None,
    loss: Any = None,
    metrics: Sequence[Any] | None = None,
    hooks: Sequence[Any] | None = None,
    networks: Mapping[str, keras.Model] | None = None,
    objectives: Sequence[Objective] = (),
) -> Trainer:
    """Load the trainer of a run that was made by `Trainer(run_dir=...)` or from the command line.

    It evaluates, predicts and has the shipped `model`; a Python run can also continue with `fit`. Pass inputs in the
    form that the network takes: a command line run prepared them by its `data` config.

    Args:
        run_dir: the run directory.
        checkpoint: "best" or "last"; None for the last of a Python run, and the best, else last, of a command line run.
        plugins: names of code packages that a command line run uses; only those that you trust.
        model: the model of a Python run, needed if it has custom classes; its weights are replaced.
        optimizer: the optimizer of a Python run, needed if it is custom or excludes variables from weight decay.
        loss: the loss of a Python run, needed if it is custom.
        metrics: the metrics of a Python run, needed if some are custom.
        hooks: all hooks of a Python run, needed if some are custom or have arguments that are not plain values.
        networks: the networks of a Python run of several networks, by name.
        objectives: the objectives of a Python run of several networks.

    Returns:
        A `Trainer` with the state of the checkpoint.

    Raises:
        UserError: no such run or checkpoint, or a part that must be passed is missing. UserError is a ValueError.
    """
    directory = user_path(run_dir, KEY)
    config = read_stored(str(directory), KEY)
    if config["task"].get("_target_") != PYTHON:
        return _of_command_line(directory, plugins, checkpoint, [model, networks, optimizer, loss, metrics, hooks])
    record = read_record(directory)
    given = {"optimizer": optimizer, "loss": loss, "metrics": metrics}
    if networks is None:
        given = _rebuilt(directory, record, given)
    own = rebuilt_part(record.get(MODEL), MODEL) if model is None and networks is None else model
    restore_paths(record, {MODEL: own} if own is not None else networks or {})
    trainer = Trainer(
        own,
        hooks=_hooks(config, record) if hooks is None else hooks,
        seed=config["seed"],
        run_dir=directory,
        networks=networks,
        objectives=objectives,
        **{key: each for key, each in given.items() if each is not None},
        **_settings(config["trainer"]),
    )
    if hooks is not None:
        _check_hooks(directory, config, trainer._spec.config())
    _restore(trainer, directory, checkpoint or LAST, config["init_from"])
    return trainer


def _rebuilt(directory: Path, record: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a run with one network, as given or rebuilt from its record."""
    if MODEL not in (record.get("paths") or {MODEL}):
        raise UserError(f"'{directory}' is a run of several networks. Expected networks=, objectives= and optimizer=.")
    return {key: rebuilt_part(record.get(key), key) if each is None else each for key, each in given.items()}


def _settings(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `trainer` section of a config as keyword arguments of `Trainer`."""
    kept = trainer_settings({}).keys() - {*OF_FIT, *OF_COMMAND_LINE}
    return {key: value for key, value in section.items() if key in kept and value not in (None, "")}


def _check_hooks(directory: Path, *configs: dict[str, Any]) -> None:
    """Refuse hooks that differ from the run's: its predictions and shipped weights depend on them."""
    known = [yaml.safe_load(config_text(each))["hooks"] for each in configs]
    ours = {*ALWAYS, *ON_DISK}
    settings = spread_settings([{"hooks": {k: v for k, v in each.items() if k not in ours}} for each in known])
    check_same(directory, settings)


def _hooks(config: Mapping[str, Any], record: Mapping[str, Any]) -> list[Any]:
    """Return the hooks of a run in the form that `Trainer` takes."""
    found: list[Any] = [{name: None} for name in (*ALWAYS, *ON_DISK) if name not in config["hooks"]]
    for name, node in config["hooks"].items():
        if not record["hooks"].get(name, False):
            raise UserError(f"The run's hook '{name}' has unsaved arguments. Expected hooks=, all hooks of the run.")
        found.append({name: node})
    return found


def _restore(trainer: Trainer, directory: Path, tag: str, init_from: str | None) -> None:
    """Build networks and hooks without data, and restore their values from a checkpoint."""
    checkpoint = CheckpointStore(directory / "checkpoints").load_sound(tag)
    states = checkpoint.state["hooks"]
    fit, spec = states[HISTORY]["fit"], trainer._spec
    spec.init_from = init_from  # so that the config equals the run's; the weights come from the checkpoint
    data = _stand_in(spec, fit)
    pace = SimpleNamespace(steps_per_epoch=fit["steps_per_epoch"], batch_size=fit["batch_size"])
    blueprint = spec.blueprint(data, fit, spec.config())
    with spec.working():
        hooks = blueprint.build_hooks()
        built, bound = build_trainer(blueprint, hooks, data, pace, fit["total_steps"])
        variables = trainer_variables(built)
        assign_variables(variables, checkpoint.tensors, f"the checkpoint of step {checkpoint.step}")
        for network in built.networks.values():
            settle(network.model)
    for hook in bound:
        if isinstance(hook, HostHook) and hook.name in states:
            hook.load_state_dict(states[hook.name])
    watch = next(each for each in bound if isinstance(each, Watch))
    run = checkpoint.state["run"]
    trainer._state = State(built, bound, watch, variables, loaded_step=checkpoint.step, loaded_tag=tag, loaded=run)


def _stand_in(spec: Spec, fit: Mapping[str, Any]) -> Data:
    """Return one example of zeros in the structure of the run's data."""
    if fit["input_shape"]:
        inputs: Any = np.zeros([1, *fit["input_shape"]], np.float32)
    elif INPUTS in fit:
        inputs = _zeros(fit[INPUTS])
    else:  # several inputs of an older run
        model = next(iter(spec.models.values()))
        inputs = tf.nest.map_structure(lambda each: np.zeros([1, *(n or 1 for n in each.shape[1:])]), model.input)
    train = split_of("train", Examples(inputs, np.zeros([1], np.int64)), spec.form)
    return Data("nothing", train, None, None, tuple(fit["input_shape"]), fit["classes"])


def _zeros(kinds: Any) -> Any:
    """Return an array [1, ...] for each [dtype, *shape] in a structure."""
    if isinstance(kinds, Mapping):
        return {name: _zeros(each) for name, each in kinds.items()}
    if isinstance(kinds[0], str):
        return np.zeros([1, *kinds[1:]], kinds[0])
    return [_zeros(each) for each in kinds]


def _of_command_line(directory: Path, plugins: Sequence[str], checkpoint: str | None, parts: list[Any]) -> Trainer:
    if any(part is not None for part in parts):
        raise UserError(
            f"'{directory}' was made from the command line, and its config names its parts. Expected no parts "
            "here, only plugins=['my_package'] for the package of your own parts."
        )
    run = restore_beside(str(directory), read_config(str(directory), plugins), checkpoint)
    trainer = Trainer.__new__(Trainer)
    models = {name: each.model for name, each in run.networks.items()}
    optimizers = {name: each.optimizer for name, each in run.networks.items()}
    trainer.run_dir = directory
    trainer._spec = Spec(models, optimizers, run.trainer.seed, {}, directory, objectives=run.trainer.objectives)
    watch, variables = Watch({}), trainer_variables(run.trainer)
    trainer._state = State(run.trainer, run.hooks, watch, variables, run, loaded_tag=run.checkpoint)
    trainer._kept = None
    trainer._fixed = f"Resume it with python train.py {resume_override(directory)}."
    return trainer
