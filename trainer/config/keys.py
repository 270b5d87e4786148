"""Keys of a config: check that they exist, suggest the one that was meant, and trace where each value comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import OmegaConf

from hookline.trainer.config.command import CONFIG_DIR, SCHEMA_NAME, Composer
from hookline.trainer.config.overrides import show
from hookline.trainer.config.schema import NAMED, TARGET, children, follow, is_part, leaves, lookup
from hookline.trainer.config.stored import LOADER
from hookline.trainer.errors import UserError, did_you_mean, nearest, unknown_name

ELSEWHERE = {f"task.{key}": f" task=supervised takes any Keras {key}." for key in ("loss", "metrics")}
"""Hints for arguments that a part of the run does not take, but another option does."""


def is_group_choice(override: Override, composer: Composer) -> bool:
    """Return whether an override chooses an option of a group."""
    return composer.is_group(override.key_or_group) and not isinstance(override.value(), dict)


def check_choice(override: Override, composer: Composer) -> None:
    """Check that an override of a group names an existing option, and has a sign that Hydra does not ignore."""
    group, text, value = override.key_or_group, override.input_line, override.value()
    section = group.split("/")[0]
    if override.is_delete() or value is None:
        remedy = f"{group}.<name>=null to remove one" if section in NAMED else f"{group}=<name> to choose another"
        raise UserError(f"'{text}' would leave the group without an option. Expected {remedy}.")
    names, options = value if isinstance(value, list) else [value], composer.options(group)
    for name in names:
        if name not in options:
            raise unknown_name(NAMED.get(group, group), show(name), options)
    listed = ",".join(map(str, names))
    if section in NAMED and override.type is not OverrideType.ADD:
        added = f"[{listed}]" if "," in listed else listed
        raise UserError(f"'{text}' would replace all {NAMED[section]}s. Expected +{group}={added} to add.")
    if section not in NAMED and override.type is not OverrideType.CHANGE and override.package is None:
        several = f", or for several recipes recipe=[first,{listed}]" if group == "recipe" else ""
        raise UserError(f"'{text}' adds to a group that takes one choice. Expected {group}={listed}{several}.")


def foreign_nodes(overrides: Iterable[Override], base: Mapping[str, Any]) -> set[str]:
    """Return the nodes for which an override changes the `_target_` of the files; `bind` checks their arguments."""
    found = set()
    for override in overrides:
        for path, value in _entries(override.key_or_group, override.value()):
            node, _, last = path.rpartition(".")
            if last == TARGET and _may_build(node, base) and lookup(base, path) != value:
                found.add(node)
    return found


def check_value(override: Override, base: Mapping[str, Any], foreign: set[str], composer: Composer) -> None:
    """Check that a run can have what an override sets, adds or removes; Hydra and `bind` check signs and values."""
    for path, _ in _entries(override.key_or_group, override.value(), base):
        node = min((each for each in foreign if f"{path}.".startswith(f"{each}.")), key=len, default="")
        if not node:
            find_value(path, base, composer)
            if override.is_delete() and not is_part(path):
                raise UserError(f"'{override.input_line}' removes what every run needs. Expected ~hooks.<name>.")
        elif "." in node and not is_part(node):  # the signature of its target defines the arguments
            find_value(node, base, composer)


def _may_build(node: str, base: Mapping[str, Any]) -> bool:
    """Return whether a node may have a `_target_`: it is in a section that has one, or is a named part."""
    root, _, rest = node.partition(".")
    section = base.get(root)
    return isinstance(section, Mapping) and (TARGET in section or (root in NAMED and bool(rest)))


def _entries(path: str, value: Any, base: Mapping[str, Any] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the entries that a value sets, each with its path.

    With a base, a mapping is split only where it is merged into another one, or where nothing is set yet; where it
    replaces null it is one value. Without a base, it is always split.
    """
    merged = base is None or isinstance(lookup(base, path), Mapping) or follow(base, path)[1] is not None
    if isinstance(value, Mapping) and value and merged:
        for name, item in value.items():
            yield from _entries(f"{path}.{name}" if path else str(name), item, base)
    else:
        yield path, value


def find_value(path: str, base: Mapping[str, Any], composer: Composer) -> Any:
    """Return the value at a path in the config."""
    passed, rest = follow(base, path)
    node = passed[-1][1] if passed else base
    if rest is not None:
        above = [name for name, _ in passed]
        raise _unknown_key([*above, *rest.split(".")], len(above), children(node), base, composer)
    return node


def _unknown_key(
    parts: Sequence[str], depth: int, siblings: Mapping[str, Any], base: Mapping[str, Any], composer: Composer
) -> UserError:
    above, part = ".".join(parts[:depth]), parts[depth]
    if above in NAMED:
        return _unknown_part(above, part, sorted(siblings), composer)
    if TARGET in siblings:
        error = unknown_name(f"argument of {above}", part, [name for name in siblings if name != TARGET])
        return UserError(f"{error}{ELSEWHERE.get(f'{above}.{part}', '')}")
    known = [f"{above}.{name}" for name in siblings] if above else [*siblings, *composer.groups()]
    paths = [path for path, _ in leaves(base) if TARGET not in path]
    by_name = {path.rpartition(".")[2]: path for path in paths}
    key = ".".join(parts)
    candidate = nearest(key, [*known, *paths]) or by_name.get(nearest(parts[-1], by_name, cutoff=0.75) or "")
    hint = f" Did you mean '{candidate}'?" if candidate else ""
    listing = f" Expected one of: {', '.join(sorted(set(known)))}." if known else ""
    return UserError(f"Unknown key '{key}'.{hint}{listing}")


def _unknown_part(section: str, name: str, present: Sequence[str], composer: Composer) -> UserError:
    kind, addable = NAMED[section], [option for option in composer.options(section) if option not in present]
    if name in addable:
        return UserError(f"The {kind} '{name}' is not part of this run. Expected +{section}={name} to add it first.")
    hint = did_you_mean(name, [*present, *addable])
    expected = f"one of this run's: {', '.join(present)}" if present else f"+{section}=<name> to add one"
    return UserError(f"Unknown {kind} '{name}'.{hint} Expected {expected}.")


COMMENT = re.compile(r"[^\"']*?(?:^|\s)#\s*(.*)")
"""A comment after a value: not a # within quotes or within a word."""


@cache
def read_places(path: Path) -> dict[str, tuple[int, str]]:
    """Return the line of every key of a YAML file, nested ones as "trainer.epochs", and the comment after it."""
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
    package: str = ""  # the key that the file's values belong to


class Step(NamedTuple):
    """Hold what one layer sets for a key."""

    path: str  # the key, or a parent of it that the layer sets to a list, or to a value without the key
    value: Any  # that the layer sets there
    removes: bool  # whether the layer removes the key
    place: str  # such as "configs/hooks/prune.yaml:5"
    comment: str  # in the file at that place


def layers_of(overrides: Sequence[Override], composer: Composer) -> list[Layer]:
    """Return the files and overrides from which Hydra composes a config, in its order."""
    files = [
        _file_layer(default.config_path, default.package or "", composer)
        for default in composer.defaults([str(override.input_line) for override in overrides])
        if default.config_path is not None and not (default.package or "").startswith("hydra")
    ]
    setting = [each for each in overrides if not is_group_choice(each, composer)]
    return [*(layer for layer in files if layer.tree), *map(override_layer, setting)]


def chain_of(key: str, layers: Sequence[Layer]) -> list[Step]:
    """Return what each layer sets for a key, in order; the last one wins."""
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
    names = [name for name, _ in passed[: min(lists, default=None)]]  # list entries have no key in a file
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
    """Return the layer of a command-line override."""
    value = None if override.is_delete() else override.value()
    return Layer(f"the command line, {override.input_line}", _nested(override.key_or_group, value))


def _nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".") if path else []):
        value = {part: value}
    return value if isinstance(value, dict) else {}


def _relative(path: Path) -> str:
    """Return a path relative to the project's root or to the current directory, if it is inside one of them."""
    for root in (CONFIG_DIR.parent, Path.cwd()):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return str(path)
