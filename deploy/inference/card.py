"""The card of an exported file: reading and writing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hookline.deploy.inference.container import PACKED, SPARSE, read_container, reading, require
from hookline.trainer.files import parse_json, read_bytes, write_whole
from hookline.trainer.input.preparation import AXES, FITS, Preparation

VERSION = 1
CARD = "card"  # its key in the `about` of a packed or a sparse file
MAX_BYTES = 2**22


@dataclass(frozen=True)
class Card:
    """Describe an exported network."""

    network: str  # its name in the run
    checkpoint: str  # "best" or "last"
    step: int  # steps completed when it was written
    shape: tuple[int, ...]  # of one input; () for several
    classes: tuple[str, ...] = ()  # names of the outputs; empty if they are not classes
    preparation: Preparation | None = None  # how raw examples become inputs; None if the run's data does not define it
    activation: str | None = None  # final "softmax" or "sigmoid"; None for logits, or without classes
    inputs: Mapping[str, Preparation] = field(default_factory=dict)  # preparation of each of several inputs, by name

    def as_json(self) -> dict[str, Any]:
        values = {"version": VERSION, **asdict(self)}
        return {key: value for key, value in values.items() if value or key not in ("activation", "inputs")}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Card:
        found = dict(value)
        require(found.pop("version") == VERSION, f"Its version is {value['version']!r:.40}. Expected {VERSION}.")
        found |= {"shape": tuple(map(int, value["shape"])), "classes": tuple(map(str, value["classes"]))}
        found["inputs"] = {name: _preparation(each) for name, each in value.get("inputs", {}).items()}
        if value["preparation"] is not None:
            found["preparation"] = _preparation(value["preparation"])
        made = cls(**found)
        prepared = made.shape if made.preparation is None else made.preparation.shape
        require(prepared == made.shape, f"It prepares {list(prepared)} for inputs of {list(made.shape)}.")
        is_known = made.activation in (None, "softmax", "sigmoid")
        require(is_known, f"Its activation is {made.activation!r:.40}. Expected softmax, sigmoid or null.")
        return made


def _preparation(value: Mapping[str, Any]) -> Preparation:
    numbers = {key: float(value[key]) for key in ("scale", "offset", "peak") if value[key] is not None}
    made = Preparation(**{**value, **numbers, "shape": tuple(map(int, value["shape"]))})
    is_known = made.fit in FITS and made.axes in AXES and (made.peak is None or made.peak > 0)
    require(is_known, f"It has no valid preparation: fit={made.fit!r:.40}, axes={made.axes!r:.40}, peak={made.peak}.")
    return made


def card_path(path: Path) -> Path:
    """Return the path of the card next to an export that cannot contain it."""
    path = path.absolute()  # "." has no name
    return path.with_name(f"{path.name}.json")


def write_card(path: Path, card: Card) -> None:
    """Write a card next to its export."""
    write_whole(card_path(path), json.dumps(card.as_json(), indent=2) + "\n")


def read_card(path: Path) -> Card | None:
    """Return the card of an export; None if it has none."""
    inside = path.name.endswith(".safetensors")
    model = read_container(path, PACKED if path.name.endswith(".packed.safetensors") else SPARSE)[0] if inside else {}
    place = path if inside else card_path(path)
    if not place.exists():
        return None
    with reading(place, "card of an export"):
        value = model.get("about", {}).get(CARD) if inside else parse_json(read_bytes(place, MAX_BYTES, follow=True))
        return None if value is None else Card.from_json(value)
