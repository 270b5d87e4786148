"""Deep copies of networks: the values of one written into another, as ops of a step or immediately."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, get_args

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError, check_choice
from hookline.trainer.network import Network

Slots = Literal["keep", "copy", "reset"]


def copy_network(source: Network, target: Network, *, optimizer: Slots) -> list[tf.Operation]:
    """Copy every variable of a network into another: weights, moving statistics, seed state; not the state of hooks.

    The copy is deep. The networks must have variables of equal shapes and dtypes in the same order; names may differ.

    Args:
        source: network to copy from; it is not changed.
        target: network to copy into.
        optimizer: treatment of the target's optimizer: "keep" leaves it unchanged, "copy" copies slots and iterations
            (both optimizers must be of one class), "reset" sets these to the values of a new optimizer. The learning
            rate is a setting, and the target keeps its own.

    Returns:
        In a traced step (an objective's `begin`, a hook's `update_ops`) the assign ops, in order. In eager execution
        the copy is made immediately, and the list is empty.

    Raises:
        UserError: source is target, or variables or optimizers do not match; names both networks and the mismatch.
    """
    check_choice("optimizer of copy_network", optimizer, get_args(Slots))
    if source is target:
        raise UserError(f"copy_network received '{source.name}' twice. Expected two networks.")
    pairs = _pairs(source, target, source.variables, target.variables)
    if optimizer == "copy":
        one, other = (" of ".join(type(each).__name__ for each in _nested(n.optimizer)) for n in (source, target))
        if one != other:
            raise _refusal(source, target, f"the optimizer of one is {one}, that of the other {other}")
        pairs += _pairs(source, target, moving_variables(source), moving_variables(target))
    written = [new.value.assign(old.value) for old, new in pairs]
    if optimizer == "reset":
        written += [variable.value.assign(value) for variable, value in _initial_slots(target)]
    return [] if tf.executing_eagerly() else [each.op for each in written]


def _pairs(
    source: Network, target: Network, ours: Mapping[str, keras.Variable], theirs: Mapping[str, keras.Variable]
) -> list[tuple[keras.Variable, keras.Variable]]:
    """Return pairs of corresponding variables, matched by order."""
    if len(ours) != len(theirs):
        raise _refusal(source, target, f"one has {len(ours)} variables, the other {len(theirs)}")
    for (name, old), (other, new) in zip(ours.items(), theirs.items(), strict=True):
        if old is new:
            raise _refusal(source, target, f"they share the variable '{name}', so that there is nothing to copy")
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            found = f"'{name}' is {old.dtype} {[*old.shape]}, and '{other}' is {new.dtype} {[*new.shape]}"
            raise _refusal(source, target, found)
    return list(zip(ours.values(), theirs.values(), strict=True))


def _initial_slots(network: Network) -> Iterator[tuple[keras.Variable, tf.Tensor]]:
    """Yield the optimizer's variables except the learning rate, each with its value in a new optimizer."""
    with ThreadPoolExecutor(1) as thread:  # no variable may be created while a step is traced
        values = thread.submit(_new_slots, network).result()
    for variable, value in zip(moving_variables(network).values(), values, strict=True):
        uniform = value.size and (value == value.flat[0]).all()
        yield variable, tf.fill(value.shape, value.flat[0]) if uniform else tf.constant(value)


def _new_slots(network: Network) -> list[np.ndarray]:
    fresh = Network(network.name, network.model, _new_optimizer(network))
    fresh.optimizer.build(network.model.trainable_variables)
    return [variable.value.numpy() for variable in moving_variables(fresh).values()]


def _new_optimizer(network: Network) -> keras.optimizers.Optimizer:
    """Return an unbuilt optimizer like the network's, with learning rate 0, as schedules may not be serializable."""
    *outer, inner = _nested(network.optimizer)
    rate, inner._learning_rate = inner._learning_rate, 0.0
    try:
        made = type(inner).from_config(inner.get_config())
    finally:
        inner._learning_rate = rate
    for each in reversed(outer):
        made = type(each)(made, initial_scale=each.initial_scale)
    return made


def moving_variables(network: Network) -> dict[str, keras.Variable]:
    """Return the optimizer variables that training updates: iterations, slots, a loss scale; not the learning rate."""
    rates = {id(each._learning_rate) for each in _nested(network.optimizer)}
    return {name: variable for name, variable in network.optimizer_variables.items() if id(variable) not in rates}


def _nested(optimizer: Any) -> list[Any]:
    """Return an optimizer and the one inside it, such as that of a LossScaleOptimizer."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [optimizer] if inner is None else [optimizer, *_nested(inner)]


def _refusal(source: Network, target: Network, reason: str) -> UserError:
    return UserError(
        f"The network '{source.name}' cannot be copied to '{target.name}': {reason}. Expected two models, and two "
        "optimizers, built with the same arguments and with the same hooks, or optimizer='keep' or 'reset'."
    )
