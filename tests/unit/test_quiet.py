"""Warnings as one line, while a run lasts."""

from __future__ import annotations

import warnings

import pytest

from trainer.quiet import plain_warnings


def test_a_warning_is_one_line_without_its_place_in_the_code() -> None:
    with plain_warnings():
        shown = warnings.formatwarning(UserWarning("Attention\ncollapsed."), UserWarning, "hooks/file.py", 7)
    assert shown == "Warning: Attention collapsed.\n"


def test_afterwards_python_shows_warnings_as_before() -> None:
    before = warnings.formatwarning
    with pytest.raises(KeyError), plain_warnings():
        raise KeyError
    assert warnings.formatwarning is before
