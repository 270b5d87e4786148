"""Finished runs, rebuilt from their directories; trained models, read as data; and plugin classes in them."""

from __future__ import annotations

import importlib
import random
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from hookline.trainer.config.parts import check_found
from hookline.trainer.config.schema import TARGET
from hookline.trainer.config.stored import PYTHON, check_plugins, read_stored, without_initial
from hookline.trainer.errors import UserError, user_path
from hookline.trainer.files import MAX_BYTES, open_file, parse_json

if TYPE_CHECKING:
    import keras

    from hookline.trainer.input.preparation import Range
    from hookline.trainer.network import Network
    from hookline.trainer.run.run import Run

Made = TypeVar("Made")
LAST = "last"
KERAS_SUFFIX, KERAS_CONFIG = ".keras", "config.json"


def read_config(run: str, plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Return the config of a run, ready to be rebuilt."""
    config = read_stored(run, "run")
    if (config.get("task") or {}).get(TARGET) == PYTHON:
        raise UserError(
            f"run={run} was trained from Python. Use Python: hookline.load('{run}') evaluates and predicts, and "
            "exports with examples: export(path, format, x=x, y=y)."
        )
    check_plugins(config, plugins, "run")
    named = list(dict.fromkeys([*(config.get("plugins") or []), *plugins]))
    return {**without_initial(config), "plugins": named}


def restore(run: str, config: dict[str, Any], checkpoint: str | None = None) -> Run:
    """Build a run and restore networks, optimizers and hooks from a checkpoint: "best", "last" or None for either."""
    import keras

    keras.utils.clear_session()  # unnamed layers get the same numbers as in the run
    return _restored(run, config, checkpoint)


def restore_beside(run: str, config: dict[str, Any], checkpoint: str | None = None) -> Run:
    """Build a finished run while another one is being built, without affecting that one."""
    return _made_beside(lambda: _restored(run, config, checkpoint))


def _made_beside(make: Callable[[], Made]) -> Made:
    """Build Keras objects so that names and random numbers of a run that is being built do not depend on them."""
    import keras

    seed = random.randrange(2**31)
    with ThreadPoolExecutor(1) as thread:  # Keras numbers unnamed layers per thread
        made = thread.submit(make).result()
    keras.utils.set_random_seed(seed)
    return made


def shipped_network(finished: Run) -> Network:
    """Return the only network of a restored run, after assigning the values that evaluation uses to its variables."""
    from hookline.trainer.network import settle
    from hookline.trainer.run.state import shipped_weights

    trainer = finished.trainer
    if len(trainer.networks) > 1:
        raise UserError(f"this run has the networks {', '.join(trainer.networks)}. Expected a run of one network.")
    (network,) = trainer.networks.values()
    for name, value in shipped_weights(trainer, finished.step)[network.name].items():
        network.variables[name].assign(value)
    settle(network.model)
    return network


def _restored(run: str, config: dict[str, Any], checkpoint: str | None) -> Run:
    from hookline.trainer.network import settle
    from hookline.trainer.run.blueprint import from_config
    from hookline.trainer.run.build_run import build_run
    from hookline.trainer.run.checkpoint import CheckpointStore
    from hookline.trainer.run.state import assign_variables, trainer_variables

    directory = user_path(run, "run")
    store = CheckpointStore(directory / "checkpoints")
    if not store.tags():
        why = "".join(f" {problem}" for problem in store.problems())
        raise UserError(f"run={run} has no checkpoints.{why} Expected a run with the hook 'checkpoint'.")
    tag = checkpoint or store.best_or_last()
    loaded = store.load_sound(tag)
    restored = build_run(from_config(config), directory=directory)
    assign_variables(trainer_variables(restored.trainer), loaded.tensors, f"run={run}")  # no sums of an open report
    for network in restored.trainer.networks.values():
        settle(network.model)
    restored.checkpoint, restored.step = tag, loaded.step
    return restored


def read_model(path: str, key: str) -> tuple[keras.Model, Range]:
    """Return a trained model of a run or a .keras file, and its pixel range, without running code that the file names.

    A run must have one network, and its model lacks the final activation. `key` is the option that names the path.
    """
    given = user_path(path, key)
    try:
        if given.suffix == KERAS_SUFFIX:
            check_parts(given)
            return _made_beside(lambda: load_keras(given)), None
        finished = restore_beside(path, read_config(path))
        preparation = finished.data.preparation
        return shipped_network(finished).model, None if preparation is None else preparation.pixel_range
    except UserError as error:
        raise UserError(f"{key}={path}: {error}") from error


def model_digest(model: keras.Model) -> str:
    """Return a digest of the values of a model's weights and moving statistics, in their order."""
    from hookline.trainer.run.checkpoint_files import tensors_digest

    return tensors_digest({str(number): each.numpy() for number, each in enumerate(model.weights)})


def load_keras(path: Path) -> keras.Model:
    """Return the model of a .keras file that `check_parts` has accepted."""
    import keras

    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:
        innermost = str(error).rpartition("Exception encountered: ")[2].partition("Full object config")[0]
        reason = " ".join(innermost.split())[:300].rstrip(" .")
        raise UserError(f"Keras cannot load it in safe mode: {reason}.") from error
    if not isinstance(model, keras.Model):
        raise UserError(f"it holds a {type(model).__name__}. Expected a model.")
    return model


def check_parts(path: Path, packages: Sequence[str] = ()) -> None:
    """Refuse a .keras file that names code outside Keras and the allowed packages, since loading would run it."""
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive, archive.open(KERAS_CONFIG) as stored:
            if len(text := stored.read(MAX_BYTES + 1)) > MAX_BYTES:
                raise ValueError("its config is too large")
        config = parse_json(text)
    except (OSError, ValueError, KeyError, NotImplementedError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"it cannot be read ({reason:.200}). Expected a file of model.save('<name>.keras').") from error
    if foreign := sorted(set(foreign_parts(config, {"keras", *packages}))):
        raise UserError(
            f"it has parts that are not from Keras: {', '.join(foreign):.200}. Expected a model of Keras's own layers, "
            "the directory of a run, or a keras.Model in Python."
        )


def foreign_parts(config: Any, known: Set[str] = frozenset(("keras",))) -> Iterator[str]:
    """Yield the names that a serialized model would import or look up outside the known packages."""
    if isinstance(config, Mapping):
        if "class_name" in config and "config" in config:
            module, registered = config.get("module"), str(config.get("registered_name") or "")
            root = str(module or "keras").partition(".")[0]
            if root not in known or (">" in registered and len(known) == 1):
                yield str(config["config" if config["class_name"] == "function" else "class_name"])
        config = list(config.values())
    if isinstance(config, list | tuple):
        for value in config:
            yield from foreign_parts(value, known)


def own_classes(plugins: Iterable[str]) -> AbstractContextManager[Any]:
    """Return a context manager in which Keras finds the plugins' definitions, as if they were registered with it."""
    plugins = list(plugins)
    if not plugins:
        return nullcontext()
    import keras  # readers of other formats do not need it

    check_found(plugins)
    for package in plugins:
        try:
            importlib.import_module(package)
        except Exception as error:
            raise UserError(f"plugins={package} cannot be imported: {type(error).__name__}: {error}.") from error
    inside = tuple(f"{package}." for package in plugins)
    modules = [module for name, module in list(sys.modules.items()) if f"{name}.".startswith(inside)]
    parts = {name: part for module in modules for name, part in vars(module).items() if _is_part(part)}
    return keras.saving.custom_object_scope(parts)


def _is_part(value: Any) -> bool:
    """Return whether a value may be part of a model: a class with a config, or a function."""
    return isinstance(value, FunctionType) or (isinstance(value, type) and hasattr(value, "from_config"))
