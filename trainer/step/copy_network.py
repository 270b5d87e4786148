"""Deep copies of networks: one network's values into another as ops of a step, or out of the run as arrays."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Any, Literal, TypeAlias, get_args

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.network import Network

Slots = Literal["keep", "copy", "reset"]
Pair: TypeAlias = "tuple[keras.Variable, keras.Variable]"
MODEL, OPTIMIZER = "model", "optimizer"
REMEDIES = {
    MODEL: "Expected two models of one architecture: build both with the same arguments, and give both the hooks that "
    "rebuild models, or neither.",
    OPTIMIZER: "Expected two optimizers built with the same arguments, or optimizer='keep' or 'reset'.",
}
NUMBER = re.compile(r"_?\d+$")
"""The number that Keras appends to default layer names, and people to the names of repeated layers."""


def copy_network(source: Network, target: Network, *, optimizer: Slots) -> list[tf.Operation]:
    """Copy every variable of a network into another: weights, moving statistics, seed state; not the state of hooks.

    The copy is deep. The two networks have the same variables in the same order; their names may differ in the model's
    own name and in numbers behind the names of layers.

    Args:
        source: copied from; it is not changed.
        target: copied into.
        optimizer: what becomes of the target's optimizer: "keep" leaves it as it is, "copy" copies slots and iterations
            (the optimizers are of one class), "reset" gives them the values that a new optimizer has. The learning rate
            is a setting and stays the target's own.

    Returns:
        In a traced step (an objective's `begin`, a hook's `update_ops`) the ops that write, in order. Elsewhere the
        copy is made at once, and the list is empty.

    Raises:
        UserError: variables or optimizers do not correspond; names both networks and the first variable.
    """
    if optimizer not in get_args(Slots):
        raise unknown_name("optimizer of copy_network", optimizer, get_args(Slots))
    if source is target:
        raise UserError(f"copy_network received '{source.name}' twice. Expected two networks.")
    pairs = _pairs(source, target, MODEL)
    if optimizer == "copy":
        one, other = (" of ".join(type(each).__name__ for each in _nested(n.optimizer)) for n in (source, target))
        if one != other:
            raise _refusal(source, target, f"the optimizer of one is {one}, that of the other {other}", OPTIMIZER)
        pairs += _pairs(source, target, OPTIMIZER)
    written = [new.value.assign(old.value) for old, new in pairs]
    if optimizer == "reset":
        written += [variable.value.assign(value) for variable, value in _initial_slots(target)]
    return [] if tf.executing_eagerly() else [each.op for each in written]


def snapshot(network: Network) -> dict[str, np.ndarray]:
    """Return a deep copy of all that a network holds, which never changes again.

    Args:
        network: with its optimizer built.

    Returns:
        Weights, moving statistics and seed state by variable name; the optimizer's variables as "optimizer/<name>".
    """
    optimizer = {f"optimizer/{name}": variable for name, variable in network.optimizer_variables.items()}
    return {name: np.array(variable.value.numpy()) for name, variable in {**network.variables, **optimizer}.items()}


def fingerprint(network: Network) -> str:
    """Return the SHA-256 of all that a network holds (`snapshot`): equal as long as no byte of it has changed.

    Args:
        network: with its optimizer built.
    """
    digest = hashlib.sha256()
    for name, value in sorted(snapshot(network).items()):
        digest.update(f"{name} {value.dtype} {value.shape} ".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def _pairs(source: Network, target: Network, part: str) -> list[Pair]:
    """Return the variables that correspond, of both models or of both optimizers without the learning rates."""
    found = (moving_variables(each) if part == OPTIMIZER else each.variables for each in (source, target))
    ours, theirs = (list(each.items()) for each in found)
    for (name, old), (other, new) in zip_longest(ours, theirs, fillvalue=("", None)):
        if old is None or new is None:
            more, less = (source, target) if new is None else (target, source)
            reason = f"'{more.name}' has '{name or other}', which '{less.name}' does not have"
        elif old is new:
            reason = f"they share the variable '{name}', so that there is nothing to copy"
        elif part == MODEL and _plain_name(name, source) != _plain_name(other, target):
            reason = f"where one has '{name}', the other has '{other}'"
        elif old.shape != new.shape:
            reason = f"'{name}' has the shape {[*old.shape]} in one and {[*new.shape]} in the other"
        elif old.dtype != new.dtype:
            reason = f"'{name}' is {old.dtype} in one and {new.dtype} in the other"
        else:
            continue
        raise _refusal(source, target, reason, part)
    return [(old, new) for (_, old), (_, new) in zip(ours, theirs, strict=True)]


def _initial_slots(network: Network) -> Iterator[tuple[keras.Variable, tf.Tensor]]:
    """Yield the optimizer's variables, without the learning rate, with the values that a new optimizer has."""
    with ThreadPoolExecutor(1) as thread:  # no variable may be created where a step is traced
        values = thread.submit(_new_slots, network).result()
    for variable, value in zip(moving_variables(network).values(), values, strict=True):
        uniform = value.size and (value == value.flat[0]).all()
        yield variable, tf.fill(value.shape, value.flat[0]) if uniform else tf.constant(value)


def _new_slots(network: Network) -> list[np.ndarray]:
    fresh = Network(network.name, network.model, _new_optimizer(network))
    fresh.optimizer.build(network.model.trainable_variables)
    return [variable.value.numpy() for variable in moving_variables(fresh).values()]


def _new_optimizer(network: Network) -> keras.optimizers.Optimizer:
    """Return an optimizer like the network's, not built; its rate is 0, as schedules need not be serializable."""
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
    """Return the variables of the optimizer that training moves: iterations, slots, a loss scale; not the rate."""
    rates = {id(each._learning_rate) for each in _nested(network.optimizer)}
    return {name: variable for name, variable in network.optimizer_variables.items() if id(variable) not in rates}


def _nested(optimizer: Any) -> list[Any]:
    """Return an optimizer and the one inside it, such as that of a LossScaleOptimizer."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [optimizer] if inner is None else [optimizer, *_nested(inner)]


def _plain_name(name: str, network: Network) -> list[str]:
    """Return the parts of a variable's name without the model's own and without numbers."""
    first, *others = name.split("/")
    parts = others if first == network.model.name and others else [first, *others]
    return [NUMBER.sub("", part) for part in parts]


def _refusal(source: Network, target: Network, reason: str, part: str) -> UserError:
    return UserError(f"The network '{source.name}' cannot be copied to '{target.name}': {reason}. {REMEDIES[part]}")
