"""The card of a file, read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hookline.deploy.inference.container import PACKED, SPARSE, from_json, read_container, require
from hookline.trainer.errors import UserError
from hookline.trainer.files import read_bytes, write_whole
from hookline.trainer.input.preparation import Preparation, check_shape

VERSION = 1
CARD = "card"  # its key in the `about` of a packed or a sparse file
ACTIVATION, SEVERAL = "activation", "inputs"
CONTAINER_SUFFIX = ".safetensors"
MAX_BYTES = 2**22
MAX_INPUTS = 2**10


@dataclass(frozen=True)
class Card:
    """Describe an exported network."""

    network: str  # its name in the run
    checkpoint: str  # "best" or "last"
    step: int  # steps made when it was written
    shape: tuple[int, ...]  # of one input; () of several
    classes: tuple[str, ...] = ()  # what each output is called; empty if outputs are not classes
    preparation: Preparation | None = None  # how raw examples become inputs; None if the run's data does not say
    activation: str | None = None  # "softmax" or "sigmoid" that outputs come out of; None for logits, or no classes
    inputs: Mapping[str, Preparation] = field(default_factory=dict)  # how each of several inputs is made, by name

    def as_json(self) -> dict[str, Any]:
        values = {"version": VERSION, **asdict(self)}
        return {key: value for key, value in values.items() if value or key not in (ACTIVATION, SEVERAL)}

    @classmethod
    def from_json(cls, value: Any) -> Card:
        texts = ("network", "checkpoint")
        known = {"version", "step", "shape", "classes", "preparation", *texts}
        has_all = isinstance(value, dict) and {*value} - {ACTIVATION, SEVERAL} == known
        require(has_all, f"The card has other fields than {', '.join(sorted(known))}.")
        require(value["version"] == VERSION, f"The card has version {value['version']!r:.40}. Expected {VERSION}.")
        several, classes, activation = value.get(SEVERAL, {}), value["classes"], value.get(ACTIVATION)
        checks = {
            **{name: isinstance(value[name], str) for name in texts},
            "step": type(value["step"]) is int and value["step"] >= 0,
            "classes": isinstance(classes, list) and all(isinstance(each, str) for each in classes),
            ACTIVATION: activation in (None, "softmax", "sigmoid"),
            SEVERAL: isinstance(several, dict) and len(several) <= MAX_INPUTS,
        }
        for name, holds in checks.items():
            require(holds, f"Invalid {name} of the card: {value.get(name)!r:.40}.")
        inputs = {name: Preparation.from_json(each) for name, each in several.items()}
        shape = () if inputs else check_shape("shape of the card", value["shape"])
        preparation = None if value["preparation"] is None else Preparation.from_json(value["preparation"])
        prepared = shape if preparation is None else preparation.shape
        require(prepared == shape, f"The card prepares {list(prepared)} for inputs of {list(shape)}. Expected one.")
        texts_and_step = (value["network"], value["checkpoint"], value["step"])
        return cls(*texts_and_step, shape, tuple(classes), preparation, activation, inputs)


def card_path(path: Path) -> Path:
    """Return the path of the card beside an export that cannot hold it."""
    return path.with_name(f"{path.name}.json")


def write_card(path: Path, card: Card) -> None:
    """Write a card beside its export."""
    write_whole(card_path(path), json.dumps(card.as_json(), indent=2) + "\n")


def read_card(path: Path) -> Card | None:
    """Return the card of an export; None if it has none."""
    if path.name.endswith(CONTAINER_SUFFIX):
        model, _ = read_container(path, PACKED if path.name.endswith(".packed.safetensors") else SPARSE)
        about = model.get("about")
        value = about.get(CARD) if isinstance(about, dict) else None
        return None if value is None else _parsed(value, path)
    beside = card_path(path)
    if not beside.exists():
        return None
    try:
        value = from_json(read_bytes(beside, MAX_BYTES, follow=True))
    except (OSError, ValueError) as error:
        raise UserError(f"{beside} cannot be read as the card of an export ({error}). Export the run again.") from error
    return _parsed(value, beside)


def _parsed(value: Any, path: Path) -> Card:
    try:
        return Card.from_json(value)
    except UserError as error:
        raise UserError(f"{path}: {error} Export the run again.") from error
