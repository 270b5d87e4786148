"""The settings that tell runs apart: the fewest columns, and their names and cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hookline.trainer.config.schema import NAMED, TARGET, show
from hookline.trainer.config.settings import IGNORED, MISSING, Settings, differing, overridden_key, varies

UNLESS_GIVEN = ("trainer.threads",)
"""Likewise, unless a user gave it: it changes only the last bits, and a sweep sets it by the machine's cores."""
RECIPE = "recipe"


def ignored_keys(overrides: Iterable[Sequence[str]]) -> set[str]:
    """Return the keys of settings that do not distinguish runs."""
    given = {overridden_key(text) for texts in overrides for text in texts}
    return {*IGNORED, *(key for key in UNLESS_GIVEN if key not in given)}


def without_parts(keys: Sequence[str], settings: Settings) -> list[str]:
    """Return keys without those that differ only because some configs lack the hook that they belong to."""
    parts = {key for key in keys if key.count(".") == 1 and key.partition(".")[0] in NAMED}
    present = {key: [value for value in settings[key] if value is not MISSING] for key in keys}
    return [key for key in keys if not any(key.startswith(f"{part}.") for part in parts) or varies(present[key])]


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
