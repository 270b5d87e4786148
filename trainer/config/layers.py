"""Where each value of a config comes from: the files and overrides that set it, in the order of composition."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from hookline.trainer.config.compose import CONFIG_DIR, SCHEMA_NAME, Composer
from hookline.trainer.config.keys import is_group_choice
from hookline.trainer.config.schema import follow

COMMENT = re.compile(r"[^\"']*?(?:^|\s)#\s*(.*)")
"""A comment after a value: not a # within quotes or within a word."""
LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where PyYAML was built with it


@cache
def read_places(path: Path) -> dict[str, tuple[int, str]]:
    """Return the line of every key of a YAML file, keys in keys as "trainer.epochs", and the comment beside it."""
    text = path.read_text(encoding="utf-8")
    found: dict[str, tuple[int, str]] = {}
    root = yaml.compose(text, Loader=LOADER)
    if isinstance(root, yaml.MappingNode):
        _collect(root, "", text.splitlines(), found)
    return found


def _collect(node: yaml.MappingNode, prefix: str, lines: list[str], found: dict[str, tuple[int, str]]) -> None:
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        collection = isinstance(value, yaml.CollectionNode)
        block = not value.flow_style if collection else value.style in ("|", ">")
        end = key.end_mark if block else value.end_mark  # a block ends where the next key begins
        comment = COMMENT.match(lines[end.line][end.column :] if end.line < len(lines) else "")
        found[name] = key.start_mark.line + 1, comment[1].strip() if comment else ""
        if isinstance(value, yaml.MappingNode):
            _collect(value, f"{name}.", lines, found)


SCHEME = "file://"


@dataclass(frozen=True)
class Layer:
    """Hold what one file or override sets."""

    label: str  # of the file, or of the override
    tree: Mapping[str, Any]  # plain values, from the root of the config
    file: Path | None = None  # None for an override, and for the schema
    package: str = ""  # the key that the file is about


class Step(NamedTuple):
    """Hold what one layer says of a key."""

    path: str  # the key, or the one above it that the layer sets to a list, or to something without that key
    value: Any  # that the layer sets there
    removes: bool  # whether it does
    place: str  # such as "configs/hooks/prune.yaml:5"
    comment: str  # that stands there


def layers_of(overrides: Sequence[Override], composer: Composer) -> list[Layer]:
    """Return everything that Hydra composes a config of, in its order."""
    files = [
        _file_layer(default.config_path, default.package or "", composer)
        for default in composer.defaults([str(override.input_line) for override in overrides])
        if default.config_path is not None and not (default.package or "").startswith("hydra")
    ]
    setting = [each for each in overrides if not is_group_choice(each, composer)]
    return [*(layer for layer in files if layer.tree), *map(override_layer, setting)]


def chain_of(key: str, layers: Sequence[Layer]) -> list[Step]:
    """Return what each layer says of a key, in order; the last one wins."""
    steps: list[Step] = []
    for layer in layers:
        step = _look_up(layer, key)
        if step is not None and (steps or not step.removes):
            steps.append(step)
    return steps


def _look_up(layer: Layer, key: str) -> Step | None:
    passed, rest = follow(layer.tree, key)
    if not passed or (rest is not None and isinstance(passed[-1][1], Mapping)):
        return None
    lists = [depth for depth, (_, value) in enumerate(passed, start=1) if isinstance(value, list)]
    names = [name for name, _ in passed[: min(lists, default=None)]]  # a file names no entry of a list
    path = ".".join(names)
    line, comment = (read_places(layer.file) if layer.file else {}).get(path.removeprefix(f"{layer.package}."), (0, ""))
    place = f"{layer.label}:{line}" if line else layer.label
    return Step(path, passed[-1][1], rest is not None, place, comment)


def _file_layer(config_path: str, package: str, composer: Composer) -> Layer:
    found = composer.load(config_path)
    content: Any = OmegaConf.to_container(found.config) if OmegaConf.is_dict(found.config) else {}
    content = {name: each for name, each in content.items() if name not in ("defaults", "hydra")}
    package = "" if package == "_global_" else package
    tree = _nested(package, content) if content else {}
    if config_path == SCHEMA_NAME:
        return Layer("trainer/config/schema.py", tree)
    if not str(found.path).startswith(SCHEME):
        return Layer(config_path, tree)
    path = Path(str(found.path).removeprefix(SCHEME)) / f"{config_path.removesuffix('.yaml')}.yaml"
    return Layer(_relative(path), tree, path, package)


def override_layer(override: Override) -> Layer:
    """Return what an override of the command line sets."""
    value = None if override.is_delete() else override.value()
    return Layer(f"the command line, {override.input_line}", _nested(override.key_or_group, value))


def _nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".") if path else []):
        value = {part: value}
    return value if isinstance(value, dict) else {}


def _relative(path: Path) -> str:
    """Return a path relative to the project's root, or to the current directory, where it lies below."""
    for root in (CONFIG_DIR.parent, Path.cwd()):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return str(path)
