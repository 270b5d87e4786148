"""A finished run, built again from its directory."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from hookline.trainer.config.stored import check_plugins, read_stored
from hookline.trainer.errors import UserError, unknown_name, user_path

if TYPE_CHECKING:
    from hookline.trainer.network import Network
    from hookline.trainer.run.run import Run

Made = TypeVar("Made")
BEST, LAST = "best", "last"
TARGET, PYTHON = "_target_", "hookline.Trainer"
"""What stands in the place of a part that Python gave, and no config can name."""


def read_config(run: str, plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Return the config of a run, ready to be assembled again."""
    config = read_stored(run, "run")
    if (config.get("task") or {}).get(TARGET) == PYTHON:
        raise UserError(f"run={run} was trained by Python. Expected hookline.load('{run}') there, and what it offers.")
    check_plugins(config, plugins, "run")
    named = list(dict.fromkeys([*(config.get("plugins") or []), *plugins]))
    return {**without_initial(config), "plugins": named}


def without_initial(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a run whose weights come from a checkpoint: what it once began with no longer matters.

    That is `init_from`, and the `weights` of a model where they are a file, or a name such as "imagenet".
    """
    model = config["model"]
    begins = isinstance(model, Mapping) and isinstance(model.get("weights"), str)
    return {**config, "init_from": None, "model": {**model, "weights": None} if begins else model}


def restore(run: str, config: dict[str, Any], checkpoint: str | None = None) -> Run:
    """Build a run, and give networks, optimizers and hooks the values of a checkpoint: "best", "last" or None."""
    import keras

    keras.utils.clear_session()  # layers without a name get the numbers that they had in the run
    return _restored(run, config, checkpoint)


def restore_beside(run: str, config: dict[str, Any], checkpoint: str | None = None) -> Run:
    """Build a finished run while another one is being built, without affecting how the other is built."""
    return made_beside(lambda: _restored(run, config, checkpoint))


def made_beside(make: Callable[[], Made]) -> Made:
    """Make something of Keras while a run is being built, without affecting how the run is built.

    Keras numbers layers without a name per thread, so this happens in a thread of its own. Random numbers drawn
    afterwards depend only on the random state before.
    """
    import keras

    seed = random.randrange(2**31)
    with ThreadPoolExecutor(1) as thread:
        made = thread.submit(make).result()
    keras.utils.set_random_seed(seed)
    return made


def shipped_network(run: str, config: dict[str, Any]) -> Network:
    """Return the network of a finished run, with the values that evaluations use at its best checkpoint."""
    from hookline.trainer.run.state import shipped_weights

    trainer = (finished := restore_beside(run, config)).trainer
    if len(trainer.networks) > 1:
        raise UserError(f"this run has the networks {', '.join(trainer.networks)}. Expected a run of one network.")
    (network,) = trainer.networks.values()
    for name, value in shipped_weights(trainer, finished.step)[network.name].items():
        network.variables[name].assign(value)
    return network


def _restored(run: str, config: dict[str, Any], checkpoint: str | None) -> Run:
    from hookline.trainer.run.blueprint import from_config
    from hookline.trainer.run.build_run import build_run
    from hookline.trainer.run.checkpoint import CheckpointStore
    from hookline.trainer.run.state import assign_variables, trainer_variables

    directory = user_path(run, "run")
    store = CheckpointStore(directory / "checkpoints")
    tags, problems = store.tags(), store.problems()
    if not tags:
        told = "".join(f" {problem}" for problem in problems)
        raise UserError(f"run={run} has no checkpoints.{told} Expected a run with the hook 'checkpoint'.")
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    tag = checkpoint or (BEST if BEST in tags else LAST)
    if tag not in tags:
        raise unknown_name("checkpoint", tag, tags)
    loaded = store.load(tag)
    restored = build_run(from_config(config), directory=directory)
    assign_variables(trainer_variables(restored.trainer), loaded.tensors, f"run={run}")  # no sums of an open report
    restored.checkpoint, restored.step = tag, loaded.step
    return restored
