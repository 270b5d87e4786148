"""The card of a file, read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookline.deploy.inference.container import PACKED, SPARSE, from_json, read_container
from hookline.trainer.errors import UserError
from hookline.trainer.files import read_bytes, write_whole
from hookline.trainer.input.preparation import Preparation, check_shape

VERSION = 1
CARD = "card"
"""Its key in the `about` of a packed or a sparse file."""
ACTIVATION, SEVERAL = "activation", "inputs"
CONTAINER_SUFFIX = ".safetensors"
MAX_BYTES = 2**22
MAX_CLASSES = 2**20
MAX_INPUTS = 2**10


@dataclass(frozen=True)
class Card:
    """Describe an exported network.

    Attributes:
        network: its name in the run.
        checkpoint: "best" or "last".
        step: steps made when it was written.
        shape: of one input; () of several.
        classes: what each output is called; empty if outputs are not classes.
        preparation: how raw examples become inputs; None if the run's data does not say.
        activation: "softmax" or "sigmoid" where outputs come out of it; None if they are logits, or no classes.
        inputs: how each of several inputs is made, by name.
    """

    network: str
    checkpoint: str
    step: int
    shape: tuple[int, ...]
    classes: tuple[str, ...] = ()
    preparation: Preparation | None = None
    activation: str | None = None
    inputs: Mapping[str, Preparation] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON values that `from_json` reads."""
        preparation = None if self.preparation is None else self.preparation.as_json()
        return {
            "version": VERSION,
            "network": self.network,
            "checkpoint": self.checkpoint,
            "step": self.step,
            "shape": list(self.shape),
            "classes": list(self.classes),
            "preparation": preparation,
            **({} if self.activation is None else {ACTIVATION: self.activation}),
            **({SEVERAL: {name: each.as_json() for name, each in self.inputs.items()}} if self.inputs else {}),
        }

    @classmethod
    def from_json(cls, value: Any) -> Card:
        """Return what JSON values describe."""
        texts = ("network", "checkpoint")
        known = {"version", "step", "shape", "classes", "preparation", *texts}
        if not isinstance(value, dict) or {*value} - {ACTIVATION, SEVERAL} != known:
            raise UserError(f"The card has other fields than {', '.join(sorted(known))}.")
        if value["version"] != VERSION:
            raise UserError(f"The card has version {value['version']!r:.40}. Expected {VERSION}.")
        if not all(isinstance(value[name], str) for name in texts):
            raise UserError(f"Invalid {', '.join(texts)} of the card. Expected texts.")
        if type(value["step"]) is not int or value["step"] < 0:
            raise UserError("Invalid step of the card. Expected a whole number of at least 0.")
        several, classes = value.get(SEVERAL, {}), value["classes"]
        if not isinstance(several, dict) or len(several) > MAX_INPUTS:
            raise UserError("Invalid inputs of the card. Expected a preparation of each, by name.")
        inputs = {name: Preparation.from_json(each) for name, each in several.items()}
        shape = () if inputs else check_shape("shape of the card", value["shape"])
        if not isinstance(classes, list) or len(classes) > MAX_CLASSES or not all(isinstance(n, str) for n in classes):
            raise UserError("Invalid classes of the card. Expected a list of names.")
        preparation = None if value["preparation"] is None else Preparation.from_json(value["preparation"])
        if preparation is not None and preparation.shape != shape:
            raise UserError(f"The card prepares {list(preparation.shape)} for inputs of {list(shape)}. Expected one.")
        activation = value.get(ACTIVATION)
        if activation not in (None, "softmax", "sigmoid"):
            raise UserError(f"The card has the activation {activation!r:.40}. Expected softmax or sigmoid.")
        named = {name: value[name] for name in (*texts, "step")}
        own: dict[str, Any] = {"preparation": preparation, "activation": activation, "inputs": inputs}
        return cls(**named, shape=shape, classes=tuple(classes), **own)


def card_path(path: Path) -> Path:
    """Return the path of the card beside an export that cannot hold it."""
    return path.with_name(f"{path.name}.json")


def write_card(path: Path, card: Card) -> None:
    """Write a card beside its export, by a temporary name."""
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
