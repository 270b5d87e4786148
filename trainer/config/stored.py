"""The config that a run left in its directory, read as what it is: data from a file that anybody may have written."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.config.parts import check_tree
from trainer.config.plugin_metadata import ROOMS
from trainer.config.plugins import targets, trusted_packages
from trainer.config.stored_yaml import read_yaml
from trainer.config.values import show
from trainer.errors import UserError
from trainer.files import check_folders, read_text
from trainer.user_path import user_path

FILE_NAME = "config.yaml"
OVERRIDES = "overrides.txt"
NEEDED = {"model", "trainer", "hooks"}


def read_stored(run: str, key: str) -> dict[str, Any]:
    """Return the config of a run as plain values.

    Args:
        run: its directory.
        key: what the user gave it as, such as "resume".

    Raises:
        UserError: the directory is no run, its config cannot be read, or it refers to something outside itself.
    """
    path = user_path(run, key) / FILE_NAME
    check_folders(path.parent, key)
    try:
        config = read_yaml(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        why = "" if isinstance(error, FileNotFoundError) else f" ({reason:.200})"
        raise UserError(f"{key}={run} has no {FILE_NAME} that can be read{why}. Expected a run directory.") from error
    if not _is_config(config):
        raise UserError(f"{path} is not the config of a run. Expected the directory of a run.")
    for where, text in _texts(config, ""):
        if "${" in text:  # a run writes its values, never references: this would read the environment of this process
            raise UserError(f"{path} holds a reference in {where}: {text!r}. Expected a value. Was the file changed?")
    return config


def check_plugins(config: Mapping[str, Any], given: Any, key: str) -> None:
    """Refuse packages that only the run's own file names: it may come from anybody, and they would be executed.

    Args:
        config: of the run.
        given: names of the packages that the user has named.
        key: what the user gave the run as, such as "resume".

    Raises:
        UserError: the file names a package that the user has not, or what was given is no list.
    """
    if not isinstance(given, list | tuple):
        raise UserError(f"plugins={show(given)} received. Expected a list of packages, such as plugins=[my_package].")
    trusted = trusted_packages()
    stored = [name for name in config.get("plugins") or [] if name not in trusted]
    if any(name not in given for name in stored):
        names = ",".join(map(str, stored))
        raise UserError(
            f"The run uses code of plugins=[{names}], which {key}= does not take from its file. "
            f"Expected plugins=[{names}] beside it, if you trust it."
        )
    allowed = (*ROOMS, "keras", *(str(name).partition(".")[0] for name in given), *sys.stdlib_module_names)
    for path in targets(config):
        root = path.partition(".")[0]
        if root not in allowed and not any(f"{path}.".startswith(f"{package}.") for package in trusted):
            raise UserError(
                f"The run uses {path}, and '{root}' is no plugin that is installed here. Expected it installed, or "
                f"plugins=[{root}] beside {key}=, if you trust it."
            )
    check_tree(config, [str(name) for name in given])


def recipe_of(run: str, key: str) -> str:
    """Return the name of a run's recipe, such as "bnn" or "bnn+frozen_mask".

    Args:
        run: its directory.
        key: what the user gave it as, such as "resume".

    Raises:
        UserError: its overrides cannot be read, or name no recipe.
    """
    path = user_path(run, key) / OVERRIDES
    try:
        lines = read_text(path).splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{key}={run} has no {OVERRIDES} that can be read. Expected a run directory.") from error
    found = [line.partition("=")[2] for line in lines if line.startswith("recipe=")]
    if len(found) != 1:
        raise UserError(f"{path} names {len(found)} recipes. Expected one line recipe=<name>. Was the file changed?")
    return recipe_name(found[0])


def read_overrides(directory: Path) -> list[str]:
    """Return the overrides of a run's command line; none where the file cannot be read.

    Args:
        directory: of the run.
    """
    try:
        return read_text(directory / OVERRIDES).splitlines()
    except (OSError, ValueError):
        return []


def recipe_name(text: str) -> str:
    """Return "bnn+frozen_mask" for what the command line calls "[bnn,frozen_mask]".

    Args:
        text: the value of recipe=.
    """
    return "+".join(part.strip(" '\"") for part in text.strip("[] ").split(","))


def _is_config(content: Any) -> bool:
    if not isinstance(content, dict) or not isinstance(content.get("plugins") or [], list):
        return False
    return all(isinstance(content.get(section), dict) for section in NEEDED)


def _texts(node: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield every text in a config with its key."""
    if isinstance(node, str):
        yield where, node
    elif isinstance(node, Mapping):
        for name, child in node.items():
            yield from _texts(str(name), where)
            yield from _texts(child, f"{where}.{name}" if where else str(name))
    elif isinstance(node, list):
        for child in node:
            yield from _texts(child, where)
