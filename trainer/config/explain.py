"""`--explain <key>`: the value, what set it, and all that set it before. Imports neither TensorFlow nor NumPy."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from hookline.trainer.config.command import Command, expand_sweep, parse_overrides
from hookline.trainer.config.compose import CONFIG_DIR, Composer, open_composer
from hookline.trainer.config.help import terminal_width
from hookline.trainer.config.keys import find_value, is_group_choice
from hookline.trainer.config.origins import (
    Layer,
    Step,
    chain_of,
    is_outside,
    layers_of,
    leaves_of,
    override_layer,
    read_places,
)
from hookline.trainer.config.preflight import Job, check_job
from hookline.trainer.config.resume import KEY as RESUME
from hookline.trainer.config.resume import resumed_run
from hookline.trainer.config.schema import NAMED, TrainConfig, TrainerConfig, is_part, lookup
from hookline.trainer.config.stored import FILE_NAME, read_overrides, read_stored
from hookline.trainer.config.values import is_interpolation, visible
from hookline.trainer.errors import UserError, user_path


def explain(command: Command, config_dir: Path = CONFIG_DIR) -> str:
    """Return what decides the keys that a command asks for."""
    with open_composer(command, config_dir) as composer:
        (texts,) = expand_sweep(parse_overrides(command.overrides, composer.loader), sweep=False)
        job = check_job(texts, composer)
        overrides = parse_overrides(texts, composer.loader)
        run = resumed_run(overrides)
        if run is None:
            layers, notes = layers_of(overrides, composer), []
        else:
            layers, notes = _stored_layers(run, overrides, composer), read_overrides(user_path(run, RESUME))
        return "\n\n".join(_explain_key(key, job, layers, notes, composer) for key in command.explain)


def _stored_layers(run: str, overrides: Sequence[Override], composer: Composer) -> list[Layer]:
    """Return the layers of a resumed run: its own config, and what the command line changes in it."""
    path = user_path(run, RESUME) / FILE_NAME
    places = read_places(path)
    setting = [each for each in overrides if not is_group_choice(each, composer)]
    return [Layer(str(path), read_stored(run, RESUME), places.get), *map(override_layer, setting)]


def _explain_key(key: str, job: Job, layers: Sequence[Layer], notes: Sequence[str], composer: Composer) -> str:
    chain = chain_of(key, layers)
    if not chain:
        _refuse(key, job, composer)
    value = lookup(job.config, key)
    if value is None and (chain[-1].removes or is_part(key)):
        lines = [f"{key} is not part of this run"]
    elif isinstance(value, Mapping) and value:
        return "\n".join([f"{key}", *_help_lines(key, chain), *_leaf_lines(key, value, layers)])
    else:
        lines = [f"{key} = {visible(value)}"]
    lines += _help_lines(key, chain)
    last = chain[-1]
    if is_interpolation(last.value):
        lines.append(f"  it refers to another value: {last.value}")
    lines += _chain_lines(chain, key)
    lines += [f"  the run was begun with {note}" for note in notes if _sets(note, key, composer)]
    return "\n".join(lines)


def _refuse(key: str, job: Job, composer: Composer) -> None:
    """Say that a key does not exist, with the nearest one that does."""
    if composer.is_group(key) and not is_outside(key):
        raise UserError(f"'{key}' chooses among files and has no value. Expected a key of the config, such as seed.")
    try:
        find_value(key, job.config, composer)
    except UserError as error:
        raise UserError(f"--explain {key}: {error}") from error
    raise UserError(f"--explain {key}: nothing sets it. Expected a key of the config; see --cfg job.")


def _sets(override: str, key: str, composer: Composer) -> bool:
    """Return whether an override that a run was begun with sets a key, or the part that holds it."""
    name, _, value = override.lstrip("+~").partition("=")
    names = [name]
    if name in NAMED:  # +hooks=[prune,ema] sets nothing of other hooks
        options = re.findall(r"[\w/-]+", value)
        names = [f"{name}.{part}" for option in options for part in _parts(name, option, composer)]
    return any(key == each or key.startswith(f"{each}.") or each.startswith(f"{key}.") for each in names)


def _parts(section: str, option: str, composer: Composer) -> set[str]:
    """Return the names of the parts that an option adds, as far as its file is still there: its own and others."""
    found = composer.load(f"{section}/{option}")
    if found is None:
        return {option}
    paths = [getattr(each, "path", None) for each in found.defaults_list or ()]  # none for that of another group
    return set(map(str, found.config)).union(
        *(_parts(section, each, composer) for each in paths if each not in (None, "_self_"))
    )


def _help_lines(key: str, chain: Sequence[Step]) -> list[str]:
    """Return what the setting is for: the schema's help, or the first comment beside it."""
    schema: type = TrainerConfig if key.startswith("trainer.") else TrainConfig
    fields = {field.name: field.metadata for field in dataclasses.fields(schema)}
    limits: Mapping[str, Any] = (
        fields.get(key.removeprefix("trainer."), {}) if key.count(".") <= key.startswith("trainer.") else {}
    )
    text = limits.get("help") or next((step.comment for step in chain if step.comment), "")
    if limits.get("choices"):
        text += f" ({' | '.join(limits['choices'])})"
    return textwrap.wrap(text, terminal_width(), initial_indent="  ", subsequent_indent="  ")


def _chain_lines(chain: Sequence[Step], key: str) -> list[str]:
    """Return a line for each step; all but the last are overridden."""
    values = [_said(step, key) for step in chain]
    places, texts = [step.place for step in chain], [f"{value}" for value in values]
    wide, long = max(map(len, places)), max(map(len, texts))
    lines = [f"  set by {chain[-1].place}"]
    if len(chain) == 1:
        return lines
    lines.append("  in the order of composition:")
    for step, place, text in zip(chain, places, texts, strict=True):
        stands = "stands" if step is chain[-1] else "struck by the next"
        comment = f"  # {step.comment}" if step.comment else ""
        lines.append(f"    {place:<{wide}}  {text:<{long}}  {stands}{comment}")
    return lines


def _said(step: Step, key: str) -> str:
    if step.value is None and (step.removes or is_part(key)):
        return f"removes {step.path}"
    return visible(step.value)


def _leaf_lines(key: str, value: Mapping[str, Any], layers: Sequence[Layer]) -> list[str]:
    """Return a line for each key below: its value, and what set it."""
    rows = []
    for leaf in leaves_of(value, key):
        chain = chain_of(leaf, layers)
        place = chain[-1].place if chain else "?"
        rows.append((leaf, visible(lookup(value, leaf.removeprefix(f"{key}."))), place))
    wide, long = (max(len(row[column]) for row in rows) for column in (0, 1))
    return [f"  {leaf:<{wide}} = {text:<{long}}  {place}" for leaf, text, place in rows]
