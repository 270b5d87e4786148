"""The files of `configs/data` list every argument of what they build, with its default."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[3] / "configs" / "data"


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_config_lists_every_argument_with_its_default(file):
    config = yaml.safe_load(file.read_text())
    module, name = config.pop("_target_").rsplit(".", 1)
    function = getattr(importlib.import_module(module), name)
    arguments = inspect.signature(function).parameters
    expected = {key: "???" if each.default is each.empty else each.default for key, each in arguments.items()}
    if file.stem == "mnist":
        expected["name"] = "mnist"
    assert config == expected
    assert file.read_text().startswith("# ")
