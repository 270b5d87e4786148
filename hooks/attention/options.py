"""The options of Bernoulli attention that are mappings, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from hooks.options import check_choice, check_integer, check_number
from trainer.errors import UserError, unknown_name

MODES = ("bernoulli", "product")
EVAL_MODES = ("expectation", "sample", "threshold")
JOINS = ("replace", "concatenate")
BRANCH_INPUTS = ("features", "input")
BRANCH_EXAMPLE = "auto, such as {filters: [16, 16], kernel_size: 3}, or {_target_: <import path>}"


@dataclass(frozen=True)
class BranchOptions:
    """Describe the convolutional net that makes the attention map.

    Attributes:
        filters: channels of each convolution before the last one, which has one channel and a kernel of 1 x 1.
        kernel_size: side of these convolutions' kernels.
        dilations: steps between the entries of each kernel.
        activation: name of the Keras activation after each of them.
        initial_keep_rate: in (0, 1): what A is everywhere at first.
    """

    filters: tuple[int, ...] = (16, 16, 16)
    kernel_size: int = 3
    dilations: tuple[int, ...] = (1, 2, 4)
    activation: str = "relu"
    initial_keep_rate: float = 0.7


@dataclass(frozen=True)
class KeepRate:
    """Ask for a mean of A.

    Attributes:
        target: in (0, 1).
        weight: of the penalty, above 0.
    """

    target: float = 0.5
    weight: float = 0.1


@dataclass(frozen=True)
class Supervision:
    """Ask for an attention map that is like a given map.

    Attributes:
        key: of the map in the batch.
        weight: of the loss, above 0.
        epochs: of training in which the loss counts; None for all.
    """

    key: str = "map"
    weight: float = 1.0
    epochs: float | None = None


def parse_branch(value: Any) -> BranchOptions | keras.layers.Layer:
    """Return what a config says of the branch.

    Args:
        value: "auto", settings by name, or a layer of the user's own.

    Raises:
        UserError: anything else, or a setting that is unknown or out of range.
    """
    if isinstance(value, str) and value == "auto":
        return BranchOptions()
    if not isinstance(value, Mapping):
        if isinstance(value, keras.layers.Layer):
            return value
        raise UserError(f"Invalid branch: {value!r}. Expected {BRANCH_EXAMPLE}; that path must give a Keras layer.")
    given = _known(value, "branch", BranchOptions)
    filters = _counts("branch.filters", given.get("filters", BranchOptions.filters))
    default = [2**depth for depth in range(len(filters))]
    dilations = _counts("branch.dilations", given.get("dilations", default))
    if len(dilations) != len(filters):
        raise UserError(
            f"branch.dilations={list(dilations)} received for filters={list(filters)}. Expected one for each of them."
        )
    expected = "a probability above 0 and below 1, such as 0.7"
    initial = given.get("initial_keep_rate", BranchOptions.initial_keep_rate)
    check_number("branch.initial_keep_rate", initial, minimum=1e-6, maximum=1 - 1e-6, expected=expected)
    return BranchOptions(
        filters,
        check_integer("branch.kernel_size", given.get("kernel_size", BranchOptions.kernel_size)),
        dilations,
        _activation(given.get("activation", BranchOptions.activation)),
        float(initial),
    )


def parse_keep_rate(value: Any) -> KeepRate | None:
    """Return the keep rate to aim at.

    Args:
        value: None, "auto", or such as {"target": 0.3, "weight": 0.1}.

    Raises:
        UserError: anything else, or a value out of range.
    """
    if value is None:
        return None
    if value == "auto":
        return KeepRate()
    given = _known(value, "keep_rate", KeepRate)
    if "target" not in given:
        raise UserError(f"keep_rate={dict(value)} has no target. Expected such as {{target: 0.3, weight: 0.1}}.")
    expected = "a share above 0 and below 1, such as 0.3"
    target = check_number("keep_rate.target", given["target"], minimum=1e-6, maximum=1 - 1e-6, expected=expected)
    return KeepRate(target, _weight("keep_rate.weight", given.get("weight", KeepRate.weight)))


def parse_supervision(value: Any) -> Supervision | None:
    """Return how the attention map is supervised.

    Args:
        value: None, or such as {"key": "map", "weight": 1.0, "epochs": None}.

    Raises:
        UserError: anything else, or a value out of range.
    """
    if value is None:
        return None
    given = _known(value, "supervision", Supervision)
    key, epochs = given.get("key", Supervision.key), given.get("epochs")
    if not isinstance(key, str) or not key:
        raise UserError(f"Invalid supervision.key: {key!r}. Expected the name of a map in the batch, such as map.")
    if epochs is not None:
        expected = "a number of epochs above 0, or null for all of them"
        epochs = check_number("supervision.epochs", epochs, minimum=0.0, above_minimum=True, expected=expected)
    return Supervision(key, _weight("supervision.weight", given.get("weight", Supervision.weight)), epochs)


def check_mode(name: str, value: Any, known: Sequence[str]) -> str:
    """Return one of several names; YAML's own null stands for "none".

    Args:
        name: of the option.
        value: that was given.
        known: the names that exist.

    Raises:
        UserError: another name.
    """
    return check_choice(name, "none" if value is None and "none" in known else value, known)


def check_temperature(value: Any) -> float:
    """Return a temperature, or raise a UserError.

    Args:
        value: that was given.
    """
    return check_number("temperature", value, minimum=0.0, above_minimum=True, expected="a number above 0, such as 1.0")


def check_entropy(value: Any) -> float:
    """Return the weight of the entropy term, of any sign, or raise a UserError.

    Args:
        value: that was given.
    """
    return check_number("entropy", value, expected="a number, such as 0.01, or 0 for no such loss")


def check_layer(value: Any) -> str | None:
    """Return the pattern of the layer to gate, or None; or raise a UserError.

    Args:
        value: that was given.
    """
    if value is not None and (not isinstance(value, str) or not value):
        raise UserError(f"Invalid layer: {value!r}. Expected a pattern that matches one layer, or null.")
    return value


def _known(value: Any, option: str, kind: type) -> dict[str, Any]:
    """Return a mapping of which every key is a field of a dataclass."""
    fields = list(kind.__annotations__)
    if not isinstance(value, Mapping):
        raise UserError(f"Invalid {option}: {value!r}. Expected a mapping with {', '.join(fields)}.")
    for key in value:
        if key not in fields:
            raise unknown_name(f"key of {option}", str(key), fields)
    return dict(value)


def _counts(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UserError(f"Invalid {name}: {value!r}. Expected a list of whole numbers above 0, such as [16, 16].")
    return tuple(check_integer(name, each) for each in value)


def _weight(name: str, value: Any) -> float:
    return check_number(name, value, minimum=0.0, above_minimum=True, expected="a number above 0, such as 1.0")


def _activation(value: Any) -> str:
    try:
        keras.activations.get(value)
    except (ValueError, TypeError):
        known = [name for name in dir(keras.activations) if name[0].islower()]
        raise unknown_name("branch.activation", str(value), known) from None
    return str(value)
