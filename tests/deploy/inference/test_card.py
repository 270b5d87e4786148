"""The card of an export: where it is stored, and how strictly it is read."""

import dataclasses
import json

import numpy as np

from hookline.deploy.inference.card import Card, card_path, read_card, write_card
from hookline.deploy.inference.container import PACKED, write_container
from hookline.trainer.input.preparation import Preparation
from tests.support.refusals import assert_refused

CARD = Card("model", "best", 40, (4, 5, 1), ("cat", "dog"), Preparation((4, 5, 1), 2.0, -1.0, 255, "stretch", "new"))


def test_card_is_stored_beside_export_or_inside_packed_file(tmp_path):
    path = tmp_path / "model.keras"
    for card in (CARD, dataclasses.replace(CARD, activation="softmax")):
        write_card(path, card)
        assert read_card(path) == card
    assert [each.name for each in tmp_path.iterdir()] == ["model.keras.json"] == [card_path(path).name]
    assert read_card(tmp_path / "other.keras") is None
    packed = tmp_path / "model.packed.safetensors"
    for about, found in (({"card": CARD.as_json()}, CARD), ({}, None)):
        write_container(packed, PACKED, {"about": about}, {"a": np.zeros(3, np.float32)})
        assert read_card(packed) == found


def test_invalid_card_is_refused_with_its_file_name(tmp_path):
    path = tmp_path / "model.keras"
    for change, message in (
        ({"version": 2}, "version is 2. Expected 1"),
        ({"classes": None}, "TypeError"),
        ({"shape": [4, 5]}, r"prepares \[4, 5, 1\] for inputs of \[4, 5\]"),
        ({"preparation": {**CARD.as_json()["preparation"], "fit": "cut"}}, "no valid preparation: fit='cut'"),
        ({"preparation": {**CARD.as_json()["preparation"], "scale": "a"}}, "ValueError"),
        ({"more": 1}, "TypeError"),
        ({"activation": "relu"}, "activation is 'relu'"),
    ):
        card_path(path).write_text(json.dumps({**CARD.as_json(), **change}))
        assert_refused(f"model.keras.json is not .*{message}.*Export the run again", read_card, path)
    for text in ("", "[1", "[" * 100_000, "NaN", " " * 5_000_000):
        card_path(path).write_text(text)
        assert_refused("model.keras.json", read_card, path)
