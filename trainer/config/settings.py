"""How configs differ: their settings by dotted key."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from hookline.trainer.config.schema import NAMED

IGNORED = ("seed", "run_dir", "resume", "debug", "trainer.max_seconds")
"""Settings in which runs of one group may differ: the seed, and those that do not change a result."""
MISSING: Any = object()
"""In place of a setting that a config does not have."""
Settings = dict[str, list[Any]]


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
    return [key for key, values in settings.items() if varies(values)]


def varies(values: Sequence[Any]) -> bool:
    """Return whether values are not all the same."""
    return any(value != values[0] for value in values[1:])


def overridden_key(text: str) -> str:
    """Return the key of an override, such as "hooks.prune" for "~hooks.prune" and "hooks" for "+hooks=prune"."""
    return text.lstrip("+~").partition("=")[0].partition("@")[0].replace("/", ".")
