"""Whether a value fits an annotation, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional, Union

from hookline.trainer.config.values import fits, is_interpolation, like


def test_values_fit_their_annotations() -> None:
    for value, annotation in [
        (1, int), (1, float), (1.5, float), (True, bool), ("a", str), (None, None), ("a", int | str),
        (None, Optional[int]), (1, Union[int, str]),  # noqa: UP007, UP045 - the older spellings, too
        ("a", Literal["a", "b"]), ([1, 2], list[int]), ([1, 2], tuple[int, ...]), ([1, "a"], tuple[int, str]),
        (["a"], Sequence[str]), ({"a": 1}, dict[str, int]), ({"a": 1}, Mapping[str, Any]), (object(), Any),
        ("x", bytes),
    ]:  # fmt: skip
        assert fits(value, annotation), (value, annotation)
    for value, annotation in [
        (True, int), (True, float), (1, bool), (1.0, int), ("1", int), (1, str), (None, int), ("c", Literal["a", "b"]),
        (True, Literal[1]), ([1, "a"], list[int]), ("ab", list[str]), ("ab", Sequence[str]), ([1], tuple[int, str]),
        ({"a": "b"}, dict[str, int]), ([], dict), (1.5, int | None),
    ]:  # fmt: skip
        assert not fits(value, annotation), (value, annotation)


def test_a_default_says_what_may_replace_it() -> None:
    for default, good, bad in [
        (1, [2, 2.5, None], ["a", True, [1], {}]),
        (0.5, [2, None], ["a", False]),
        (True, [False, None], [1, "a"]),
        ("a", ["b", 3, None, ["b"], {"_target_": "x.y"}], [True]),
        ([1], [[], None, "all"], [3, True]),
        (None, [1, "a", [], {}], []),
        ("???", [1, True, "a"], []),
    ]:
        assert all(fits(value, like(default)) for value in good), default
        assert not any(fits(value, like(default)) for value in bad), default
    assert not any(fits(None, like(default, optional=False)) for default in (1, 0.5, True))


def test_references_are_told_from_texts() -> None:
    references = ["${trainer.epochs}", "runs/${seed}", r"\\${seed}"]  # the last one: an escaped backslash
    assert all(map(is_interpolation, references))
    assert not any(map(is_interpolation, [r"\${seed}", "$HOME", 3]))
