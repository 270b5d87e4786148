"""The command line: flags and overrides, and the jobs of a sweep."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from hookline.trainer.errors import UserError

MAX_JOBS = 64
SWEEP_FLAGS = ("--jobs", "--storage", "--sweep", "--trials")
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


@dataclass(frozen=True)
class Command:
    """Hold a parsed command line."""

    overrides: tuple[str, ...]  # such as "recipe=bnn", "+hooks=center_loss", "~hooks.progress"
    sweep: bool = False  # whether -m was given
    directory: str | None = None  # of the sweep; None for a new one
    jobs: int | None = None  # of the sweep at a time; None for as many as fit
    trials: int | None = None  # how many jobs a search makes; None for every combination of what the overrides list
    storage: str | None = None  # URL of the database with the study of a search; None for a file in its directory
    config_dir: str | None = None  # a further directory of configs
    config_name: str | None = None  # another root config than train
    display: tuple[str, ...] = ()  # flags of Hydra that show something and train nothing, such as ("--cfg", "job")
    explain: tuple[str, ...] = ()  # keys whose values shall be explained, in place of training

    @property
    def shows_config(self) -> bool:
        """Return whether a config is shown, so that its overrides must be right."""
        return "--cfg" in self.display or "--info" in self.display

    @property
    def flags(self) -> list[str]:
        """Return the flags that say where configs lie, for a job of its own."""
        named = (("--config-dir", self.config_dir), ("--config-name", self.config_name))
        return [text for flag, value in named if value is not None for text in (flag, value)]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}. Expected key=value without dashes, or a flag; see python train.py --help.")


def parse_command(arguments: Sequence[str]) -> Command:
    """Return the command that the command line arguments describe."""
    parser = _Parser(prog="train.py", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--multirun", "-m", action="store_true")
    for flag in SWEEP_FLAGS:
        parser.add_argument(flag)
    parser.add_argument("--run", "-r", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--config-name", "-cn")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument("--package", "-p")
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=INFO)
    parser.add_argument("--explain", action="append", default=[])
    for flags in (("--version",), ("--hydra-help",), ("--shell-completion", "-sc")):
        parser.add_argument(*flags, action="store_true")
    found = parser.parse_intermixed_args(list(arguments))
    _check_sweep_flags(found)
    return Command(
        tuple(found.overrides),
        sweep=found.multirun,
        directory=found.sweep,
        jobs=_count("--jobs", found.jobs),
        trials=_count("--trials", found.trials),
        storage=found.storage,
        config_dir=found.config_dir,
        config_name=found.config_name,
        display=_display(found),
        explain=_explained(found),
    )


def _explained(found: argparse.Namespace) -> tuple[str, ...]:
    """Return the keys to explain, after checking that nothing else is asked for."""
    keys = [key.strip() for text in found.explain for key in text.split(",")]
    if keys and (found.multirun or found.run):
        raise UserError("--explain says where the values of one run come from. Expected it without -m and --run.")
    if keys and _display(found):
        raise UserError(f"--explain and {_display(found)[0]} show different things. Expected one of them.")
    for key in keys:
        if not key or "=" in key:
            name = key.lstrip("+~").partition("=")[0] or "<key>"
            raise UserError(f"--explain {key} received. Expected a key without a value: --explain {name}.")
    return tuple(keys)


def _check_sweep_flags(found: argparse.Namespace) -> None:
    given = [flag for flag in SWEEP_FLAGS if getattr(found, flag.removeprefix("--")) is not None]
    if given and not found.multirun:
        raise UserError(f"{given[0]} belongs to a sweep. Expected -m beside it.")
    if found.sweep == "":
        raise UserError("--sweep has no value. Expected --sweep <directory>.")
    if found.storage is not None and "://" not in found.storage:
        raise UserError(f"--storage {found.storage} received. Expected the URL of a database: sqlite:///study.db.")
    for override in found.overrides:
        key, _, value = override.partition("=")
        if f"--{key}" in SWEEP_FLAGS:
            raise UserError(f"'{override}' received. Expected -m --{key} {value or '<value>'}.")


def _count(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"{flag} {text} received. Expected a whole number of at least 1.")
    return int(text)


def _display(found: argparse.Namespace) -> tuple[str, ...]:
    """Return the flags that show something, as Hydra takes them."""
    named = ("version", "hydra_help", "shell_completion", "resolve")
    flags = [f"--{name.replace('_', '-')}" for name in named if getattr(found, name)]
    for name in ("cfg", "package", "info"):
        if (value := getattr(found, name)) is not None:
            flags += [f"--{name}", value]
    if found.cfg is None and (found.resolve or found.package):
        raise UserError("--resolve and --package show nothing alone. Expected --cfg job --resolve.")
    if flags and (found.multirun or found.run):
        raise UserError(f"{flags[0]} shows something and trains nothing. Expected it without -m and --run.")
    return tuple(flags)


def parse_overrides(texts: Sequence[str], loader: ConfigLoader) -> list[Override]:
    """Return the overrides that the user wrote, parsed by Hydra's grammar."""
    parser = OverridesParser.create(config_loader=loader)
    overrides = []
    for text in texts:
        try:
            override = parser.parse_overrides([text])[0]
        except HydraException as error:
            raise _unreadable(text, str(error)) from error
        if not override.key_or_group:
            raise _unreadable(text, "the key is missing")
        if "=" in text and override.get_value_string().strip() == "":
            raise UserError(f"'{text}' has no value. Expected {override.get_key_element()}=<value>.")
        overrides.append(override)
    return overrides


def _unreadable(text: str, reason: str) -> UserError:
    if "=" not in text:
        return UserError(f"'{text}' cannot be read. Expected key=value, such as recipe=<name>; see --help.")
    detail = reason.splitlines()[0].removeprefix(f"Error parsing override '{text}'").strip(": ")
    return UserError(
        f"'{text}' cannot be read{f' ({detail})' if detail and 'Exception' not in detail else ''}. "
        "Expected key=value; put a value with special characters in quotes twice: \"key='a=b'\"."
    )


def expand_sweep(overrides: Sequence[Override], sweep: bool) -> list[list[str]]:
    """Return the overrides of each job: the product of everything that lists several values."""
    choices: list[list[str]] = []
    count = 1
    for override in overrides:
        choices.append(_choices(override, sweep))
        count *= len(choices[-1])
        if count == 0:
            raise UserError(f"'{override.input_line}' matches no value. Expected at least one.")
        if count > MAX_JOBS:
            raise UserError(f"The sweep has more than {MAX_JOBS} jobs. Expected at most that many: sweep in parts.")
    return [list(job) for job in itertools.product(*choices)]


def _choices(override: Override, sweep: bool) -> list[str]:
    text, key = str(override.input_line), override.get_key_element()
    if not override.is_sweep_override():
        return [text]
    if not sweep and not override.is_discrete_sweep():
        raise UserError(f"'{text}' is an interval. Expected -m --trials <number> to search it, or {key}=<value>.")
    if not sweep:
        one = f"{key}=[{override.get_value_string()}]"
        raise UserError(f"'{text}' lists several values. Expected -m to run them one by one, or a list: {one}.")
    if not override.is_discrete_sweep():
        raise UserError(
            f"'{text}' is an interval. Expected values that can be listed, such as {key}=1,2,3, "
            "or --trials <number> to search it."
        )
    try:
        values_in_turn = itertools.islice(override.sweep_string_iterator(), MAX_JOBS + 1)
        return [f"{key}={value}" for value in values_in_turn]
    except (HydraException, ValueError) as error:  # a ValueError: a range in steps of 0
        raise UserError(f"'{text}' cannot be listed: {error}. Expected values such as {key}=1,2,3.") from error
