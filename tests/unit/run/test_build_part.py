from __future__ import annotations

import keras
import pytest

from trainer.errors import UserError
from trainer.input.data import Data
from trainer.run.build_part import build_part


def model(width: int = 2) -> keras.Model:
    return keras.Sequential([keras.layers.Dense(width)])


def number(size: int) -> int:
    return size


def test_a_part_is_what_its_function_returns_with_what_is_injected() -> None:
    target = f"{model.__module__}.model"
    built = build_part(
        "model", {"_target_": target}, keras.Model, plugins=["tests", "test_build_part"], width=3, other=1
    )
    assert built.layers[0].units == 3


@pytest.mark.parametrize(
    ("key", "kind", "expected"), [("model", keras.Model, "keras's Model"), ("data", Data, "trainer's Data")]
)
def test_another_thing_in_its_place_is_named(key: str, kind: type, expected: str) -> None:
    node = {"_target_": f"{number.__module__}.number", "size": 7}
    with pytest.raises(UserError) as caught:
        build_part(key, node, kind, plugins=["tests", "test_build_part"])
    assert str(caught.value) == (
        f"{key}._target_={node['_target_']} returned a value of type int. Expected {expected}."
    )
