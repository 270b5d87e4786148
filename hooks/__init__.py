"""The hooks and their catalogue, which is read from `configs/hooks` without importing TensorFlow."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from hookline.trainer.config.parts import installed_plugins
from hookline.trainer.errors import check_choice, did_you_mean

CONFIG_DIRECTORY = Path(__file__).resolve().parent.parent / "configs" / "hooks"
MONITORS = "hookline.hooks.monitors."


@dataclass(frozen=True)
class HookEntry:
    """Describe a hook that a run can have."""

    name: str  # its key under `hooks` in the config, such as "nan_guard"
    target: str  # import path of its class
    purpose: str  # the comment that the config file starts with
    config_file: Path
    node: Mapping[str, Any]  # the hook's config: the target, and each option with its default
    plugin: str | None = None  # the installed plugin that provides it; None for a built-in hook


def catalogue(directory: Path = CONFIG_DIRECTORY) -> dict[str, HookEntry]:
    """Return every hook of the config directory and of installed plugins, by name; nothing is imported.

    Args:
        directory: the directory of the YAML files; each contains one hook under its name or, like a list of defaults,
            none. A plugin's file that cannot be read is skipped.

    Raises:
        ValueError: a file with several hooks, or without a purpose in its first line.
    """
    entries = (_read_entry(path, path.stat().st_mtime_ns) for path in directory.glob("*.yaml"))
    ours = {entry.name: entry for entry in entries if entry is not None}
    theirs = {entry.name: entry for entry in _of_plugins(directory) if entry.name not in ours}
    return dict(sorted((ours | theirs).items()))


def technique_hooks(hooks: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return a config's hooks by name, without monitors and without the hooks that every run has."""
    everywhere = OmegaConf.load(CONFIG_DIRECTORY / "default.yaml").defaults
    return {
        name: node
        for name, node in hooks.items()
        if isinstance(node, Mapping)
        and name not in everywhere
        and not str(node.get("_target_", "")).startswith(MONITORS)
    }


def __getattr__(name: str) -> Any:
    """Return a hook class by its class name, such as `hookline.hooks.Prune`; this imports TensorFlow."""
    if not name.startswith("_") and name[:1].isupper():
        known = {entry.target.rpartition(".")[2]: entry.name for entry in catalogue().values()}
        if name in known:
            return load(known[name])
        raise AttributeError(f"hookline.hooks has no hook '{name}'.{did_you_mean(name, known)}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return the names of this module and of all hook classes."""
    return [*globals(), *(entry.target.rpartition(".")[2] for entry in catalogue().values())]


def load(name: str) -> type:
    """Return the class of a hook; this imports TensorFlow.

    Args:
        name: a key of the catalogue.

    Raises:
        UserError: no such hook.
    """
    entries = catalogue()
    module, _, attribute = entries[check_choice("hook", name, entries)].target.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _of_plugins(directory: Path) -> Iterator[HookEntry]:
    for plugin in installed_plugins(directory.parent):
        for path in plugin.options(directory.name).values():
            with suppress(ValueError, OSError, YAMLError, OmegaConfBaseException):
                if (entry := _read_entry(path, path.stat().st_mtime_ns)) is not None:
                    yield replace(entry, plugin=plugin.name)


@cache
def _read_entry(path: Path, modified_ns: int) -> HookEntry | None:
    """Return the hook that a config file defines, or None; cached until the file changes."""
    content = OmegaConf.to_container(OmegaConf.load(path))
    nodes = content.items() if isinstance(content, dict) else ()
    found = [(str(name), node) for name, node in nodes if isinstance(node, dict) and "_target_" in node]
    if not found:
        return None
    first_line = path.read_text(encoding="utf-8").partition("\n")[0]
    purpose = first_line.removeprefix("#").strip()
    if len(found) > 1 or not first_line.startswith("#") or not purpose:
        raise ValueError(f"{path}: expected one hook, and in the first line a comment that says what it is for.")
    ((name, node),) = found
    return HookEntry(name, str(node["_target_"]), purpose, path, node)
