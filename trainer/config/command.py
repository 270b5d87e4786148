"""The command line, and the config that Hydra composes from it. Only this module uses Hydra's internals."""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import hydra
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from hookline.trainer.config.parts import OWN_CONFIGS as CONFIG_DIR
from hookline.trainer.config.parts import installed_plugins, named_packages, named_plugins, shadowed
from hookline.trainer.config.schema import TrainConfig
from hookline.trainer.errors import UserError

MAX_JOBS = 64
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


@dataclass
class Command:
    """Hold a parsed command line."""

    overrides: tuple[str, ...] = ()  # such as "recipe=bnn", "+hooks=center_loss", "~hooks.progress"
    sweep: bool = False  # whether -m was given
    directory: str | None = None  # of the sweep; None for a new one
    jobs: int | None = None  # of the sweep that run at once; None for as many as fit
    trials: int | None = None  # number of jobs of a search; None to run every combination of the listed values
    storage: str | None = None  # URL of the database with the study of a search; None for a file in its directory
    config_dir: str | None = None  # an additional config directory
    config_name: str | None = None  # a root config other than train
    run: bool = False  # whether --run was given, which is the default behavior
    display: list[str] = field(default_factory=list)  # flags of Hydra that show something, such as ["--cfg", "job"]
    explain: list[str] = field(default_factory=list)  # keys to explain instead of training

    @property
    def flags(self) -> list[str]:
        """Return the flags that locate the configs, to be passed to each job."""
        named = (("--config-dir", self.config_dir), ("--config-name", self.config_name))
        return [text for flag, value in named if value is not None for text in (flag, value)]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}. Expected key=value without dashes, or a flag; see python train.py --help.")


class _Display(argparse.Action):
    """Keep a flag and its value for Hydra."""

    def __call__(self, parser: Any, command: Any, values: Any, option: str | None = None) -> None:
        command.display += [self.option_strings[0], *([values] if isinstance(values, str) else [])]


def parse_command(arguments: Sequence[str]) -> Command:
    """Return the command that the command line arguments describe."""
    parser = _Parser(prog="train.py", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--multirun", "-m", action="store_true", dest="sweep")
    parser.add_argument("--sweep", dest="directory")
    parser.add_argument("--jobs", type=_count)
    parser.add_argument("--trials", type=_count)
    parser.add_argument("--storage")
    parser.add_argument("--run", "-r", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--config-name", "-cn")
    parser.add_argument("--explain", action="extend", type=lambda text: [key.strip() for key in text.split(",")])
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"], action=_Display)
    parser.add_argument("--package", "-p", action=_Display)
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=INFO, action=_Display)
    for flags in (("--resolve",), ("--version",), ("--hydra-help",), ("--shell-completion", "-sc")):
        parser.add_argument(*flags, nargs=0, action=_Display)
    command = parser.parse_intermixed_args(list(arguments), Command())
    command.overrides = tuple(command.overrides)
    _check_flags(command)
    return command


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def _check_flags(command: Command) -> None:
    shown = [*command.display, *(["--explain"] if command.explain else [])]
    if shown and (command.sweep or command.run):
        raise UserError(f"{shown[0]} only shows something, without training. Expected it without -m and --run.")
    if {"--resolve", "--package"} & set(shown) and "--cfg" not in shown:
        raise UserError("--resolve and --package have no effect without --cfg. Expected --cfg job --resolve.")
    of_sweep = {"sweep": command.directory, "jobs": command.jobs, "trials": command.trials, "storage": command.storage}
    given = [name for name, value in of_sweep.items() if value is not None]
    if given and not command.sweep:
        raise UserError(f"--{given[0]} belongs to a sweep. Expected -m beside it.")
    if command.storage is not None and "://" not in command.storage:
        raise UserError(f"--storage {command.storage} received. Expected the URL of a database: sqlite:///study.db.")


def parse_overrides(texts: Sequence[str], loader: ConfigLoader) -> list[Override]:
    """Return the overrides that the user wrote, parsed by Hydra's grammar."""
    parser = OverridesParser.create(config_loader=loader)
    overrides = []
    for text in texts:
        try:
            overrides += parser.parse_overrides([text])
        except HydraException as error:
            raise UserError(
                f"'{text}' cannot be read. Expected key=value; put a value with special characters in quotes twice: "
                "\"key='a=b'\"."
            ) from error
    return overrides


def expand_sweep(overrides: Sequence[Override], sweep: bool) -> list[list[str]]:
    """Return the overrides of each job: the product of all overrides that list several values."""
    choices = []
    for override in overrides:
        choices.append(_choices(override) if override.is_sweep_override() else [str(override.input_line)])
        if override.is_sweep_override() and not sweep:
            one = f"{override.get_key_element()}=[{override.get_value_string()}]"
            raise UserError(
                f"'{override.input_line}' lists several values. Expected -m to run them one by one, or a list: {one}."
            )
    if math.prod(map(len, choices)) > MAX_JOBS:
        raise UserError(f"The sweep has more than {MAX_JOBS} jobs. Expected at most that many: sweep in parts.")
    return [list(job) for job in itertools.product(*choices)]


def _choices(override: Override) -> list[str]:
    text, key = str(override.input_line), override.get_key_element()
    if not override.is_discrete_sweep():
        raise UserError(f"'{text}' is an interval. Expected -m --trials <number> to search it, or {key}=<value>.")
    try:
        values = list(itertools.islice(override.sweep_string_iterator(), MAX_JOBS + 1))
    except (HydraException, ValueError) as error:  # a ValueError: a range in steps of 0
        raise UserError(f"'{text}' cannot be listed: {error}. Expected values such as {key}=1,2,3.") from error
    if not values:
        raise UserError(f"'{text}' matches no value. Expected at least one.")
    return [f"{key}={value}" for value in values]


CONFIG_NAME = "train"
SCHEMA_NAME = "train_schema"
HYDRA_VERSION_BASE = "1.3"
PACKAGE_MISSING, NO_PACKAGE = "Key 'recipe' not in", " A recipe file must begin with '# @package _global_'."


@dataclass(frozen=True)
class Composer:
    """Compose configs from one tree of files."""

    loader: ConfigLoader  # Hydra's, with the search path of this run
    config_name: str  # the root config
    composed: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)  # cache, by overrides

    def groups(self) -> list[str]:
        return [name for name in self.loader.list_groups("") if name != "hydra" and not name.startswith("_")]

    def is_group(self, name: str) -> bool:
        """Return whether a name such as "recipe" or "hooks/monitors" is a group."""
        parent, _, last = name.rpartition("/")
        return last in self.loader.list_groups(parent)

    def options(self, group: str) -> list[str]:
        options = self.loader.get_group_options(group, results_filter=ObjectType.CONFIG)
        return [option for option in options if (group, option) != ("hooks", "default")]  # part of every run

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """Return the composed config; references to other values are not resolved."""
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
    """Apply value overrides to a composed config as Hydra does, without rereading the files; return plain values."""
    config = copy.deepcopy(config)
    with _composing():
        for key in [each.key_or_group for each in overrides if isinstance(each.value(), dict)]:
            if OmegaConf.is_list(OmegaConf.select(config, key)):  # OmegaConf does not replace a list with a mapping
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
    """Start Hydra for a command and yield a composer."""
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
    """Return the config directories other than ours, with the provider names that Hydra shows for them."""
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
    """Return a composed config with types applied and references resolved."""
    try:  # into a fresh schema: the composed config holds keys added by `+` unchecked
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
    """Let Hydra print what its flags request: the composed config, the defaults list, or its own help."""
    ConfigStore.instance().store(name=SCHEMA_NAME, node=TrainConfig)
    directories = _directories(command, command.overrides, config_dir)
    beyond = [f"file://{each}" for each, name in directories.items() if name != "command-line"]
    places = ",".join(json.dumps(each, ensure_ascii=False) for each in beyond)  # Hydra does not decode JSON escapes
    beside = [f"hydra.searchpath=[{places}]"] if places else []
    sys.argv = [sys.argv[0], *command.overrides, *beside, *command.display, *command.flags]
    main = hydra.main(version_base=HYDRA_VERSION_BASE, config_path=str(config_dir), config_name=CONFIG_NAME)
    main(lambda config: None)()  # Hydra prints, and runs no task
