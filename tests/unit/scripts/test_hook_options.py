"""The keys of a hook's config file, with what is written behind them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hooks import catalogue
from scripts.documentation.options import Option, read_options


def write(path: Path, *lines: str) -> Path:
    file = path / "mask.yaml"
    file.write_text("\n".join(["# Mask", "mask:", "  _target_: hooks.mask.Mask", *lines]) + "\n")
    return file


def test_keys_defaults_and_comments_are_read_as_they_are_written(tmp_path: Path):
    file = write(
        tmp_path,
        '  layers: "*"       # all: "*"',
        "  shares: [0.5, 1]  # two",
        "                    # or {a: 1} # more",
        "  plain: null",
    )
    assert read_options(file) == [
        Option("layers", '"*"', 'all: "*"'),
        Option("shares", "[0.5, 1]", "two or {a: 1} # more"),
        Option("plain", "null", ""),
    ]


def test_a_hash_inside_of_quotes_is_no_comment(tmp_path: Path):
    assert read_options(write(tmp_path, '  mark: "a # b" # c')) == [Option("mark", '"a # b"', "c")]


@pytest.mark.parametrize("line", ["    nested: 1", "  - item", "  words"])
def test_what_is_no_key_in_one_line_is_refused(line: str, tmp_path: Path):
    with pytest.raises(ValueError, match="mask.yaml: '.*' is no 'key: value  # comment' in one line"):
        read_options(write(tmp_path, line))


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_defaults_are_those_that_yaml_reads(name: str):
    file = catalogue()[name].config_file
    read = {option.key: yaml.safe_load(option.default) for option in read_options(file)}
    assert {"_target_": catalogue()[name].target, **read} == yaml.safe_load(file.read_text())[name]
