"""The place of each key is its line; its comment is the one beside it, not that of a neighbour."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.config.yaml_places import Place, read_places

TEXT = """\
# about the file
list:
  - 1 # an entry
  - 2
after_list: 3 # about after_list
text: |
  some # inside
  more
after_text: 4 # about after_text
folded: > # about folded
  words
flow: {x: 1, y: "#fff"} # both
words: {x: a, z: b#c} # two
quoted: "a # b" # really
several: [1,
  2] # at its end
mapping: # about mapping
  inner: null
  word: a#b
  # alone on a line
  dense_.*: 0.9 # dotted
last:
"""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Place]:
    path = tmp_path / "file.yaml"
    path.write_text(TEXT)
    return read_places(path)


def test_each_key_has_its_own_comment(places: dict[str, Place]) -> None:
    assert {key: place.comment for key, place in places.items() if place.comment} == {
        "after_list": "about after_list",
        "after_text": "about after_text",
        "folded": "about folded",
        "flow": "both",
        "flow.y": "both",
        "words": "two",
        "words.x": "two",
        "words.z": "two",
        "quoted": "really",
        "several": "at its end",
        "mapping": "about mapping",
        "mapping.dense_.*": "dotted",
    }


def test_each_key_stands_on_its_line(places: dict[str, Place]) -> None:
    lines = TEXT.splitlines()
    assert len(places) == 18
    for key, place in places.items():
        name = key.removeprefix("mapping.").removeprefix("flow.").removeprefix("words.")
        assert f"{name}:" in lines[place.line - 1], key


@pytest.mark.parametrize("text", ["", "# only a comment\n", "- a list\n"])
def test_a_file_without_keys_has_no_places(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    assert read_places(path) == {}
