"""The card of an export: written whole, read strictly."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from trainer.errors import UserError
from trainer.inference.card import Card, card_path, read_card, write_card
from trainer.inference.container import PACKED, write_container
from trainer.inference.preparation import Preparation

CARD = Card("model", "best", 40, (4, 5, 1), ("cat", "dog"), Preparation((4, 5, 1), 2.0, -1.0, 255, "stretch", "new"))


def test_a_card_lies_beside_its_export_and_is_read_from_there(tmp_path):
    path = tmp_path / "model.keras"
    write_card(path, CARD)
    assert card_path(path) == tmp_path / "model.keras.json"
    assert read_card(path) == CARD
    assert [each.name for each in tmp_path.iterdir()] == ["model.keras.json"]
    assert read_card(tmp_path / "other.keras") is None


def test_a_packed_file_holds_its_card(tmp_path):
    path = tmp_path / "model.packed.safetensors"
    write_container(path, PACKED, {"about": {"card": CARD.as_json()}}, {"a": np.zeros(3, np.float32)})
    assert read_card(path) == CARD
    bare = tmp_path / "bare.packed.safetensors"
    write_container(bare, PACKED, {"about": {}}, {"a": np.zeros(3, np.float32)})
    assert read_card(bare) is None


def test_a_card_says_which_activation_outputs_come_out_of(tmp_path):
    card = dataclasses.replace(CARD, activation="softmax")
    write_card(tmp_path / "model.keras", card)
    assert read_card(tmp_path / "model.keras") == card


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "has version 2. Expected 1"),
        ({"network": 3}, "Expected texts"),
        ({"step": -1}, "Invalid step"),
        ({"step": True}, "Invalid step"),
        ({"classes": ["a", 1]}, "Invalid classes"),
        ({"shape": [4, 5]}, r"prepares \[4, 5, 1\] for inputs of \[4, 5\]"),
        ({"preparation": []}, "other fields"),
        ({"more": 1}, "other fields"),
        ({"activation": "relu"}, "the activation 'relu'. Expected softmax or sigmoid"),
    ],
)
def test_a_card_that_is_none_is_refused_with_its_place(tmp_path, change, message):
    path = tmp_path / "model.keras"
    card_path(path).write_text(json.dumps({**CARD.as_json(), **change}))
    with pytest.raises(UserError, match=f"model.keras.json: .*{message}.*Export the run again"):
        read_card(path)


@pytest.mark.parametrize("text", ["", "[1", '{"a": 1, "a": 2}', "[" * 100_000, "NaN", " " * 5_000_000])
def test_a_file_that_is_no_card_is_refused(tmp_path, text):
    path = tmp_path / "model.onnx"
    card_path(path).write_text(text)
    with pytest.raises(UserError, match="model.onnx.json"):
        read_card(path)


def test_a_place_that_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        write_card(tmp_path / "missing" / "model.keras", CARD)
    assert list(tmp_path.iterdir()) == []
