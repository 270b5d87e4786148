"""Plugins: packages that add hooks, models and data; found without importing them."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from hookline.trainer.config.schema import TARGET, walk
from hookline.trainer.errors import UserError

KEY = "plugins"
GROUP = "hookline.plugins"
OWN_PACKAGE = "hookline"
OWN_CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TAKEN = {OWN_PACKAGE, "keras", "tensorflow", *sys.stdlib_module_names}
"""Top-level names that no plugin may have: they would allow a config to call what builds no part of a run."""


@dataclass(frozen=True)
class Plugin:
    """Describe a package that brings parts of a run."""

    name: str  # of its entry point; of the package for one that `plugins=` names
    package: str  # the import path that its `_target_`s begin with; "" if the entry point names none
    distribution: str | None = None  # what was installed; None for one that `plugins=` names
    version: str | None = None  # of the distribution
    configs: Path | None = None  # its folder of configs, with recipe/, hooks/, model/, data/ and so on
    problem: str | None = None  # why its configs are not used, in one line; None if they are

    def options(self, group: str = "") -> dict[str, Path]:
        """Return the files of a group, or of all, by the names that choose them; none if the plugin has a problem."""
        if self.configs is None or self.problem:
            return {}
        folder = self.configs / group
        paths = sorted(folder.glob("*.yaml") if group else folder.rglob("*.yaml"))
        return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def declared_plugins() -> Iterator[Plugin]:
    """Yield what the installed distributions declare, each once: the first on the path counts, as in an import."""
    for entry in entry_points(group=GROUP):
        distribution: Any = entry.dist
        yield _plugin(entry.name, entry.value.strip(), distribution.name, distribution.version)


def _plugin(name: str, package: str, distribution: str, version: str | None) -> Plugin:
    plugin = Plugin(name, package, distribution, version)
    if not all(part.isidentifier() for part in package.split(".")) or package.partition(".")[0] in TAKEN:
        problem = f"its entry point names '{package}'. Expected a package of its own, such as my_package"
        return replace(plugin, package="", problem=problem)
    folders = package_folders(package)
    if folders is None:
        return replace(plugin, problem=f"its package '{package}' cannot be found")
    return replace(plugin, configs=configs_in(folders))


def configs_in(folders: Iterable[Path]) -> Path | None:
    """Return the folder of configs of a package; None without one."""
    return next((folder / "configs" for folder in folders if (folder / "configs").is_dir()), None)


def package_folders(package: str) -> list[Path] | None:
    """Return the folders of a package without importing it; none for a single-file module; None if it is missing."""
    name, *rest = package.split(".")
    try:
        spec = importlib.util.find_spec(name)
        for part in rest:
            name = f"{name}.{part}"
            places = spec.submodule_search_locations if spec else None
            spec = PathFinder.find_spec(name, list(places)) if places else None
    except (ImportError, ValueError, OSError):
        return None
    return None if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]


def describe_missing(package: str) -> str:
    """Return a sentence that the package does not exist, and what to do about it."""
    return f"there is no module '{package}'. Expected it installed, or PYTHONPATH=<its directory> before the command."


def installed_plugins(config_dir: Path = OWN_CONFIGS) -> list[Plugin]:
    """Return the plugins of the installed packages in the order of their names, those with a problem among them."""
    found = sorted(declared_plugins(), key=lambda each: (each.name, each.distribution or ""))
    return [replace(each, problem=each.problem or _clash(each, config_dir)) for each in found]


def named_plugins(packages: Iterable[str], config_dir: Path = OWN_CONFIGS) -> list[Plugin]:
    """Return the plugins that `plugins=` names and that are not installed as such."""
    others = [each for each in packages if each not in trusted_packages()]
    named = [Plugin(each, each, configs=configs_in(package_folders(each) or [])) for each in others]
    for plugin in named:
        if problem := _clash(plugin, config_dir):
            raise UserError(f"{KEY} holds '{plugin.package}', but {problem}. Expected another name there.")
    return named


def check_found(packages: Iterable[str]) -> None:
    """Refuse packages that `plugins=` names and that cannot be found."""
    for package in packages:
        if package_folders(package) is None:
            raise UserError(f"{KEY} holds '{package}', but {describe_missing(package)}")


def named_packages(overrides: Iterable[str]) -> list[str]:
    """Return the packages that `plugins=[...]` among overrides names; mistakes in it are found where it is read."""
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
    """Return the names of the installed plugins that a config names a part of."""
    paths = targets(config)
    return sorted({p.name for p in declared_plugins() if any(path.startswith(f"{p.package}.") for path in paths)})


def targets(config: Any) -> list[str]:
    """Return every import path that a config names."""
    return [node for key, node in walk(config) if key.rpartition(".")[2] == TARGET and isinstance(node, str)]


def shadowed(directory: Path, config_dir: Path = OWN_CONFIGS) -> str | None:
    """Say which file of a config directory has the name of one of the project's; None if none has."""
    found = ((path, config_dir / path.relative_to(directory)) for path in sorted(directory.rglob("*.yaml")))
    return next((f"{path} has the name of {ours}" for path, ours in found if ours.is_file()), None)


def _clash(plugin: Plugin, config_dir: Path) -> str | None:
    """Return in words which of a plugin's configs has the name of one of the project's; None if all are its own."""
    found = shadowed(plugin.configs, config_dir) if plugin.configs is not None else None
    return f"its {found}" if found else None
