"""Where each value of a config comes from, and which of them a part inherits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from hookline.trainer.config.compose import CONFIG_DIR, CONFIG_NAME, SCHEMA_NAME, Composer, with_values
from hookline.trainer.config.keys import is_group_choice
from hookline.trainer.config.schema import NAMED, TARGET, children, follow, lookup, show
from hookline.trainer.errors import UserError

COMMENT = re.compile(r"[^\"']*?(?:^|\s)#\s*(.*)")
"""A comment after a value: not a # within quotes or within a word."""
LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where PyYAML was built with it


class Place(NamedTuple):
    """Where a key stands in its file."""

    line: int  # from 1
    comment: str  # after its value, or after the key of a block


def read_places(path: Path) -> dict[str, Place]:
    """Return the place of every key of a YAML file, keys in keys as "trainer.epochs"."""
    text = path.read_text(encoding="utf-8")
    found: dict[str, Place] = {}
    root = yaml.compose(text, Loader=LOADER)
    if isinstance(root, yaml.MappingNode):
        _collect(root, "", text.splitlines(), found)
    return found


def _collect(node: yaml.MappingNode, prefix: str, lines: list[str], found: dict[str, Place]) -> None:
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        collection = isinstance(value, yaml.CollectionNode)
        block = not value.flow_style if collection else value.style in ("|", ">")
        end = key.end_mark if block else value.end_mark  # a block ends where the next key begins
        comment = COMMENT.match(lines[end.line][end.column :] if end.line < len(lines) else "")
        found[name] = Place(key.start_mark.line + 1, comment[1].strip() if comment else "")
        if isinstance(value, yaml.MappingNode):
            _collect(value, f"{name}.", lines, found)


SCHEME = "file://"


@dataclass(frozen=True)
class Layer:
    """Hold what one file or override sets."""

    label: str  # of the file, or of the override
    tree: Mapping[str, Any]  # plain values, from the root of the config
    locate: Callable[[str], Place | None] = lambda path: None  # the place of a key in the file; None if it has none
    option: str = ""  # of a group that the file is, such as "recipe/bnn"; empty for an override

    def place(self, path: str) -> str:
        found = self.locate(path)
        return self.label if found is None else f"{self.label}:{found.line}"


@dataclass(frozen=True)
class Step:
    """Hold what one layer says of a key."""

    layer: Layer  # that says it
    path: str  # the key, or the one above it that the layer sets to a list, or to something without that key
    value: Any  # that the layer sets there
    removes: bool = False  # whether it does

    @property
    def place(self) -> str:
        return self.layer.place(self.path)

    @property
    def comment(self) -> str:
        found = self.layer.locate(self.path)
        return "" if found is None else found.comment


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
    return Step(layer, ".".join(names), passed[-1][1], removes=rest is not None)


def _file_layer(config_path: str, package: str, composer: Composer) -> Layer:
    found = composer.load(config_path)
    content: Any = OmegaConf.to_container(found.config) if OmegaConf.is_dict(found.config) else {}
    content = {name: each for name, each in content.items() if name not in ("defaults", "hydra")}
    package = "" if package == "_global_" else package
    tree = _nested(package, content) if content else {}
    if config_path == SCHEMA_NAME:
        return Layer("trainer/config/schema.py", tree)
    if not str(found.path).startswith(SCHEME):
        return Layer(config_path, tree, option=config_path)
    path = Path(str(found.path).removeprefix(SCHEME)) / f"{config_path.removesuffix('.yaml')}.yaml"
    prefix = f"{package}." if package else ""
    places = cache(lambda: read_places(path))  # few of the files set a key that is asked for

    def locate(key: str) -> Place | None:
        return places().get(key.removeprefix(prefix)) if key.startswith(prefix) else None

    return Layer(_relative(path), tree, locate, config_path)


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


PARTS = ("data", "model", "schedule", "optimizer", "task")
BINDING = ("network", "objective")
"""Keys that the config of any hook may have, whatever its constructor takes."""
RECIPES = "recipe/"


def chooses_parts(overrides: Sequence[Override], recipe: str, composer: Composer) -> bool:
    """Return whether another than a recipe of ours chose a part: only then can files have set values for others."""
    found = composer.load(f"{RECIPES}{recipe}")
    if composer.config_name != CONFIG_NAME or found is None or found.provider != "main":
        return True
    return any(each.key_or_group in PARTS or TARGET in str(each.input_line) for each in overrides)


def without_leftovers(
    config: Mapping[str, Any], overrides: Sequence[Override], composer: Composer
) -> tuple[dict[str, Any], list[str]]:
    """Return a config without the values that its files set for other parts, and a line for each part that had some.

    Such a value comes from the file of the part that another `_target_` replaces, or from a recipe that chose another
    part, and the part that is built does not take it. What the user typed is kept, and so are mistakes in a file; both
    are refused later.
    """
    result, lines = dict(config), []
    layers = layers_of(overrides, composer)
    for path, node in _nodes(config):
        target = chain_of(f"{path}.{TARGET}", layers)[-1:]
        own = children(lookup(target[0].layer.tree, path)) if target else {}
        last = {key: chain_of(f"{path}.{key}", layers)[-1:] for key in node if key not in own}
        foreign = {key: each[0] for key, each in last.items() if each and _is_foreign(path, node, each[0], composer)}
        if foreign and (left := _refused(node, foreign, path.partition(".")[0], config["plugins"])):
            section, _, name = path.partition(".")
            kept = {key: value for key, value in node.items() if key not in left}
            result[section] = {**result[section], name: kept} if name else kept
            values = " and ".join(f"{path}.{key}={show(node[key])} ({foreign[key].place})" for key in left)
            lines.append(f"{values} left out: {node[TARGET]} does not take {'it' if len(left) == 1 else 'them'}.")
    return result, lines


def _nodes(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from ((name, config[name]) for name in PARTS)
    for section in NAMED:
        yield from ((f"{section}.{name}", node) for name, node in config[section].items() if node is not None)


def _is_foreign(path: str, node: Mapping[str, Any], step: Step, composer: Composer) -> bool:
    """Return whether a file set a value for a part with another target than the node has now."""
    layer, key = step.layer, step.path.rpartition(".")[2]
    meant = children(lookup(layer.tree, path))
    if TARGET not in meant and layer.option.startswith(RECIPES):
        recipe = composer.compose([f"recipe={layer.option.removeprefix(RECIPES)}"])
        meant = children(lookup(with_values(recipe, []), path))
    return key in meant and meant.get(TARGET, node[TARGET]) != node[TARGET]


def _refused(node: Mapping[str, Any], names: Mapping[str, Any], group: str, plugins: Sequence[str]) -> list[str]:
    """Return those of the arguments that a node's target does not take; none if it is not known: `bind` says why."""
    from hookline.trainer.config.build import parameters_of, resolve
    from hookline.trainer.quiet import quiet_start

    try:
        with quiet_start():  # a part of Keras needs it imported
            taken, takes_any = parameters_of(resolve(node[TARGET], group=group, plugins=plugins))
    except UserError:
        return []
    return [] if takes_any else [name for name in names if name not in (*taken, *BINDING)]
