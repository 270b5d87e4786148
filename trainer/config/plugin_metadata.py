"""What a package declares of itself as a plugin, read from metadata and file names: nothing of it is imported."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

GROUP = "hookline.plugins"
CONFIGS = "configs"
ROOMS = ("recipes", "hooks", "trainer")
TAKEN = {*ROOMS, "scripts", "configs", "train", "keras", "tensorflow", *sys.stdlib_module_names}
"""Top-level names that no plugin may have: they would allow a config to call what builds no part of a run."""


@dataclass(frozen=True)
class Plugin:
    """Describe a package that brings parts of a run.

    Attributes:
        name: of its entry point; of the package for one that `plugins=` names.
        package: the import path that a `_target_` of it begins with; "" where its metadata does not tell.
        distribution: what was installed; None for one that `plugins=` names.
        version: of the distribution; None where it is not known.
        configs: its folder of configs, with recipe/, hooks/, model/, data/ and so on; None without one.
        problem: why its configs are not used, in one line; None where they are.
    """

    name: str
    package: str
    distribution: str | None = None
    version: str | None = None
    configs: Path | None = None
    problem: str | None = None

    @property
    def label(self) -> str:
        """Return the name, with the distribution and its version where it was installed."""
        if self.distribution is None:
            return f"plugins=[{self.name}]"
        return f"'{self.name}' ({self.distribution} {self.version or 'without a version'})"

    def options(self, group: str) -> dict[str, Path]:
        """Return the files of a group by the names that choose them; none where the plugin has a problem.

        Args:
            group: such as "hooks".
        """
        return {} if self.problem else self.files(group)

    def files(self, group: str = "") -> dict[str, Path]:
        """Return the files of a group by name, whether or not they are used.

        Args:
            group: such as "hooks", without what lies in folders of it, which its name does not choose; "" for all,
                with the names of their groups before theirs.
        """
        if self.configs is None:
            return {}
        folder = self.configs / group
        paths = sorted(folder.glob("*.yaml") if group else folder.rglob("*.yaml"))
        return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def declared_plugins() -> Iterator[Plugin]:
    """Yield what the installed distributions declare, each once: the first on the path counts, as in an import."""
    seen = set()
    for distribution in distributions():
        try:
            text = distribution.read_text("entry_points.txt") or ""
        except (OSError, UnicodeDecodeError):
            continue
        if GROUP not in text:
            continue
        name, version = _identity(distribution)
        if (key := re.sub(r"[-_.]+", "-", name).lower()) not in seen:
            seen.add(key)
            yield from _entries(text, name, version)


def _identity(distribution: Distribution) -> tuple[str, str | None]:
    try:
        metadata: Any = distribution.metadata
        return metadata.get("Name") or "a package without a name", metadata.get("Version")
    except (OSError, ValueError, LookupError, AttributeError):
        return "a package without metadata", None


def _entries(text: str, distribution: str, version: str | None) -> Iterator[Plugin]:
    parser = ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # names keep their capitals
    try:
        parser.read_string(text)
        entries = parser.items(GROUP) if parser.has_section(GROUP) else []
    except ConfigParserError:
        problem = "its entry_points.txt cannot be read"
        yield Plugin(distribution, "", distribution, version, problem=problem)
        return
    for name, value in entries:
        package = value.strip()
        if not all(part.isidentifier() for part in package.split(".")):
            problem = f"its entry point names '{package}'. Expected an importable package, such as my_package"
            yield Plugin(name, "", distribution, version, problem=problem)
        elif package.partition(".")[0] in TAKEN:
            problem = f"its entry point names '{package}', which is not its own"
            yield Plugin(name, "", distribution, version, problem=problem)
        else:
            yield _located(Plugin(name, package, distribution, version))


def _located(plugin: Plugin) -> Plugin:
    folders = package_folders(plugin.package)
    if folders is None:
        return dataclasses.replace(plugin, problem=f"its package '{plugin.package}' cannot be found")
    return dataclasses.replace(plugin, configs=configs_in(folders))


def configs_in(folders: Iterable[Path]) -> Path | None:
    """Return the folder of configs of a package; None without one.

    Args:
        folders: of the package.
    """
    return next((folder / CONFIGS for folder in folders if (folder / CONFIGS).is_dir()), None)


def describe_missing(package: str) -> str:
    """Return in words that there is no such package, and what to do.

    Args:
        package: import path.
    """
    top = package.partition(".")[0]
    here = Path.cwd() / top
    if top != package and package_folders(top) is not None:
        mend = f"Expected a module within '{top}', which was found."
    elif here.is_dir() or here.with_suffix(".py").is_file():
        mend = "Python does not look into this directory: begin the command with PYTHONPATH=."
    else:
        mend = "Expected it installed, or PYTHONPATH=<directory that holds it> before the command."
    return f"there is no module '{package}'. {mend}"


def package_folders(package: str) -> list[Path] | None:
    """Return the folders of a package without importing it; none for a module in a file; None where there is none.

    Args:
        package: import path.
    """
    top, *rest = package.split(".")
    try:
        spec = importlib.util.find_spec(top)
        for number, _ in enumerate(rest, start=2):
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = PathFinder.find_spec(".".join(package.split(".")[:number]), list(spec.submodule_search_locations))
        if spec is None:
            return None
        return [Path(place) for place in spec.submodule_search_locations or ()]
    except (ImportError, ValueError, AttributeError, KeyError, OSError):  # a finder or a path that is broken
        return None
