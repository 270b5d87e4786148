"""Configs of runs on disk: read them as plain data, restrict what a resumed run may change, and compare several."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from hookline.trainer.config.overrides import show
from hookline.trainer.config.parts import OWN_PACKAGE, check_tree, targets, trusted_packages
from hookline.trainer.config.schema import NAMED, leaves, walk
from hookline.trainer.errors import UserError, user_path
from hookline.trainer.files import MAX_DEPTH, check_folders, read_text

MAX_BYTES = 2**20
"""A hundred times the size of the config that a run writes."""
MAX_TEXT = 2**16
"""Characters of one value: parsing a longer number is slow."""
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C if PyYAML was built with it


def read_yaml(path: Path) -> Any:
    """Return the plain values that a YAML file holds."""
    text = read_text(path, MAX_BYTES)
    try:
        _check(text)
        return yaml.load(text, LOADER)
    except (yaml.YAMLError, ArithmeticError) as error:  # ArithmeticError: a number
        raise ValueError(str(error)) from error


def _check(text: str) -> None:
    """Refuse YAML constructs that a run never writes, event by event, before anything is built from them."""
    depth = 0
    for event in yaml.parse(text, LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            raise ValueError("it holds an anchor")
        if depth > MAX_DEPTH or (isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_TEXT):
            raise ValueError("it holds too much")


FILE_NAME = "config.yaml"
OVERRIDES = "overrides.txt"
NEEDED = {"model", "trainer", "hooks"}
PYTHON = "hookline.Trainer"
"""Target, in the config of a run trained from Python, of every part that exists only in Python."""


def read_stored(run: str, key: str) -> dict[str, Any]:
    """Return the config of a run as plain values."""
    path = user_path(run, key) / FILE_NAME
    try:
        config = read_yaml(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        why = "" if isinstance(error, FileNotFoundError) else f" ({reason:.200})"
        fault = f"has no {FILE_NAME} that can be read{why}" if path.parent.exists() else "does not exist"
        raise UserError(f"{key}={run} {fault}. Expected the directory of a run.") from error
    check_folders(path.parent, key)
    is_config = isinstance(config, dict) and isinstance(config.get("plugins") or [], list)
    if not is_config or not all(isinstance(config.get(section), dict) for section in NEEDED):
        raise UserError(f"{path} is not the config of a run. Expected the directory of a run.")
    for where, node in walk(config):
        # a run writes values, never references, which could read the environment of this process
        if "${" in where or (isinstance(node, str) and "${" in node):
            raise UserError(f"{path} holds a reference in {where}: {node!r}. Expected a value. Was the file changed?")
    return config


def check_plugins(config: Mapping[str, Any], given: Any, key: str) -> None:
    """Refuse packages that only the run's own file names: it may be untrusted, and their code would be executed."""
    if not isinstance(given, list | tuple):
        raise UserError(f"plugins={show(given)} received. Expected a list of packages, such as plugins=[my_package].")
    trusted = trusted_packages()
    stored = [name for name in config.get("plugins") or [] if name not in trusted]
    if any(name not in given for name in stored):
        names = ",".join(map(str, stored))
        raise UserError(
            f"The run uses code from plugins=[{names}], which {key}= does not load on its own. "
            f"If you trust it, add plugins=[{names}]."
        )
    packages = (OWN_PACKAGE, "keras", *sys.stdlib_module_names, *given, *trusted)
    known = {str(each).partition(".")[0] for each in packages}
    for path in targets(config):
        if (root := path.partition(".")[0]) not in known:
            raise UserError(
                f"The run uses {path}, and '{root}' is not a plugin that is installed here. Install it or, if you "
                f"trust it, add plugins=[{root}]."
            )
    check_tree(config, [str(name) for name in given])


def recipe_of(run: str, key: str) -> str:
    """Return the name of a run's recipe, such as "bnn" or "bnn+frozen_mask"."""
    path = user_path(run, key) / OVERRIDES
    try:
        lines = read_text(path).splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{key}={run} has no {OVERRIDES} that can be read. Expected a run directory.") from error
    found = [line.partition("=")[2] for line in lines if line.startswith("recipe=")]
    if len(found) != 1:
        raise UserError(f"{path} names {len(found)} recipes. Expected one line recipe=<name>. Was the file changed?")
    return recipe_name(found[0])


def without_initial(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without `init_from` and `model.weights`, for a run that takes its weights from a checkpoint."""
    model = config["model"]
    begins = isinstance(model, Mapping) and isinstance(model.get("weights"), str)
    return {**config, "init_from": None, "model": {**model, "weights": None} if begins else model}


def read_overrides(directory: Path) -> list[str]:
    """Return the overrides of a run's command line; empty if the file cannot be read."""
    try:
        return read_text(directory / OVERRIDES).splitlines()
    except (OSError, ValueError):
        return []


def recipe_name(text: str) -> str:
    """Return the name of a recipe given on the command line: "bnn+frozen_mask" for "[bnn,frozen_mask]"."""
    return "+".join(part.strip(" '\"") for part in text.strip("[] ").split(","))


FREE = (
    "debug",
    "plugins",
    "hooks.progress",
    "hooks.final_table",
    "trainer.allow_slow_precision",
    "trainer.max_seconds",
    "trainer.placement",
    "trainer.replicas",
    "trainer.strategy",
    "trainer.threads",
    "trainer.worker_timeout",
)
"""Keys that a resumed run may change. Other numbers of threads and replicas change bits of results, with a warning."""
PLACES = ("data.path", "data.*.path", "data.*_path", "data.*_dir")
"""Keys that locate the data, as does any other key of `data` that names a file of `PLACE_SUFFIXES`. They may change."""
PLACE_SUFFIXES = (".npy", ".npz")
CONFIG_DIGEST = "config_sha256"
"""Key of the digest of a run's config in the environment of a checkpoint."""


def config_digest(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the part of a config that a resumed run must keep."""
    kept = [[key, value] for key, value in leaves(config) if not is_free(key) and not is_place(key, value)]
    return hashlib.sha256(json.dumps(kept, default=str).encode()).hexdigest()


def is_free(key: str) -> bool:
    """Return whether a resumed run may change the value of a key."""
    return any(key == free or key.startswith(f"{free}.") for free in FREE)


def is_place(key: str, *values: Any) -> bool:
    """Return whether a key locates the data, judging by its name, or by its old and new values."""
    if any(fnmatchcase(key, pattern) for pattern in PLACES):
        return True
    return key.startswith("data.") and all(isinstance(v, str) and v.endswith(PLACE_SUFFIXES) for v in values)


IGNORED = ("seed", "run_dir", "resume", "debug", "trainer.max_seconds")
"""Settings in which runs of one group may differ: the seed, and those that do not change a result."""
MISSING: Any = object()
"""Placeholder for a setting that a config does not have."""
Settings = dict[str, list[Any]]


def spread_settings(configs: Sequence[Mapping[str, Any]], ignored: Collection[str] = IGNORED) -> Settings:
    """Return every setting with its value in each config, by dotted key; `MISSING` where a config lacks it.

    Each hook and augmentation is also a setting itself, such as "hooks.prune": True if the run has it. A mapping as an
    argument is one value, unless it has the same keys in all configs that have it.
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
    """Return whether a mapping holds settings, rather than being one value."""
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
