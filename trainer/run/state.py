"""The variables of a run: in a checkpoint, in an evaluation, and in the form in which they are shipped."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError, did_you_mean
from hookline.trainer.hook import Bits, Hook
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.returned import checked
from hookline.trainer.step.trainer import Trainer


def run_variables(loop: ChunkLoop) -> dict[str, tf.Variable]:
    """Return every variable that a run depends on, by key: those of its first replica, and "accumulators"."""
    return {"accumulators": loop.accumulators.variable, **trainer_variables(loop.trainer)}


def trainer_variables(trainer: Trainer) -> dict[str, tf.Variable]:
    """Return every variable that training writes, by key: network/<network>/, optimizer/<network>/, hook/<hook>/ ..."""
    variables: dict[str, tf.Variable] = {}
    if trainer.loss_scale is not None:
        variables |= {f"loss_scale/{name}": variable for name, variable in trainer.loss_scale.state().items()}
    for network in trainer.networks.values():
        variables |= {f"network/{network.name}/{name}": v.value for name, v in network.variables.items()}
        variables |= {f"optimizer/{network.name}/{name}": v.value for name, v in network.optimizer_variables.items()}
        if network.rate_factor is not None:
            variables[f"optimizer/{network.name}/learning_rate_factor"] = network.rate_factor
    for hook in trainer.hooks:
        variables |= {f"hook/{hook.name}/{name}": variable for name, variable in hook.declare().state.items()}
    return variables


def share_variables(trainers: Sequence[Trainer]) -> None:
    """Copy the variables of the first replica of this process to the others, after something outside the step."""
    for each in trainers[1:]:
        first, own = trainer_variables(trainers[0]), trainer_variables(each)
        if missing := own.keys() - first.keys():
            raise ValueError(f"Replicas were built with other variables: {sorted(missing)}.")
        for key, variable in own.items():
            variable.assign(first[key])


def evaluation_keys(variables: Mapping[str, tf.Variable]) -> set[str]:
    """Return the keys that an evaluation depends on: the variables of networks and the state of hooks."""
    return {key for key in variables if key.startswith(("network/", "hook/"))}


class VariableValues(Mapping[str, np.ndarray]):
    """Give copies of the values of variables by key, each read on access: nothing holds all of them at once."""

    def __init__(self, variables: Mapping[str, tf.Variable]) -> None:
        self._variables = variables

    def __getitem__(self, key: str) -> np.ndarray:
        value: np.ndarray = self._variables[key].numpy()
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)


def assign_variables(variables: Mapping[str, tf.Variable], tensors: Mapping[str, np.ndarray], source: str) -> None:
    """Assign arrays to the variables of the same keys; all are checked before any changes."""
    for key, variable in variables.items():
        if key not in tensors:
            raise UserError(
                f"{source} has no variable '{key}'.{did_you_mean(key, tensors)} Expected the same model and hooks."
            )
        if not variable.shape.is_compatible_with(tensors[key].shape):
            raise UserError(
                f"'{key}' has the shape {list(tensors[key].shape)} in {source}, but {list(variable.shape)} here."
            )
    for key, variable in variables.items():
        variable.assign(tensors[key])


FLOAT, FLOAT_BITS = 32, 32.0
Number = TypeVar("Number", int, float)
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Forms:
    """Hold the form in which a network's weights and inputs are shipped; bits if they are not those of a float32."""

    shipped: Mapping[str, np.ndarray] = field(default_factory=dict)  # what evaluation uses in place of each weight
    stored_bits: Mapping[str, float] = field(default_factory=dict)  # of an entry, by variable name
    weight_bits: Mapping[str, int] = field(default_factory=dict)  # in which weights are multiplied, by variable name
    input_bits: Mapping[str, int] = field(default_factory=dict)  # of a layer's input, by its path


Weights = dict[str, dict[str, np.ndarray]]
"""By network name, then by variable name."""


def weights_reader(trainer: Trainer) -> Callable[[int], Weights]:
    """Return a function that reads what evaluation uses at a step: `shipped_weights`, traced once."""

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)], autograph=False)
    def used(step: tf.Tensor) -> dict[str, dict[str, tf.Tensor]]:
        passes = trainer.forward(step, {}, objective="", training=False).passes
        values = {name: {**each.context.weights, **each.state} for name, each in passes.items()}
        return {name: {key: values[name][key] for key in trainer.networks[name].weights} for name in passes}

    traced = used.get_concrete_function()  # called directly, runs in a row get no warning of frequent retracing
    return lambda step: tf.nest.map_structure(lambda value: value.numpy(), traced(tf.constant(step, tf.int64)))


def shipped_weights(trainer: Trainer, step: int) -> Weights:
    """Return what evaluation uses in place of each weight and moving statistic, after every hook."""
    return weights_reader(trainer)(step)


def shipped_forms(trainer: Trainer, weights: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Forms]:
    """Return the smallest form that holds what is shipped of every network, after all hooks."""
    forms = {}  # each hook is asked about the final values: pruned kernels rounded to a sign hold no zeros
    for name, shipped in weights.items():
        hooks = [hook for hook in trainer.hooks if hook.network == name]
        given = [answer(each, "shipped_bits", Bits(), shipped, given=shipped) for each in hooks]
        forms[name] = Forms(
            shipped,
            stored_bits=_fewest([each.stored for each in given], FLOAT_BITS),
            weight_bits=_fewest([each.weights for each in given], FLOAT),
            input_bits=_fewest([each.inputs for each in given], FLOAT),
        )
    return forms


def stored_bits(trainer: Trainer, step: int) -> dict[str, dict[str, float]]:
    """Return bits per entry in the shipped network, by network and variable, if they are not those of a float32."""
    forms = shipped_forms(trainer, shipped_weights(trainer, step))
    return {name: dict(each.stored_bits) for name, each in forms.items()}


def answer(hook: Hook, stage: str, empty: Answer, *arguments: Any, given: Mapping[str, Any] | None = None) -> Answer:
    """Return the checked result of a hook's stage; if it fails, warn and return an empty one."""
    try:
        return cast("Answer", checked(hook, stage, getattr(hook, stage)(*arguments), given=given))
    except Exception as error:  # noqa: BLE001 - whatever a user's hook does, the run is trained
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"The hook '{hook.name}', stage {stage}: {reason} Its answer is left out.", stacklevel=3)
        return empty


def _fewest(given: Sequence[Mapping[str, Number]], most: Number) -> dict[str, Number]:
    """Return the smallest number for each name, and at most that of a float32."""
    names = {name: None for each in given for name in each}
    return {name: min(most, *(each[name] for each in given if name in each)) for name in names}
