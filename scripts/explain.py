"""`--explain <key>`: the value, what set it, and what it replaced. Imports neither TensorFlow nor NumPy."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hookline.scripts.help import SETTINGS, settings, terminal_width
from hookline.trainer.config.command import CONFIG_DIR, Command, Composer, expand_sweep, open_composer, parse_overrides
from hookline.trainer.config.keys import Layer, Step, chain_of, find_value, is_group_choice, layers_of, override_layer
from hookline.trainer.config.overrides import visible
from hookline.trainer.config.preflight import RESUME, check_job, resumed_run
from hookline.trainer.config.schema import is_interpolation, is_part, leaves, lookup
from hookline.trainer.config.stored import FILE_NAME, read_overrides, read_stored
from hookline.trainer.errors import UserError, user_path


def explain(command: Command, config_dir: Path = CONFIG_DIR) -> str:
    """Return what determines the values of the keys passed to `--explain`."""
    with open_composer(command, config_dir) as composer:
        (texts,) = expand_sweep(parse_overrides(command.overrides, composer.loader), sweep=False)
        job = check_job(texts, composer)
        overrides = parse_overrides(texts, composer.loader)
        notes: list[str] = []
        if (run := resumed_run(overrides)) is None:
            layers = layers_of(overrides, composer)
        else:  # the run's own config, changed by the command line
            path = user_path(run, RESUME) / FILE_NAME
            setting = [each for each in overrides if not is_group_choice(each, composer)]
            layers = [Layer(str(path), read_stored(run, RESUME), path), *map(override_layer, setting)]
            notes = read_overrides(path.parent)
        return "\n\n".join(_explain_key(key, job.config, layers, notes, composer) for key in command.explain)


def _explain_key(
    key: str, config: Mapping[str, Any], layers: Sequence[Layer], notes: Sequence[str], composer: Composer
) -> str:
    """Return what determines the value of a key; `notes` are the overrides with which a resumed run started."""
    chain = chain_of(key, layers)
    if not chain and composer.is_group(key):
        raise UserError(f"'{key}' chooses among files and has no value. Expected a key of the config, such as seed.")
    if not chain:
        try:
            find_value(key, config, composer)  # suggests the nearest key
        except UserError as error:
            raise UserError(f"--explain {key}: {error}") from error
        raise UserError(f"--explain {key}: nothing sets it. Expected a key of the config; see --cfg job.")
    value, last = lookup(config, key), chain[-1]
    if isinstance(value, Mapping) and value:
        rows = []  # for each key below: its value, and what set it
        for leaf, each in leaves(value, key):
            steps = chain_of(leaf, layers)
            rows.append((leaf, visible(each), steps[-1].place if steps else "?"))
        wide, long = (max(len(row[column]) for row in rows) for column in (0, 1))
        listed = [f"  {leaf:<{wide}} = {text:<{long}}  {place}" for leaf, text, place in rows]
        return "\n".join([key, *_help_lines(key, chain), *listed])
    removed = value is None and (last.removes or is_part(key))
    lines = [f"{key} is not part of this run" if removed else f"{key} = {visible(value)}", *_help_lines(key, chain)]
    if is_interpolation(last.value):
        lines.append(f"  it refers to another value: {last.value}")
    lines += _chain_lines(chain, key)
    for note in notes:  # +hooks=ema may have set keys of any hook
        name = note.lstrip("+~").partition("=")[0]
        if f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}."):
            lines.append(f"  the run was begun with {note}")
    return "\n".join(lines)


def _help_lines(key: str, chain: Sequence[Step]) -> list[str]:
    """Return the purpose of a setting: the schema's help, or the first comment beside it."""
    section, _, name = key.rpartition(".")
    known = dict(settings(section)) if section in SETTINGS else {}
    text = known.get(name) or next((step.comment for step in chain if step.comment), "")
    return textwrap.wrap(text, terminal_width(), initial_indent="  ", subsequent_indent="  ")


def _chain_lines(chain: Sequence[Step], key: str) -> list[str]:
    """Return a line for each step; all but the last are overridden."""
    places, texts = [step.place for step in chain], [visible(step.value) for step in chain]
    for number, step in enumerate(chain):
        if step.value is None and (step.removes or is_part(key)):
            texts[number] = f"removes {step.path}"
    wide, long = max(map(len, places)), max(map(len, texts))
    lines = [f"  set by {places[-1]}"]
    if len(chain) > 1:
        lines.append("  in the order of composition:")
        for step, place, text in zip(chain, places, texts, strict=True):
            stands = "stands" if step is chain[-1] else "replaced by the next"
            comment = f"  # {step.comment}" if step.comment else ""
            lines.append(f"    {place:<{wide}}  {text:<{long}}  {stands}{comment}")
    return lines
