"""Packages of others that bring parts of a run: those with our entry point, and those that `plugins=` names.

Read from metadata and file names: no plugin is imported before a part of it is built. A plugin that cannot be used
says why in `problem`; it is in nobody's way who does not ask for it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.config.plugin_metadata import (
    CONFIGS,
    TAKEN,
    Plugin,
    configs_in,
    declared_plugins,
    describe_missing,
    package_folders,
)
from trainer.errors import UserError

KEY = "plugins"
OWN_CONFIGS = Path(__file__).resolve().parents[2] / CONFIGS
TARGET = "_target_"


def installed_plugins(config_dir: Path = OWN_CONFIGS) -> dict[str, Plugin]:
    """Return the plugins of the installed packages, by name, those with a problem among them.

    Args:
        config_dir: the project's configs, whose names no plugin may have.
    """
    found: dict[str, Plugin] = {}
    for plugin in sorted(declared_plugins(), key=lambda each: (each.name, each.distribution or "")):
        if (other := found.get(plugin.name)) is None:
            found[plugin.name] = plugin
        else:
            problem = f"{other.distribution} and {plugin.distribution} both call a plugin '{plugin.name}'"
            found[plugin.name] = dataclasses.replace(other, problem=problem)
            found[f"{plugin.name} ({plugin.distribution})"] = dataclasses.replace(plugin, problem=problem)
    return _checked(found, config_dir)


def named_plugins(packages: Iterable[str], config_dir: Path = OWN_CONFIGS) -> dict[str, Plugin]:
    """Return the plugins that `plugins=` names and that are not installed as such, by package.

    Args:
        packages: import paths.
        config_dir: the project's configs, whose names no plugin may have.

    Raises:
        UserError: its configs have a name that is taken.
    """
    installed = installed_plugins(config_dir)
    known = {plugin.package for plugin in installed.values()}
    named = {package: Plugin(package, package) for package in packages if package not in known}
    for package, plugin in named.items():
        named[package] = dataclasses.replace(plugin, configs=configs_in(package_folders(package) or []))
    for plugin in named.values():
        if problem := _clash(plugin, {**installed, **named}.values(), config_dir):
            raise UserError(f"{KEY} holds '{plugin.package}', but {problem}. Expected another name there.")
    return named


def check_found(packages: Iterable[str]) -> None:
    """Refuse packages that `plugins=` names and that are not there.

    Args:
        packages: import paths.

    Raises:
        UserError: one cannot be found.
    """
    for package in packages:
        if package_folders(package) is None:
            raise UserError(f"{KEY} holds '{package}', but {describe_missing(package)}")


def named_packages(overrides: Iterable[str]) -> list[str]:
    """Return the packages that `plugins=[...]` among overrides names; what is wrong in it is found where it is read.

    Args:
        overrides: as the user wrote them.
    """
    values = [value for key, _, value in (each.partition("=") for each in overrides) if key.lstrip("+") == KEY]
    names = [name for value in values for name in re.findall(r"[^\W\d][\w.]*", value)]
    return [name for name in dict.fromkeys(names) if name != "null" and name.partition(".")[0] not in TAKEN]


def trusted_packages() -> list[str]:
    """Return the packages of installed plugins: who has installed one trusts it, as with `plugins=`."""
    return list(dict.fromkeys(plugin.package for plugin in declared_plugins() if plugin.package))


def plugin_versions() -> dict[str, str | None]:
    """Return the versions of installed plugins by name."""
    return {plugin.name: plugin.version for plugin in sorted(declared_plugins(), key=lambda each: each.name)}


def used_plugins(config: Any) -> list[str]:
    """Return the names of the installed plugins that a config names a part of.

    Args:
        config: plain values.
    """
    paths = list(targets(config))
    used = {each.name for each in declared_plugins() if any(path.startswith(f"{each.package}.") for path in paths)}
    return sorted(used)


def targets(node: Any) -> Iterator[str]:
    """Yield every import path that a config names.

    Args:
        node: plain values.
    """
    if isinstance(node, Mapping):
        if isinstance(path := node.get(TARGET), str):
            yield path
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from targets(child)


def _checked(plugins: Mapping[str, Plugin], config_dir: Path) -> dict[str, Plugin]:
    """Return plugins with what is wrong with the names of their configs."""
    found = {}
    for name, plugin in plugins.items():
        problem = plugin.problem or _clash(plugin, plugins.values(), config_dir)
        found[name] = dataclasses.replace(plugin, problem=problem)
    return found


def shadowed(directory: Path, config_dir: Path = OWN_CONFIGS) -> str | None:
    """Return in words which file of a directory of configs has the name of one of the project's; None where none has.

    Args:
        directory: of configs.
        config_dir: the project's configs.
    """
    found = ((path, config_dir / path.relative_to(directory)) for path in sorted(directory.rglob("*.yaml")))
    return next((f"{path} has the name of {ours}" for path, ours in found if ours.is_file()), None)


def _clash(plugin: Plugin, plugins: Iterable[Plugin], config_dir: Path) -> str | None:
    """Return in words which of a plugin's configs has the name of another one; None where all are its own."""
    if plugin.configs is not None and (found := shadowed(plugin.configs, config_dir)):
        return f"its {found}"
    for name, path in plugin.files().items():
        for other in plugins:
            same = other.configs == plugin.configs  # two names for one package
            if not same and other.problem is None and name in other.files():
                return f"its {path} has the name of {other.files()[name]} of the plugin {other.label}"
    return None
