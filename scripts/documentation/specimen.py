"""A hook with its defaults, built on a small network: what it declares once it knows the variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import keras
import tensorflow as tf

from trainer.hook import GraphHook, Hook, HostHook
from trainer.network import Network
from trainer.step.context import BuildContext

CLASSES = 10
LAYERS = ("conv_1", "norm_1", "conv_2", "norm_2", "dense_1", "norm_3", "logits")
"""The layers with weights: two convolutions and two dense layers, with batch norm between them."""
VARIABLE = "<variable>"


@dataclass(frozen=True)
class Declared:
    """Hold what a built hook declares: variables of the network by name, state with `VARIABLE` in their place.

    Attributes:
        state: what it keeps by name: type and shape of a graph hook's variables, the value of a host hook's entries.
        writes: names among the state that its update ops write.
        frozen: variables that get no gradient, and statistics that are left alone.
        projected: variables that it may rewrite after the optimizer.
        reads: state of other hooks, as "hook/variable".
    """

    state: Mapping[str, str]
    writes: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    projected: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


def declared_by(hook: Hook) -> Declared:
    """Return what a hook declares on the small network, in a run of 10 epochs of 10 steps.

    Args:
        hook: new; it is built.
    """
    saved = hook.state_dict() if isinstance(hook, HostHook) else {}
    state = {key: "null at first" if value is None else type(value).__name__ for key, value in saved.items()}
    if not isinstance(hook, GraphHook):
        return Declared(state)
    variables = _build(hook).variables
    for each, value in hook.state().items():
        state[_general(each, variables)] = _form(each, value, variables)
    return Declared(
        state,
        tuple(dict.fromkeys(_general(each, variables) for each in hook.writes())),
        _in_order(hook.frozen(), variables),
        _in_order(hook.projected(), variables),
        hook.reads,
    )


def _build(hook: GraphHook) -> Network:
    """Let a hook rebuild a new network and build itself for it; return the network."""
    keras.utils.set_random_seed(0)
    model = hook.rebuild_model(small_model())
    network = Network("model", model, keras.optimizers.Adam())
    hook.network = network.name
    network.taps |= hook.request_taps(model)
    network.optimizer.build(model.trainable_variables)
    hook.build(BuildContext(network, total_steps=100, steps_per_epoch=10.0, batch_size=32, seed=0, classes=CLASSES))
    return network


def small_model() -> keras.Model:
    """Return the network: images [8, 8, 1] to logits [10]."""
    inputs = features = keras.Input((8, 8, 1), name="images")
    for number in (1, 2):
        features = keras.layers.Conv2D(4, 3, use_bias=False, name=f"conv_{number}")(features)
        features = keras.layers.BatchNormalization(name=f"norm_{number}")(features)
        features = keras.layers.Activation("hard_tanh", name=f"activation_{number}")(features)
    features = keras.layers.Flatten(name="flatten")(features)
    features = keras.layers.Dense(16, use_bias=False, name="dense_1")(features)
    features = keras.layers.BatchNormalization(name="norm_3")(features)
    features = keras.layers.Activation("hard_tanh", name="activation_3")(features)
    return keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(features), name="small")


def _owner(name: str, variables: Iterable[str]) -> str | None:
    """Return the network's variable that a state such as "mask/dense/kernel" belongs to; None for no such."""
    return next((each for each in variables if name.endswith(f"/{each}")), None)


def _general(name: str, variables: Iterable[str]) -> str:
    owner = _owner(name, variables)
    return name if owner is None else f"{name.removesuffix(owner)}{VARIABLE}"


def _form(name: str, value: tf.Variable, variables: Mapping[str, keras.Variable]) -> str:
    """Return dtype and shape."""
    owner = _owner(name, variables)
    if owner is not None and tuple(value.shape) == tuple(variables[owner].shape):
        return f"{value.dtype.name}, of the variable's shape"
    return f"{value.dtype.name} {value.shape.as_list()}" if value.shape.rank else str(value.dtype.name)


def _in_order(names: Iterable[str], variables: Iterable[str]) -> tuple[str, ...]:
    chosen = set(names)
    return tuple(each for each in variables if each in chosen)
