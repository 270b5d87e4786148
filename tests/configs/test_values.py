"""Whether a value fits an annotation, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional, Union

import pytest

from trainer.config.values import describe, fits, is_interpolation, like, show, visible

FITS = [
    (1, int),
    (1, float),
    (1.5, float),
    (True, bool),
    ("a", str),
    (None, None),
    (None, Optional[int]),  # noqa: UP045 - the older spelling must be understood, too
    (1, Union[int, str]),  # noqa: UP007
    ("a", int | str),
    ("a", Literal["a", "b"]),
    ([1, 2], list[int]),
    ([1, 2], list),
    ([1, 2], tuple[int, ...]),
    ([1, "a"], tuple[int, str]),
    (["a"], Sequence[str]),
    ({"a": 1}, dict[str, int]),
    ({"a": 1}, Mapping[str, Any]),
    (object(), Any),
    ("x", bytes),
]
DOES_NOT_FIT = [
    (True, int),
    (True, float),
    (1, bool),
    (1.0, int),
    ("1", int),
    (1, str),
    (None, int),
    ("c", Literal["a", "b"]),
    (True, Literal[1]),
    ([1, "a"], list[int]),
    ("ab", list[str]),
    ("ab", Sequence[str]),
    ([1], tuple[int, str]),
    ({"a": "b"}, dict[str, int]),
    ([], dict),
    (1.5, int | None),
]


@pytest.mark.parametrize(("value", "annotation"), FITS)
def test_fits(value: Any, annotation: Any) -> None:
    assert fits(value, annotation)


@pytest.mark.parametrize(("value", "annotation"), DOES_NOT_FIT)
def test_does_not_fit(value: Any, annotation: Any) -> None:
    assert not fits(value, annotation)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int | None, "a whole number or null"),
        (None | float, "a number or null"),
        (Literal["a", "b"], "one of a, b"),
        (list[int], "a list, each a whole number"),
        (tuple[float, ...], "a list, each a number"),
        (list, "a list"),
        (dict[str, int], "a mapping"),
        (bool, "true or false"),
        (Path := type("Path", (), {}), "Path"),
    ],
)
def test_describes(annotation: Any, words: str) -> None:
    assert describe(annotation) == words


@pytest.mark.parametrize(
    ("default", "good", "bad"),
    [
        (1, [2, 2.5, None], ["a", True, [1], {}]),
        (0.5, [2, None], ["a", False]),
        (True, [False, None], [1, "a"]),
        ("a", ["b", 3, None, ["b"], {"_target_": "x.y"}], [True]),
        ([1], [[], None, "all"], [3, True]),
        (None, [1, "a", [], {}], []),
        ("???", [1, True, "a"], []),
    ],
)
def test_a_default_says_what_may_replace_it(default: Any, good: list[Any], bad: list[Any]) -> None:
    assert all(fits(value, like(default)) for value in good)
    assert not any(fits(value, like(default)) for value in bad)


@pytest.mark.parametrize("default", [1, 0.5, True])
def test_null_replaces_no_number_where_the_signature_speaks(default: Any) -> None:
    assert not fits(None, like(default, optional=False))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("a b", "a b"),
        ([1, None, ["a"]], "[1,null,[a]]"),
        ({"a": False}, "{a:false}"),
    ],
)
def test_values_are_shown_as_they_are_written(value: Any, text: str) -> None:
    assert show(value) == text


def test_references_are_told_from_texts() -> None:
    assert is_interpolation("${trainer.epochs}")
    assert is_interpolation("runs/${seed}")
    assert is_interpolation(r"\\${seed}")  # an escaped backslash
    assert not is_interpolation(r"\${seed}")
    assert not is_interpolation("$HOME")
    assert not is_interpolation(3)


def test_an_empty_text_can_be_seen() -> None:
    assert [visible(value) for value in ("", "a", None, [1])] == ["''", "a", "null", "[1]"]
