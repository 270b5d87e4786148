"""From the config's augmentations to objects."""

from __future__ import annotations

import pytest

from recipes.augment.flip import Flip
from trainer.errors import UserError
from trainer.run.augments import build_augments

FLIP = "recipes.augment.flip.Flip"


def test_each_has_the_name_of_its_key_and_the_removed_are_left_out() -> None:
    first, second = build_augments(
        {"a": {"_target_": FLIP}, "gone": None, "b": {"_target_": FLIP, "vertical": True}}, []
    )
    assert isinstance(first, Flip)
    assert (first.name, second.name) == ("a", "b")
    assert second.vertical
    assert build_augments({}, []) == []


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"_target_": FLIP, "probability": 3.0}, r"^augment\.mine: probability=3.0 received\. Expected a number in"),
        ({"_target_": FLIP, "probabilty": 0.3}, r"^augment\.mine: Unknown argument 'probabilty'.*Did you mean"),
        ({"_target_": "recipes.augment.flip.Flop"}, r"^augment\.mine: .* Did you mean 'recipes\.augment\.flip\.Flip'"),
        ({"_target_": "keras.layers.RandomFlip"}, r"^augment\.mine: .*RandomFlip is not allowed here"),
    ],
)
def test_a_mistake_begins_with_the_name(node, message) -> None:
    with pytest.raises(UserError, match=message):
        build_augments({"mine": node}, [])
