"""The data that a network is evaluated on: that of its run, or what `data=...` names as for training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hookline.trainer.errors import UserError, unknown_name

if TYPE_CHECKING:
    from hookline.trainer.input.data import Data

GROUP = "data"


def is_data(argument: str) -> bool:
    """Return whether an argument is about the data, such as "data=mnist" or "+data.source._target_=my.Source"."""
    key = argument.partition("=")[0].lstrip("+")
    return key == GROUP or key.startswith(f"{GROUP}.")


def data_config(overrides: Sequence[str], stored: Mapping[str, Any] | None, plugins: Sequence[str]) -> dict[str, Any]:
    """Return the config of the data."""
    if stored is not None and not any(each.startswith(f"{GROUP}=") for each in overrides):
        return _changed(stored, overrides)
    if not overrides:
        raise UserError("No data was given. Expected data=<name> as for train.py, or run=<run> for that of a run.")
    from hookline.trainer.config.command import Command
    from hookline.trainer.config.preflight import preflight

    named = [f"plugins=[{','.join(plugins)}]"] if plugins else []
    (job,) = preflight(Command(("recipe=baseline", *overrides, *named)))
    return dict(job.config[GROUP])


def _changed(stored: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    import yaml

    config = dict(stored)
    for override in overrides:
        key, separator, text = override.partition("=")
        name = key.removeprefix(f"{GROUP}.")
        if name not in config:
            raise unknown_name("key of the run's data", name, [each for each in config if each != "_target_"])
        if not separator:
            raise UserError(f"'{override}' received. Expected {key}=<value>.")
        try:
            config[name] = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError) as error:  # a date such as 2024-13-45 is a ValueError
            raise UserError(f"'{override}' is not a value. Expected such as {key}=<value>.") from error
    return config


def open_data(config: Mapping[str, Any], plugins: Sequence[str]) -> Data:
    """Return the data of a config."""
    from hookline.trainer.input.data import Data
    from hookline.trainer.run.blueprint import build_part

    return build_part("data", config, Data, plugins=plugins)


def check_data(
    data: Data, shape: tuple[int, ...], classes: Sequence[str], scaled: tuple[float, float] | None
) -> list[str]:
    """Refuse data that a network was not trained for, and return warnings, a line each."""
    if tuple(data.input_shape) != tuple(shape):
        raise UserError(f"Data '{data.name}' has inputs {list(data.input_shape)}, the network takes {list(shape)}.")
    if classes and len(classes) != data.classes:
        raise UserError(f"Data '{data.name}' has {data.classes} classes, and the network {len(classes)}.")
    numbered = [str(label) for label in range(data.classes)]
    if classes and data.class_names and list(classes) not in (list(data.class_names), numbered):
        first = next((a, b) for a, b in zip(classes, data.class_names, strict=True) if a != b)
        raise UserError(
            f"'{data.name}' calls a class '{first[1]}' that the network calls '{first[0]}'. Expected the same names."
        )
    import numpy as np

    found = input_range(data)
    if scaled is not None and found is not None and not np.allclose(scaled, found, rtol=0, atol=1e-3):
        return [
            f"Data '{data.name}' gives inputs from {found[0]:g} to {found[1]:g}, but the network was trained on "
            f"{scaled[0]:g} to {scaled[1]:g}: set data.scale, or expect wrong predictions."
        ]
    return []


def input_range(data: Any) -> tuple[float, float] | None:
    """Return the smallest and the largest value that pixels can become; None if inputs are not pixels."""
    made = data.preparation
    return None if made is None or made.peak is None else (made.offset, made.scale * made.peak + made.offset)
