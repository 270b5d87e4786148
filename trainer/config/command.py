"""The command line: flags and overrides, and the jobs of a sweep."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from hookline.trainer.errors import UserError

MAX_JOBS = 64
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


@dataclass
class Command:
    """Hold a parsed command line."""

    overrides: tuple[str, ...] = ()  # such as "recipe=bnn", "+hooks=center_loss", "~hooks.progress"
    sweep: bool = False  # whether -m was given
    directory: str | None = None  # of the sweep; None for a new one
    jobs: int | None = None  # of the sweep at a time; None for as many as fit
    trials: int | None = None  # how many jobs a search makes; None for every combination of what the overrides list
    storage: str | None = None  # URL of the database with the study of a search; None for a file in its directory
    config_dir: str | None = None  # a further directory of configs
    config_name: str | None = None  # another root config than train
    run: bool = False  # whether --run was given, which says what happens without it
    display: list[str] = field(default_factory=list)  # flags of Hydra that show something, such as ["--cfg", "job"]
    explain: list[str] = field(default_factory=list)  # keys whose values are explained, in place of training

    @property
    def flags(self) -> list[str]:
        """Return the flags that say where configs lie, for a job of its own."""
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
        raise UserError(f"{shown[0]} shows something and trains nothing. Expected it without -m and --run.")
    if {"--resolve", "--package"} & set(shown) and "--cfg" not in shown:
        raise UserError("--resolve and --package show nothing alone. Expected --cfg job --resolve.")
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
    """Return the overrides of each job: the product of everything that lists several values."""
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
