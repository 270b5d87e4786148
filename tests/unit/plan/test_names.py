"""Long lists of names become short, and say what they leave out."""

from __future__ import annotations

import pytest

from trainer.plan.names import group_names, list_names, shorten


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["conv/kernel"], "conv/kernel"),
        (["count"], "count"),
        (["count", "mask"], "count; mask"),
        (["conv/kernel", "conv/bias"], "kernel, bias of conv"),
        (["a/kernel", "a/bias", "b/kernel", "b/bias"], "kernel, bias of a, b"),
        (["a/kernel", "a/bias", "n/gamma", "b/kernel"], "kernel, bias of a; n/gamma; b/kernel"),
        (["a/kernel", "scale", "b/c/kernel"], "scale; kernel of a, b/c"),
        (["kernel", "a/kernel"], "kernel; a/kernel"),
    ],
)
def test_names_that_are_alike_in_several_layers_are_said_once(names: list[str], text: str):
    assert list_names(names, full=False) == text
    assert list_names(names, full=True) == ", ".join(names)


def test_a_long_list_loses_its_middle_and_says_how_many():
    names = [f"conv_{number}/kernel" for number in range(50)]
    shown = ", ".join(f"conv_{number}" for number in range(8))
    assert list_names(names, full=False) == f"kernel of {shown}, ... 38 more ..., conv_46, conv_47, conv_48, conv_49"
    assert group_names(names, 3) == ["kernel of conv_0, conv_1, ... 47 more ..., conv_49"]
    assert list_names(names, full=True).count("conv_") == 50


@pytest.mark.parametrize("count", range(9))
def test_nothing_is_left_out_where_the_note_would_take_as_much_room(count: int):
    items = [str(number) for number in range(count)]
    found = shorten(items, 5)
    if count <= 6:
        assert found == items
    else:
        assert found == ["0", "1", "2", "3", f"... {count - 5} more ...", str(count - 1)]
