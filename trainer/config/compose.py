"""Compose a config from files and overrides. What is internal to Hydra is used here alone."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from hookline.trainer.config.command import Command
from hookline.trainer.config.plugins import OWN_CONFIGS as CONFIG_DIR
from hookline.trainer.config.plugins import installed_plugins, named_packages, named_plugins, shadowed
from hookline.trainer.config.schema import TrainConfig
from hookline.trainer.errors import UserError

CONFIG_NAME = "train"
SCHEMA_NAME = "train_schema"
HYDRA_VERSION_BASE = "1.3"
PACKAGE_MISSING, NO_PACKAGE = "Key 'recipe' not in", " A recipe file must begin with '# @package _global_'."


@dataclass(frozen=True)
class Composer:
    """Compose configs from one tree of files."""

    loader: ConfigLoader  # Hydra's, with the search path of this run
    config_name: str  # the root config
    composed: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)  # before, by the overrides

    def groups(self) -> list[str]:
        return [name for name in self.loader.list_groups("") if name != "hydra" and not name.startswith("_")]

    def is_group(self, name: str) -> bool:
        """Return whether a name such as "recipe" or "hooks/monitors" is a group."""
        parent, _, last = name.rpartition("/")
        return last in self.loader.list_groups(parent)

    def options(self, group: str) -> list[str]:
        options = self.loader.get_group_options(group, results_filter=ObjectType.CONFIG)
        return [option for option in options if (group, option) != ("hooks", "default")]  # which every run has

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """Return the composed config; references to other values stay as they are written."""
        key = tuple(overrides)
        if key not in self.composed:
            with _composing():
                self.composed[key] = hydra.compose(self.config_name, overrides=list(overrides))
        return self.composed[key]

    def defaults(self, overrides: Sequence[str]) -> list[ResultDefault]:
        """Return the files that a config is composed of, in order, with the packages that they set."""
        return self.loader.compute_defaults_list(self.config_name, list(overrides), RunMode.RUN).defaults

    def load(self, path: str) -> Any:
        """Return a file on the search path as Hydra reads it; None if there is none."""
        with _composing():
            return self.loader.repository.load_config(path)  # type: ignore[attr-defined]


def with_values(config: DictConfig, overrides: Sequence[Override]) -> dict[str, Any]:
    """Return a composed config as plain values with some set as Hydra sets them, without reading the files again."""
    config = copy.deepcopy(config)
    with _composing():
        for key in [each.key_or_group for each in overrides if isinstance(each.value(), dict)]:
            if OmegaConf.is_list(OmegaConf.select(config, key)):  # OmegaConf does not put a mapping in its place
                OmegaConf.update(config, key, None, force_add=True)
        ConfigLoaderImpl._apply_overrides_to_config(list(overrides), config)
    return OmegaConf.to_container(config)  # type: ignore[return-value]


@contextmanager
def _composing() -> Iterator[None]:
    try:
        yield
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark: Any = getattr(error, "problem_mark", None)
        place = f"{mark.name}, line {mark.line + 1}" if mark is not None else "a file"
        what = getattr(error, "problem", None) or error
        raise UserError(f"The config cannot be composed: {place}: {what}. Expected YAML in UTF-8.") from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(f"The config cannot be composed: {_one_line(error)}") from error


@contextmanager
def open_composer(
    command: Command, config_dir: Path = CONFIG_DIR, overrides: Sequence[str] | None = None
) -> Iterator[Composer]:
    """Start Hydra for a command and give a composer."""
    directories = _directories(command, command.overrides if overrides is None else overrides, config_dir)
    ConfigStore.instance().store(name=SCHEMA_NAME, node=TrainConfig)
    with hydra.initialize_config_dir(str(config_dir), job_name="train", version_base=HYDRA_VERSION_BASE):
        loader = GlobalHydra.instance().config_loader()
        if directories:
            search_path = loader.get_search_path()
            for directory, provider in directories.items():
                search_path.prepend(provider, f"file://{directory}", SearchPathQuery(provider="schema"))
            loader.repository.initialize_sources(search_path)  # type: ignore[attr-defined]
        name = command.config_name or CONFIG_NAME
        roots = loader.get_group_options("", results_filter=ObjectType.CONFIG)
        if name.removesuffix(".yaml") not in roots:
            known = ", ".join(root for root in roots if root != SCHEMA_NAME and not root.startswith("_"))
            raise UserError(f"--config-name {name} does not exist. Expected one of: {known}.")
        yield Composer(loader, name)


def _directories(command: Command, overrides: Sequence[str], config_dir: Path) -> dict[str, str]:
    """Return the directories of configs beside ours, with the providers that Hydra shows for them."""
    directories = {}
    if (own := command.config_dir) is not None:
        if not os.path.isdir(own):
            raise UserError(f"--config-dir {own} does not exist. Expected a directory of configs.")
        if clash := shadowed(Path(own), config_dir):
            raise UserError(f"--config-dir {own}: {clash}, and would be ignored. Expected another name.")
        directories[os.path.abspath(own)] = "command-line"
    plugins = [*named_plugins(named_packages(overrides), config_dir), *installed_plugins(config_dir)]
    used = [plugin for plugin in plugins if plugin.options()]
    return directories | {os.path.abspath(plugin.configs or ""): plugin.package for plugin in used}


def typed(config: dict[str, Any]) -> dict[str, Any]:
    """Return a composed config with types applied and references resolved.

    It is merged into a fresh schema, since what `+` added is in the composed one without being checked.
    """
    try:
        merged = OmegaConf.merge(OmegaConf.structured(TrainConfig), config)
        return OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
    except MissingMandatoryValue as error:
        kind = "path" if str(error.full_key).endswith("path") else "value"
        raise UserError(f"{error.full_key} has no value. Expected {error.full_key}=<{kind}>.") from error
    except OmegaConfBaseException as error:
        raise UserError(f"The config is wrong: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    """Return the message of a Hydra error, with its cause, without the lists that follow."""
    texts = [str(each).strip() for each in (error, error.__cause__) if each is not None and str(each)]
    text = ": ".join(" ".join(each.splitlines()[:2]).rstrip(".") for each in texts)
    return f"{text}.{NO_PACKAGE if PACKAGE_MISSING in text else ''}"


def show(command: Command, config_dir: Path = CONFIG_DIR) -> None:
    """Let Hydra show what its flags ask for: the composed config, the defaults list, its own help."""
    ConfigStore.instance().store(name=SCHEMA_NAME, node=TrainConfig)
    directories = _directories(command, command.overrides, config_dir)
    beyond = [f"file://{each}" for each, name in directories.items() if name != "command-line"]
    places = ",".join(json.dumps(each, ensure_ascii=False) for each in beyond)  # Hydra knows no escape of JSON
    beside = [f"hydra.searchpath=[{places}]"] if places else []
    sys.argv = [sys.argv[0], *command.overrides, *beside, *command.display, *command.flags]
    main = hydra.main(version_base=HYDRA_VERSION_BASE, config_path=str(config_dir), config_name=CONFIG_NAME)
    main(lambda config: None)()  # it shows something, and runs no task
