"""Docstrings as data: what the catalogue of hooks reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.documentation.docstring import parse_docstring

TEXT = """Say what it does.

    More of it, over
    two lines.

    - A list.

    State:
        mask/<variable>: True where
            an entry stays.
        updates: how many.

    Equation:
        a = b
            c = d

        e = f
    """


def test_summary_body_and_sections_come_apart():
    found = parse_docstring(TEXT)
    assert found.summary == "Say what it does."
    assert found.body == "More of it, over\ntwo lines.\n\n- A list."
    assert list(found.sections) == ["State", "Equation"]
    assert found.sections["Equation"] == "a = b\n    c = d\n\ne = f"


def test_entries_have_names_and_texts_over_several_lines():
    found = parse_docstring(TEXT)
    assert found.entries("State") == {"mask/<variable>": "True where an entry stays.", "updates": "how many."}
    assert found.entries("Scalars") == {}


def test_a_class_without_a_docstring_says_nothing():
    assert parse_docstring(None).summary == ""
    assert parse_docstring("One line.").sections == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A.\n\nCost:\n    1\n\nbut then text", "'but then text' stands below a section"),
        ("A.\n\nCost:\n    1\n\nCost:\n    2", "'Cost:' comes twice"),
        ("A.\n\nCost:\n\nState:\n    a: b", "'Cost:' is empty"),
    ],
)
def test_a_docstring_that_cannot_be_read_is_named(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        parse_docstring(text)


@pytest.mark.parametrize("lines", ["a: b\na: c", "no colon here", "a: b\nc:\n"])
def test_entries_that_are_none_are_named(lines: str):
    section = "\n".join(f"    {line}" for line in lines.splitlines())
    with pytest.raises(ValueError, match="in the section 'State:' received. Expected 'name: text'"):
        parse_docstring(f"A.\n\nState:\n{section}").entries("State")


words = st.text("abc xyz,<>/|", min_size=1, max_size=40).map(str.strip).filter(bool)


@given(st.dictionaries(st.text("abc_/<>", min_size=1, max_size=9), words, min_size=1, max_size=5))
def test_entries_come_back_as_they_were_written(entries: dict[str, str]):
    lines = "\n".join(f"    {name}: {text}" for name, text in entries.items())
    assert parse_docstring(f"A.\n\nState:\n{lines}\n").entries("State") == entries
