"""The config of a resumed run: its own, with the few changes that leave its bits as they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from hookline.trainer.config.compose import Composer
from hookline.trainer.config.keys import check_value, is_group_choice
from hookline.trainer.config.schema import is_part, leaves, lookup
from hookline.trainer.config.stored import check_plugins, read_stored, recipe_name, recipe_of
from hookline.trainer.config.values import show
from hookline.trainer.errors import UserError

KEY = "resume"
FREE = (
    "debug",
    "plugins",
    "hooks.progress",
    "hooks.final_table",
    "trainer.allow_slow_precision",
    "trainer.max_seconds",
    "trainer.placement",
    "trainer.replicas",
    "trainer.strategy",
    "trainer.threads",
    "trainer.worker_timeout",
)
"""Keys that may differ from the run's own config. Other numbers of threads and replicas change bits, with a warning."""
PLACES = ("data.path", "data.*.path", "data.*_path", "data.*_dir")
"""Keys that locate the data; so does any other of `data` that names a file of `PLACE_SUFFIXES`.

They may differ, too: the run compares the fingerprint of the data with its own.
"""
PLACE_SUFFIXES = (".npy", ".npz")


def resumed_run(overrides: Sequence[Override]) -> str | None:
    """Return the run directory that resume= names; None if a new run is asked for."""
    for override in overrides:
        if override.get_key_element() == KEY:
            value = override.value()
            if value is not None and not isinstance(value, str | int | float):
                raise UserError(f"'{override.input_line}' received. Expected resume=<run directory>.")
            return None if value is None else str(value)
    return None


def resumed_config(run: str, overrides: Sequence[Override], composer: Composer) -> tuple[dict[str, Any], str]:
    """Return the config of a resumed run with what may be changed in it, and its recipe's name."""
    stored = {**read_stored(run, KEY), KEY: run}
    recipe = recipe_of(run, KEY)
    others = [each for each in overrides if each.get_key_element() != KEY]
    choosing = [each for each in others if is_group_choice(each, composer)]
    _check_choices(choosing, recipe)
    plugins = next((each.value() for each in others if each.get_key_element() == "plugins"), [])
    check_plugins(stored, plugins, KEY)
    return _changed(stored, [each for each in others if each not in choosing], composer), recipe


def _check_choices(choosing: Sequence[Override], recipe: str) -> None:
    for override in choosing:
        if override.key_or_group == "recipe" and recipe_name(show(override.value())) == recipe:
            continue
        raise UserError(
            f"'{override.input_line}' received with resume=. Expected no other recipe, group or hook: a run "
            f"resumes as the recipe '{recipe}' that it is. For another run from its weights, use init_from=."
        )


def _changed(stored: Mapping[str, Any], overrides: Sequence[Override], composer: Composer) -> dict[str, Any]:
    """Return the stored config with the free overrides; refuse those that differ elsewhere, all at once."""
    node, differing = OmegaConf.create(dict(stored)), []
    for override in overrides:
        key = override.get_key_element()
        if override.is_delete() or override.is_add():
            raise UserError(f"'{override.input_line}' received with resume=. Expected {KEY}=<run> and key=value.")
        if not (is_part(key) and override.value() is None and lookup(stored, key) is None):  # it is not there anyway
            check_value(override, stored, set(), composer)
        found, value = OmegaConf.select(node, key), override.value()
        if _is_free(key) or _is_place(key, found, value):
            OmegaConf.update(node, key, value)
        elif _plain(found) != value:
            differing.append(f"{key} is {show(_plain(found))}, {show(value)} received")
    if differing:
        raise UserError(
            f"A resumed run keeps its config: {'; '.join(differing)}. Expected other values only of {', '.join(FREE)}, "
            "and of where the data lies, such as data.path. For another run from its weights, use init_from=."
        )
    return OmegaConf.to_container(node)  # type: ignore[return-value]


CONFIG_DIGEST = "config_sha256"
"""Under which the environment of a checkpoint holds the digest of its run's config."""


def config_digest(config: Mapping[str, Any]) -> str:
    """Return a sha256 of the part of a config that a resumed run keeps."""
    kept = [[key, value] for key, value in leaves(config) if not _is_free(key) and not _is_place(key, value)]
    return hashlib.sha256(json.dumps(kept, default=str).encode()).hexdigest()


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in FREE)


def _is_place(key: str, *values: Any) -> bool:
    """Return whether a key locates the data, judging by its name, or by its old and new values."""
    if any(fnmatchcase(key, pattern) for pattern in PLACES):
        return True
    return key.startswith("data.") and all(isinstance(v, str) and v.endswith(PLACE_SUFFIXES) for v in values)


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
