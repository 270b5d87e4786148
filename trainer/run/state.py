"""The state of a run as arrays by key: what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from trainer.errors import UserError, did_you_mean
from trainer.hook import GraphHook
from trainer.network import Network
from trainer.step.loss_scale import LossScale
from trainer.step.trainer import Trainer


def run_variables(
    networks: Iterable[Network],
    hooks: Iterable[GraphHook],
    accumulators: tf.Variable,
    loss_scale: LossScale | None = None,
) -> dict[str, tf.Variable]:
    """Return every variable that the run depends on, by key.

    Keys: "network/<network>/<variable>" (weights, moving statistics, seed state), "optimizer/<network>/<variable>",
    "hook/<hook>/<variable>", "loss_scale/<variable>", "accumulators".

    Args:
        networks: with built optimizers.
        hooks: built.
        accumulators: the metrics' sums and counts.
        loss_scale: of a run in float16; None otherwise.
    """
    return {"accumulators": accumulators, **_trained_variables(networks, hooks, loss_scale)}


def _trained_variables(
    networks: Iterable[Network], hooks: Iterable[GraphHook], loss_scale: LossScale | None
) -> dict[str, tf.Variable]:
    variables: dict[str, tf.Variable] = {}
    if loss_scale is not None:
        variables |= {f"loss_scale/{name}": variable for name, variable in loss_scale.state().items()}
    for network in networks:
        variables |= {f"network/{network.name}/{name}": v.value for name, v in network.variables.items()}
        variables |= {f"optimizer/{network.name}/{name}": v.value for name, v in network.optimizer_variables.items()}
        if network.rate_factor is not None:
            variables[f"optimizer/{network.name}/learning_rate_factor"] = network.rate_factor
    for hook in hooks:
        variables |= {f"hook/{hook.name}/{name}": variable for name, variable in hook.state().items()}
    return variables


def trainer_variables(trainer: Trainer) -> dict[str, tf.Variable]:
    """Return every variable of a replica that training writes, by the keys of `run_variables`.

    Args:
        trainer: of the replica.
    """
    return _trained_variables(trainer.networks.values(), trainer.hooks, trainer.loss_scale)


def copy_variables(source: Mapping[str, tf.Variable], target: Mapping[str, tf.Variable]) -> None:
    """Give variables of one replica the values of another's.

    Args:
        source: by key; may hold more.
        target: of the same shapes.

    Raises:
        ValueError: a key is missing: the replicas were not built alike.
    """
    if missing := target.keys() - source.keys():
        raise ValueError(f"Replicas were built with other variables: {sorted(missing)}.")
    for key, variable in target.items():
        variable.assign(source[key])


def share_variables(trainers: Sequence[Trainer]) -> None:
    """Give all replicas of this process the variables of the first, after something outside the step wrote these.

    Args:
        trainers: of the replicas.
    """
    for each in trainers[1:]:
        copy_variables(trainer_variables(trainers[0]), trainer_variables(each))


def evaluation_keys(variables: Mapping[str, tf.Variable]) -> set[str]:
    """Return the keys of what an evaluation depends on: the networks' own variables and the hooks' state."""
    return {key for key in variables if key.startswith(("network/", "hook/"))}


class VariableValues(Mapping[str, np.ndarray]):
    """Give the values of variables by key, each read anew when it is asked for: nothing holds all of them at once."""

    def __init__(self, variables: Mapping[str, tf.Variable]) -> None:
        """Read nothing yet.

        Args:
            variables: by key.
        """
        self._variables = variables

    def __getitem__(self, key: str) -> np.ndarray:
        """Return a copy of the value of now."""
        value: np.ndarray = self._variables[key].numpy()
        return value

    def __iter__(self) -> Iterator[str]:
        """Yield the keys."""
        return iter(self._variables)

    def __len__(self) -> int:
        """Return the number of variables."""
        return len(self._variables)


def read_variables(variables: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
    """Return copies of the variables' values by key."""
    return dict(VariableValues(variables))


def assign_variables(variables: Mapping[str, tf.Variable], tensors: Mapping[str, np.ndarray], source: str) -> None:
    """Assign arrays to the variables of the same keys; all are checked before any changes.

    Args:
        variables: to assign, by key.
        tensors: must hold every key, in the right shape; further keys are passed over.
        source: where the arrays come from, for the message.

    Raises:
        UserError: a variable is missing or has another shape; names the first.
    """
    for key, variable in variables.items():
        if key not in tensors:
            raise UserError(
                f"{source} has no variable '{key}'.{did_you_mean(key, tensors)} Expected a run of the same network: "
                "give the same model and hooks."
            )
        if not variable.shape.is_compatible_with(tensors[key].shape):
            raise UserError(
                f"'{key}' has the shape {list(tensors[key].shape)} in {source}, but {list(variable.shape)} here. "
                "Expected a run of the same network: give the same model values."
            )
    for key, variable in variables.items():
        variable.assign(tensors[key])
