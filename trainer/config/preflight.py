"""Everything that can be checked before TensorFlow is imported: from the command line to validated configs."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from hookline.trainer.config.command import Command, expand_sweep, parse_overrides
from hookline.trainer.config.compose import CONFIG_DIR, Composer, open_composer, typed, with_values
from hookline.trainer.config.keys import check_choice, check_value, foreign_nodes, is_group_choice
from hookline.trainer.config.origins import chooses_parts, without_leftovers
from hookline.trainer.config.plugins import check_found
from hookline.trainer.config.resume import resumed_config, resumed_run
from hookline.trainer.config.schema import NAMED
from hookline.trainer.config.stored import recipe_name
from hookline.trainer.config.values import show, validate
from hookline.trainer.errors import UserError
from hookline.trainer.quiet import plain_warnings


@dataclass(frozen=True)
class Job:
    """Hold one run to make."""

    # resolved and validated, plain values; hooks and augmentations that were removed are left out
    config: dict[str, Any]
    recipe: str  # the recipe's name; several are joined by "+"
    overrides: list[str]  # as the user wrote them, one value each


def preflight(command: Command, config_dir: Path = CONFIG_DIR) -> list[Job]:
    """Return the jobs of a command, each composed and checked."""
    with open_composer(command, config_dir) as composer:
        return _jobs(expand_sweep(_parsed(command.overrides, composer), command.sweep), composer)


def preflight_each(command: Command, jobs: Sequence[Sequence[str]], config_dir: Path = CONFIG_DIR) -> list[Job]:
    """Return jobs whose overrides are known, each composed and checked."""
    texts = [text for job in jobs for text in job]
    with open_composer(command, config_dir, texts) as composer:
        return _jobs([expand_sweep(_parsed(job, composer), sweep=False)[0] for job in jobs], composer)


def check_job(texts: list[str], composer: Composer) -> Job:
    """Return the job of one command line, composed and checked."""
    _parsed(texts, composer)
    return _job(texts, composer, {})


def _jobs(jobs: Sequence[list[str]], composer: Composer) -> list[Job]:
    bases: dict[tuple[str, ...], DictConfig] = {}  # that jobs share
    return [_job(texts, composer, bases) for texts in jobs]


def _parsed(texts: Sequence[str], composer: Composer) -> list[Override]:
    """Return the overrides in texts, after checking that each is given once and sets a key of this project."""
    overrides = parse_overrides(texts, composer.loader)
    for override in overrides:
        _check_is_ours(override)
    _check_repetition(overrides)
    return overrides


def check_display(command: Command, config_dir: Path = CONFIG_DIR) -> None:
    """Check the overrides of a command that shows a config; it may be incomplete."""
    with open_composer(command, config_dir) as composer:
        overrides = parse_overrides(command.overrides, composer.loader)
        ours = [override for override in overrides if not override.is_hydra_override()]
        for texts in expand_sweep(ours, command.sweep):
            _compose(texts, composer, {})


def _check_is_ours(override: Override) -> None:
    if override.is_hydra_override() or override.key_or_group == "hydra":
        raise UserError(
            f"'{override.input_line}' sets a value of Hydra itself, which a run does not use. Expected a key of this "
            "project, such as run_dir=<path>; in place of a launcher or a sweeper, -m with --jobs or --trials, and "
            "scripts/submit.py for SLURM; see python train.py --help."
        )


def _check_repetition(overrides: Sequence[Override]) -> None:
    """Refuse a key that is set twice: Hydra takes the last without a word, or none."""
    for key, count in Counter(override.get_key_element() for override in overrides).items():
        if count > 1:
            lists = key in ("recipe", *(f"+{section}" for section in NAMED))
            several = f" For several, write {key}=[first,second]." if lists else ""
            raise UserError(f"'{key}' is given {count} times. Expected it once.{several}")


def _job(texts: list[str], composer: Composer, bases: dict[tuple[str, ...], DictConfig]) -> Job:
    overrides = parse_overrides(texts, composer.loader)
    run = resumed_run(overrides)
    if run is not None:
        composed, recipe = resumed_config(run, overrides, composer)
    else:
        composed, choices = _compose(texts, composer, bases)
        recipe = recipe_name(choices.get("recipe", ""))
    if not recipe:
        known = ", ".join(composer.options("recipe"))
        raise UserError(f"No recipe was given. Expected recipe=<name>, one of: {known}. See python train.py --help.")
    config = typed(composed)
    validate(config)
    check_found(config["plugins"])
    if run is None and chooses_parts(overrides, recipe, composer):
        config, left_out = without_leftovers(config, overrides, composer)
        with plain_warnings():
            for line in left_out:
                warnings.warn(line, stacklevel=2)
    for section in NAMED:
        config[section] = {name: part for name, part in config[section].items() if part is not None}
    return Job(config, recipe, texts)


def _compose(
    texts: list[str], composer: Composer, bases: dict[tuple[str, ...], DictConfig]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the composed config and what each group is set to, after checking each override separately.

    The config that the group choices alone give is composed first: it shows which keys exist.
    """
    overrides = parse_overrides(texts, composer.loader)
    choosing = [override for override in overrides if is_group_choice(override, composer)]
    setting = [override for override in overrides if override not in choosing]
    choices = {each.key_or_group: show(each.value()) for each in choosing if each.type.name == "CHANGE"}
    for override in choosing:
        check_choice(override, composer, choices)
    chosen = tuple(str(override.input_line) for override in choosing)
    if chosen not in bases:
        bases[chosen] = composer.compose(chosen)
    keys = with_values(bases[chosen], [])
    foreign = foreign_nodes(setting, keys)
    for override in setting:
        check_value(override, keys, foreign, composer)
    return with_values(bases[chosen], setting), choices
