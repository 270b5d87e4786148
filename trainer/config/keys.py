"""Keys that a user types: which exist, and what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType

from hookline.trainer.config.compose import Composer
from hookline.trainer.config.schema import NAMED, TARGET, children, follow, is_part, leaves, lookup, show
from hookline.trainer.errors import UserError, did_you_mean, nearest, unknown_name

ELSEWHERE = {f"task.{key}": f" task=supervised takes any Keras {key}." for key in ("loss", "metrics")}
"""Where an argument is known that a part of the run does not take."""


def is_group_choice(override: Override, composer: Composer) -> bool:
    """Return whether an override chooses an option of a group."""
    return composer.is_group(override.key_or_group) and not isinstance(override.value(), dict)


def check_choice(override: Override, composer: Composer) -> None:
    """Check an override that chooses an option of a group: it exists, and Hydra does not ignore the sign."""
    group, text, value = override.key_or_group, override.input_line, override.value()
    section = group.split("/")[0]
    if override.is_delete() or value is None:
        remedy = f"{group}.<name>=null to remove one" if section in NAMED else f"{group}=<name> to choose another"
        raise UserError(f"'{text}' leaves nothing of the group. Expected {remedy}.")
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
    """Return the nodes that get another `_target_` than the files give them; `bind` checks their arguments."""
    found = set()
    for override in overrides:
        for path, value in _entries(override.key_or_group, override.value()):
            node, _, last = path.rpartition(".")
            if last == TARGET and _may_build(node, base) and lookup(base, path) != value:
                found.add(node)
    return found


def check_value(override: Override, base: Mapping[str, Any], foreign: set[str], composer: Composer) -> None:
    """Check that an override sets, adds or removes what a run can have; Hydra and `bind` check signs and values."""
    for path, _ in _entries(override.key_or_group, override.value(), base):
        node = min((each for each in foreign if f"{path}.".startswith(f"{each}.")), key=len, default="")
        if not node:
            find_value(path, base, composer)
            if override.is_delete() and not is_part(path):
                raise UserError(f"'{override.input_line}' removes what every run needs. Expected ~hooks.<name>.")
        elif "." in node and not is_part(node):  # the signature of its target says which arguments there are
            find_value(node, base, composer)


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
