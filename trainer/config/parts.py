"""Import paths that a config may name: parts listed in `configs/` by group, Keras classes, plugins; and our version.

A config may come from an untrusted source, and a `_target_` is a call. An import path into this project, or into an
installed plugin, must therefore be listed in a file of its `configs/`, in the group in which it is used; `plugins=`
allows a whole package. The object at the path must itself be such a part, so an alias cannot lead elsewhere.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

from hookline.trainer.config.schema import NAMED, TARGET, walk
from hookline.trainer.errors import IS_CLONE, UserError, did_you_mean

KEY = "plugins"
GROUP = "hookline.plugins"
OWN_PACKAGE = "hookline"
OWN_CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TAKEN = {OWN_PACKAGE, "keras", "tensorflow", *sys.stdlib_module_names}
"""Top-level names that no plugin may have: they would let a config call code that builds no part of a run."""


def own_version() -> str:
    """Return the version from pyproject.toml in a clone, otherwise that of the installed package."""
    if IS_CLONE:
        text = (OWN_CONFIGS.parent / "pyproject.toml").read_text(encoding="utf-8")
        return str(tomllib.loads(text)["project"]["version"])
    try:
        return version(OWN_PACKAGE)
    except PackageNotFoundError:  # a copy of the package on the path
        return "unknown"


__version__ = own_version()


@dataclass(frozen=True)
class Plugin:
    """Describe a package that provides parts of a run."""

    name: str  # of the entry point, or of the package if it is named by `plugins=`
    package: str  # prefix of its `_target_`s; "" if the entry point names no valid one
    distribution: str | None = None  # the installed one; None if it is named by `plugins=`
    version: str | None = None  # of the distribution
    configs: Path | None = None  # its folder of configs, with recipe/, hooks/, model/, data/ and so on
    problem: str | None = None  # why its configs are not used, in one line; None if they are

    def options(self, group: str = "") -> dict[str, Path]:
        """Return the files of a group, or of all groups, by option name; empty if the plugin has a problem."""
        if self.configs is None or self.problem:
            return {}
        folder = self.configs / group
        paths = sorted(folder.glob("*.yaml") if group else folder.rglob("*.yaml"))
        return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def declared_plugins() -> Iterator[Plugin]:
    """Yield the plugins of the installed distributions, each once: the first on the path counts, as in an import."""
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
    """Return the config folder of a package, or None."""
    return next((folder / "configs" for folder in folders if (folder / "configs").is_dir()), None)


def package_folders(package: str) -> list[Path] | None:
    """Return the folders of a package without importing it: empty for a single-file module, None if it is missing."""
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
    """Return the text of an error message that a package does not exist, with the fix."""
    return f"there is no module '{package}'. Install it, or put PYTHONPATH=<its directory> before the command."


def installed_plugins(config_dir: Path = OWN_CONFIGS) -> list[Plugin]:
    """Return the plugins of the installed packages, sorted by name, including those with a problem."""
    found = sorted(declared_plugins(), key=lambda each: (each.name, each.distribution or ""))
    return [replace(each, problem=each.problem or _clash(each, config_dir)) for each in found]


def named_plugins(packages: Iterable[str], config_dir: Path = OWN_CONFIGS) -> list[Plugin]:
    """Return the plugins that are named by `plugins=` but not installed as plugins."""
    others = [each for each in packages if each not in trusted_packages()]
    named = [Plugin(each, each, configs=configs_in(package_folders(each) or [])) for each in others]
    for plugin in named:
        if problem := _clash(plugin, config_dir):
            raise UserError(f"{KEY} holds '{plugin.package}', but {problem}. Expected another name there.")
    return named


def check_found(packages: Iterable[str]) -> None:
    """Refuse packages that are named by `plugins=` but cannot be found."""
    for package in packages:
        if package_folders(package) is None:
            raise UserError(f"{KEY} holds '{package}', but {describe_missing(package)}")


def named_packages(overrides: Iterable[str]) -> list[str]:
    """Return the packages named by `plugins=[...]` in the overrides; mistakes in it are reported when it is parsed."""
    values = [value for key, _, value in (each.partition("=") for each in overrides) if key.lstrip("+") == KEY]
    names = [name for value in values for name in re.findall(r"[^\W\d][\w.]*", value)]
    return [name for name in dict.fromkeys(names) if name != "null" and name.partition(".")[0] not in TAKEN]


def trusted_packages() -> list[str]:
    """Return the packages of installed plugins: installing one means trusting it, like naming it in `plugins=`."""
    return list(dict.fromkeys(plugin.package for plugin in declared_plugins() if plugin.package))


def plugin_versions() -> dict[str, str | None]:
    """Return the versions of installed plugins by name."""
    return {plugin.name: plugin.version for plugin in sorted(declared_plugins(), key=lambda each: each.name)}


def used_plugins(config: Any) -> list[str]:
    """Return the names of the installed plugins that a config uses parts of."""
    paths = targets(config)
    return sorted({p.name for p in declared_plugins() if any(path.startswith(f"{p.package}.") for path in paths)})


def targets(config: Any) -> list[str]:
    """Return every import path that a config names."""
    return [node for key, node in walk(config) if key.rpartition(".")[2] == TARGET and isinstance(node, str)]


def shadowed(directory: Path, config_dir: Path = OWN_CONFIGS) -> str | None:
    """Describe the first file of a config directory that has the same name as one of the project's, or return None."""
    found = ((path, config_dir / path.relative_to(directory)) for path in sorted(directory.rglob("*.yaml")))
    return next((f"{path} has the name of {ours}" for path, ours in found if ours.is_file()), None)


def _clash(plugin: Plugin, config_dir: Path) -> str | None:
    """Describe the first config of a plugin that has the same name as one of the project's, or return None."""
    found = shadowed(plugin.configs, config_dir) if plugin.configs is not None else None
    return f"its {found}" if found else None


KINDS = {
    "data": "data source",
    "model": "model",
    "task": "task",
    "optimizer": "optimizer",
    "schedule": "schedule",
    "augment": "augmentation",
    "hooks": "hook",
}
"""Groups of `configs/` that list parts, with the word for such a part."""
KERAS_FAMILIES = (
    *("applications", "constraints", "initializers", "layers"),
    *("losses", "metrics", "optimizers", "regularizers"),
)
KERAS_CLOSED = frozenset(
    (
        *("TFSMLayer", "Lambda", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"),  # run programs
        *("IndexLookup", "IntegerLookup", "StringLookup", "TextVectorization"),  # read the file that `vocabulary` names
    )
)
KERAS_CONFIG = "class_name"  # Keras itself imports and calls the object that a mapping with this key names
_LISTED = re.compile(r"^\s*_target_:\s*([\w.]+)", re.MULTILINE)


def check_path(path: Any, *, group: str | None = None, plugins: Sequence[str] = ()) -> None:
    """Check a single import path, without importing anything."""
    public = isinstance(path, str) and all(part.isidentifier() and part[0] != "_" for part in path.split("."))
    if not public or "." not in path:
        raise UserError(f"_target_={path} received. Expected an import path such as keras.optimizers.Adam.")
    if not (_of_plugins(path, plugins) or _of_keras(path, group) or _is_declared(path, group)):
        raise _refusal(path, group, plugins)


def check_tree(config: Mapping[str, Any], plugins: Sequence[str]) -> None:
    """Check every import path of a config for the group in which it is used, without importing anything."""
    for section, content in config.items():
        nodes = content if section in NAMED and isinstance(content, Mapping) else {section: content}
        for key, node in (each for part in nodes.values() for each in walk(part)):
            if isinstance(node, Mapping) and TARGET in node:
                check_path(node[TARGET], group=section if section in KINDS and not key else None, plugins=plugins)
            if isinstance(node, Mapping) and KERAS_CONFIG in node:
                raise UserError(
                    f"A mapping with '{KERAS_CONFIG}' received ({node[KERAS_CONFIG]}), which Keras would import from. "
                    f"Expected {TARGET}, such as {{{TARGET}: keras.initializers.HeNormal}}."
                )


def is_part(target: Any, *, group: str | None = None, plugins: Sequence[str] = ()) -> bool:
    """Return whether an object is a class or function, at the top level of its module, that a config may name."""
    if not inspect.isclass(target) and not inspect.isfunction(target):
        return False
    home, name = str(target.__module__), str(target.__qualname__)
    if getattr(sys.modules.get(home), name, None) is not target:
        return False
    if home.startswith("keras."):
        return _is_keras_part(target, group)
    if home.partition(".")[0] == OWN_PACKAGE:
        return _of_plugins(home, plugins) or _is_declared(f"{home}.{name}", group)
    return _of_plugins(home, (*plugins, *trusted_packages()))


def declared(group: str | None) -> frozenset[str]:
    """Return the import paths listed in the files of a group, ours and those of installed plugins."""
    if group is None:
        return frozenset()
    found = set(_listed(OWN_CONFIGS / group))
    for plugin in installed_plugins():
        if plugin.configs is not None and plugin.problem is None:
            found |= {path for path in _listed(plugin.configs / group) if _of_plugins(path, (plugin.package,))}
    return frozenset(found)


def _is_declared(path: str, group: str | None) -> bool:
    own = group is not None and path in _listed(OWN_CONFIGS / group)
    return own or (path.partition(".")[0] != OWN_PACKAGE and path in declared(group))  # finding plugins is slow


@lru_cache(maxsize=64)
def _listed(folder: Path) -> frozenset[str]:
    paths: set[str] = set()
    for file in sorted(folder.rglob("*.yaml")):
        paths.update(_LISTED.findall(file.read_text(encoding="utf-8", errors="replace")))
    return frozenset(paths)


def _of_plugins(path: str, plugins: Sequence[str]) -> bool:
    return any(path == plugin or path.startswith(f"{plugin}.") for plugin in plugins)


def _of_keras(path: str, group: str | None) -> bool:
    """Return whether a path is in a module of Keras from which the group may take parts."""
    wanted = {"model": ("applications",), "optimizer": ("optimizers",), "schedule": ("optimizers",)}
    root, *inner = path.removeprefix("keras.src.").removeprefix("keras.").split(".")
    families = KERAS_FAMILIES[1:] if group is None else wanted.get(group, ())
    return path.startswith("keras.") and bool(inner) and root in families


def _is_keras_part(target: Any, group: str | None) -> bool:
    """Return whether a class or function of Keras is a part of a group; its loaders, which are functions, are not."""
    import keras

    if group == "model":
        return inspect.isfunction(target) and getattr(keras.applications, target.__name__, None) is target
    families = [each for each in KERAS_FAMILIES if each != "applications"]
    known = inspect.isclass(target) and target.__module__.removeprefix("keras.src.").split(".")[0] in families
    kinds = {"optimizer": keras.optimizers.Optimizer, "schedule": keras.optimizers.schedules.LearningRateSchedule}
    return known and issubclass(target, kinds.get(group or "", object)) and target.__name__ not in KERAS_CLOSED


def _refusal(path: str, group: str | None, plugins: Sequence[str]) -> UserError:
    root, trusted = path.partition(".")[0], trusted_packages()
    kind = f"among the {KINDS[group]}s that configs/{group} lists" if group in KINDS else "a part of Keras or a plugin"
    hint = did_you_mean(path, sorted(declared(group)))
    known = ", ".join([OWN_PACKAGE, *(f"keras.{family}" for family in KERAS_FAMILIES), *plugins, *trusted])
    foreign = root not in (OWN_PACKAGE, "keras", *sys.stdlib_module_names)
    remedy = f" If you trust it, add plugins=[{','.join([*plugins, root])}]." if foreign else ""
    return UserError(f"_target_={path} is not allowed: it is not {kind}.{hint} Expected one within: {known}.{remedy}")
