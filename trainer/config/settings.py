"""How configs differ: their settings by dotted key, and the fewest columns that tell them apart."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hookline.trainer.config.schema import NAMED, TARGET, show

IGNORED = ("seed", "run_dir", "resume", "debug", "trainer.max_seconds")
"""Settings in which runs of one group may differ: the seed, and those that do not change a result."""
UNLESS_GIVEN = ("trainer.threads",)
"""Likewise, unless a user gave it: it changes only the last bits, and a sweep sets it by the machine's cores."""
RECIPE = "recipe"
MISSING: Any = object()
"""In place of a setting that a config does not have."""
Settings = dict[str, list[Any]]


def ignored_keys(overrides: Iterable[Sequence[str]]) -> set[str]:
    """Return the keys of settings that do not distinguish runs."""
    given = {overridden_key(text) for texts in overrides for text in texts}
    return {*IGNORED, *(key for key in UNLESS_GIVEN if key not in given)}


def spread_settings(configs: Sequence[Mapping[str, Any]], ignored: Collection[str] = IGNORED) -> Settings:
    """Return every setting with its value in each config, by dotted key; `MISSING` where a config lacks it.

    Hooks and augmentations have a setting of their own, such as "hooks.prune": True where the run has it. A mapping
    inside an argument is one value, unless it has the same keys in all configs that have it.
    """
    return {key: values for key, values in _spread((), list(configs)) if key not in ignored}


def _spread(path: tuple[str, ...], values: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    if len(path) == 2 and path[0] in NAMED:
        values = [value if isinstance(value, Mapping) else MISSING for value in values]
        yield ".".join(path), [MISSING if value is MISSING else True for value in values]
    present = [value for value in values if value is not MISSING]
    if not all(isinstance(value, Mapping) for value in present) or not _opens(path, present):
        yield ".".join(path), values
        return
    for name in dict.fromkeys(name for value in present for name in value):
        inner = [MISSING if value is MISSING else value.get(name, MISSING) for value in values]
        yield from _spread((*path, str(name)), inner)


def _opens(path: tuple[str, ...], present: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a mapping is a place of settings, and not a value."""
    if len(path) < 2 or (len(path) == 2 and path[0] in NAMED):
        return True
    return len({tuple(value) for value in present}) == 1 and bool(present[0])


def differing(settings: Settings) -> list[str]:
    """Return the keys of the settings that are not the same everywhere."""
    return [key for key, values in settings.items() if _varies(values)]


def without_parts(keys: Sequence[str], settings: Settings) -> list[str]:
    """Return keys without those that differ only because some configs lack the hook that they belong to."""
    parts = {key for key in keys if key.count(".") == 1 and key.partition(".")[0] in NAMED}
    present = {key: [value for value in settings[key] if value is not MISSING] for key in keys}
    return [key for key in keys if not any(key.startswith(f"{part}.") for part in parts) or _varies(present[key])]


def _varies(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values[1:])


def choose_columns(settings: Settings, overrides: Sequence[Sequence[str]]) -> list[str]:
    """Return the keys that tell configs apart: those that users set and that differ, and the fewest others."""
    keys = differing(settings)
    given = list(dict.fromkeys(overridden_key(text) for texts in overrides for text in texts))
    chosen = [key for name in sorted(given, key=lambda name: name != RECIPE) for key in keys if _is_set_by(key, name)]
    chosen = list(dict.fromkeys(chosen))
    for key in sorted(keys, key=_rank):
        if _parts(settings, [*chosen, key]) > _parts(settings, chosen):
            chosen.append(key)
    return chosen


def _parts(settings: Settings, keys: Sequence[str]) -> int:
    """Return into how many groups keys part the configs."""
    return len(set(zip(*([repr(value) for value in settings[key]] for key in keys), strict=True))) if keys else 1


def _rank(key: str) -> tuple[bool, bool, int]:
    """Return the sort order of a key that nobody set: what is built first, then hooks, then their arguments."""
    is_part = key.partition(".")[0] in NAMED
    return is_part or not key.endswith(TARGET), not is_part, key.count(".")


def _is_set_by(key: str, given: str) -> bool:
    """Return whether an override decides a setting: the key itself, a part of its value, or a group's choice."""
    parts = given.split(".")
    if given in NAMED:  # +hooks=prune
        return key.startswith(f"{given}.") and key.count(".") == 1
    is_choice = len(parts) == 1 and key == f"{given}.{TARGET}"
    return key == given or is_choice or (len(parts) > 2 and key.startswith(f"{given}."))


def overridden_key(text: str) -> str:
    """Return the key of an override, such as "hooks.prune" for "~hooks.prune" and "hooks" for "+hooks=prune"."""
    return text.lstrip("+~").partition("=")[0].partition("@")[0].replace("/", ".")


def shorten_keys(keys: Sequence[str], taken: Sequence[str] = ()) -> list[str]:
    """Return the shortest ends of keys that tell them apart, such as "learning_rate"."""
    whole = [key.removesuffix(f".{TARGET}") for key in keys]
    return [_shorten(key, [other for other in whole if other != key], taken) for key in whole]


def _shorten(key: str, others: Sequence[str], taken: Sequence[str]) -> str:
    parts = key.split(".")
    for start in range(len(parts) - 1, 0, -1):
        end = ".".join(parts[start:])
        if end not in taken and not any(f".{other}".endswith(f".{end}") for other in others):
            return end
    return key


def show_setting(key: str, value: Any) -> str:
    """Return a value as a cell: a dash if it is missing, "on" for a hook that is present, the end of a target."""
    if value is MISSING:
        return "-"
    if key.endswith(TARGET):
        return str(value).rpartition(".")[2]
    if value is True and key.count(".") == 1 and key.partition(".")[0] in NAMED:
        return "on"
    return show(value)
