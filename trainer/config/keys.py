"""Keys that a user types: which exist, and what was probably meant."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType

from hookline.trainer.config.compose import Composer
from hookline.trainer.config.schema import (
    NAMED,
    TARGET,
    TrainConfig,
    TrainerConfig,
    children,
    describe,
    fits,
    follow,
    is_interpolation,
    is_part,
    like,
    lookup,
    show,
)
from hookline.trainer.errors import UserError, did_you_mean, nearest, unknown_name

REMEDY = {
    **{section: f"{section}.<name>=null to remove one {kind}" for section, kind in NAMED.items()},
    "recipe": "recipe=<name>; see python train.py --help",
}

ELSEWHERE = {f"task.{key}": f" task=supervised takes any Keras {key}." for key in ("loss", "metrics")}
"""Where an argument is known that a part of the run does not take."""


def is_group_choice(override: Override, composer: Composer) -> bool:
    """Return whether an override chooses an option of a group."""
    return composer.is_group(override.key_or_group) and not isinstance(override.value(), dict)


def check_choice(override: Override, composer: Composer, choices: Mapping[str, str]) -> None:
    """Check an override that chooses an option of a group: it exists, and Hydra does not ignore the sign."""
    group, text, value = override.key_or_group, override.input_line, override.value()
    if override.is_delete() or value is None:
        remedy = REMEDY.get(group, f"{group}=<name> to choose another")
        raise UserError(f"'{text}' leaves nothing of the group. Expected {remedy}.")
    names, options = value if isinstance(value, list) else [value], composer.options(group)
    for name in names:
        if name not in options:
            raise unknown_name(NAMED.get(group, group), show(name), options)
    listed, section = ",".join(map(str, names)), group.split("/")[0]
    if section in NAMED:
        if override.type is not OverrideType.ADD:
            added = f"[{listed}]" if "," in listed else listed
            raise UserError(f"'{text}' would replace all {NAMED[section]}s. Expected +{group}={added} to add.")
    elif override.type is not OverrideType.CHANGE and override.package is None:
        if group == "recipe" and group in choices:
            raise UserError(f"'{text}' would be ignored. Expected recipe=[{choices[group].strip('[]')},{listed}].")
        raise UserError(f"'{text}' adds to a group that takes one choice. Expected {group}={listed}.")


def foreign_nodes(overrides: Iterable[Override], base: Mapping[str, Any]) -> set[str]:
    """Return the nodes that get another `_target_` than the files give them; `bind` checks their arguments."""
    found = set()
    for override in overrides:
        for path, value in _entries(override.key_or_group, override.value()):
            node, _, last = path.rpartition(".")
            if last == TARGET and _may_build(node, base) and lookup(base, path) != value:
                found.add(node)
    return found


def check_value(override: Override, base: Mapping[str, Any], foreign: set[str], composer: Composer) -> None:
    """Check an override that sets, adds or removes a value."""
    key, value = override.key_or_group, override.value()
    for path, item in _entries(key, value, base):
        nodes = [node for node in foreign if path == node or path.startswith(f"{node}.")]
        if nodes:  # the signature of its target says which arguments there are: `bind` asks it
            node, (parent, _, name) = min(nodes, key=len), path.rpartition(".")
            if "." in node and not is_part(node):
                find_value(node, base, composer)
            _check_new(override, path, item, exists=name in children(lookup(base, parent)))
        elif override.is_delete():
            find_value(path, base, composer)
            if not is_part(path):
                raise UserError(f"'{override.input_line}' removes what every run needs. Expected ~hooks.<name>.")
        else:
            known = find_value(path, base, composer)
            _check_new(override, path, item, exists=True)
            _check_type(path, item, known)


def _may_build(node: str, base: Mapping[str, Any]) -> bool:
    """Return whether a node is a place for something with a `_target_`: a section that has one, or a part by name."""
    root, _, rest = node.partition(".")
    section = base.get(root)
    return isinstance(section, Mapping) and (TARGET in section or (root in NAMED and bool(rest)))


def _entries(path: str, value: Any, base: Mapping[str, Any] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield what a value sets, one entry at a time.

    With a base, a mapping is taken apart only where it is merged into another, or where nothing is set yet; in place of
    null it is one value. Without a base, it is taken apart everywhere.
    """
    merged = base is None or isinstance(lookup(base, path), Mapping) or follow(base, path)[1] is not None
    if isinstance(value, Mapping) and value and merged:
        for name, item in value.items():
            yield from _entries(f"{path}.{name}" if path else str(name), item, base)
    else:
        yield path, value


def find_value(path: str, base: Mapping[str, Any], composer: Composer) -> Any:
    """Return the value that a path has in the config."""
    passed, rest = follow(base, path)
    node = passed[-1][1] if passed else base
    if rest is not None:
        above = [name for name, _ in passed]
        raise _unknown_key([*above, *rest.split(".")], len(above), children(node), base, composer)
    return node


def _unknown_key(
    parts: Sequence[str], depth: int, siblings: Mapping[str, Any], base: Mapping[str, Any], composer: Composer
) -> UserError:
    above, part, below = ".".join(parts[:depth]), parts[depth], "".join(f".{each}" for each in parts[depth + 1 :])
    if above in NAMED:
        return _unknown_part(above, part, sorted(siblings), composer)
    if TARGET in siblings:
        error = unknown_name(f"argument of {above}", part, [name for name in siblings if name != TARGET])
        return UserError(f"{error}{ELSEWHERE.get(f'{above}.{part}', '')}")
    prefix = f"{above}." if above else ""
    siblings = siblings if above else dict.fromkeys([*siblings, *composer.groups()])
    near = difflib.get_close_matches(part, siblings, n=1) if siblings else []
    candidate = _nearest(f"{prefix}{near[0]}", below, base) if near else _same_name(parts[-1], base)
    hint = f" Did you mean '{candidate}'?" if candidate else ""
    listing = f" Expected one of: {', '.join(prefix + name for name in sorted(siblings))}." if siblings else ""
    return UserError(f"Unknown key '{'.'.join(parts)}'.{hint}{listing}")


def _nearest(corrected: str, below: str, base: Mapping[str, Any]) -> str:
    """Return the existing path nearest to a corrected one, with what was written below it."""
    full = f"{corrected}{below}"
    if not below or follow(base, full)[1] is None:
        return full
    paths = [path for path, _ in _entries("", base) if path.startswith(f"{corrected}.")]
    return next(iter(difflib.get_close_matches(full, paths, n=1, cutoff=0.75)), corrected)


def _same_name(name: str, base: Mapping[str, Any]) -> str | None:
    """Return a path whose last part is a name, or nearly so: "trainer.epochs" for "epochs"."""
    paths = {path.rpartition(".")[2]: path for path, _ in _entries("", base) if TARGET not in path}
    found = nearest(name, paths, cutoff=0.75)
    return paths[found] if found else None


def _unknown_part(section: str, name: str, present: Sequence[str], composer: Composer) -> UserError:
    kind, addable = NAMED[section], [option for option in composer.options(section) if option not in present]
    if name in addable:
        return UserError(f"The {kind} '{name}' is not part of this run. Expected +{section}={name} to add it first.")
    hint = did_you_mean(name, [*present, *addable])
    expected = f"one of this run's: {', '.join(present)}" if present else f"+{section}=<name> to add one"
    return UserError(f"Unknown {kind} '{name}'.{hint} Expected {expected}.")


def _check_new(override: Override, path: str, value: Any, *, exists: bool) -> None:
    """Check that a plus adds what does not exist, and that nothing else does."""
    if override.is_add() and exists:
        raise UserError(f"'{override.input_line}' adds what exists already. Expected {path}={show(value)}.")
    if override.type is OverrideType.CHANGE and not exists:
        raise UserError(f"'{override.input_line}' sets what does not exist yet. Expected +{path}={show(value)}.")


def _check_type(path: str, value: Any, known: Any) -> None:
    if is_interpolation(value) or is_interpolation(known):
        return
    if isinstance(known, Mapping):
        removable = is_part(path)
        if not isinstance(value, Mapping) and not (removable and value is None):
            remove = f", or {path}=null to remove it" if removable else ""
            raise UserError(f"{path}={show(value)} received. Expected a value for one of its keys{remove}.")
        return
    annotation, choices = _declared(path)
    if annotation is None and isinstance(value, Mapping):
        return  # whether a mapping may stand there, only the signature knows; `bind` asks it
    annotation = annotation or like(known)
    if not fits(value, annotation):
        expected = f"one of: {', '.join(choices)}" if choices else describe(annotation)
        raise UserError(f"{path}={show(value)} received. Expected {expected}.{_rewritten(path, value, annotation)}")


def _rewritten(path: str, value: Any, annotation: Any) -> str:
    """Return what to write in place of 3.0 where 3 is needed, and of one value where a list is."""
    if isinstance(value, float) and value.is_integer() and fits(1, annotation):
        return f" Write {path}={int(value)}."
    if isinstance(value, str) and fits([value], annotation):
        return f" Write {path}=[{value}]."
    return ""


def _declared(path: str) -> tuple[Any, Sequence[str]]:
    """Return the type of a key of the schema and the values it may have; None and nothing for other keys."""
    schema: type = TrainerConfig if path.startswith("trainer.") else TrainConfig
    name = path.removeprefix("trainer.")
    fields = {field.name: field for field in dataclasses.fields(schema)}
    choices = fields[name].metadata.get("choices", ()) if name in fields else ()
    return typing.get_type_hints(schema).get(name), choices
