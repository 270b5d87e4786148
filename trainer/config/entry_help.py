"""`--help <name>`: all about one recipe, hook, option of a group, or section of settings."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.config.listing import (
    CONFIG_DIR,
    SETTINGS,
    TITLES,
    of_plugins,
    options_of,
    purpose,
    rows,
    settings,
    terminal_width,
)
from trainer.config.plugin_metadata import Plugin
from trainer.config.plugins import installed_plugins
from trainer.config.schema import NAMED, TrainConfig, TrainerConfig
from trainer.config.values import show, visible
from trainer.errors import UserError, did_you_mean

HEADER = re.compile(r"# (?P<name>Paper|Command|Expected): (?P<text>.+)")
CONTINUED = "#   "
NEEDED = "???"


def entry_text(asked: str, config_dir: Path = CONFIG_DIR, width: int | None = None) -> str:
    """Return the text of `python train.py --help <name>`.

    Args:
        asked: such as "hooks.prune", "recipe=bnn", "prune", "hooks.prune.power", "data", "trainer" or "seed".
        config_dir: the project's configs.
        width: columns; None for the terminal's.

    Raises:
        UserError: no such name, or several, or a file that cannot be read.
    """
    columns = width or terminal_width()
    name = asked.lstrip("+").replace("=", ".").replace("/", ".")
    if name in SETTINGS and name:
        return _section_text(name, columns)
    plugins = installed_plugins(config_dir).values()
    if name in TITLES:
        return "\n".join([TITLES[name], *rows([*options_of(config_dir / name), *of_plugins(plugins, name)], columns)])
    files = {(group, option): path for group in TITLES for option, path in _files(group, config_dir, plugins).items()}
    group, option = _find(name, asked, [*files, *((each, key) for each in SETTINGS for key, _ in settings(each))])
    if group in SETTINGS:
        return _section_text(group, columns, only=option)
    path = files[group, option]
    return _option_text(group, option, path, _content(path, asked), columns)


def _files(group: str, config_dir: Path, plugins: Iterable[Plugin]) -> dict[str, Path]:
    """Return the file of each option of a group, ours and those of plugins."""
    files = {option: config_dir / group / f"{option}.yaml" for option in _options(config_dir / group)}
    return files | {option: path for plugin in plugins for option, path in plugin.options(group).items()}


def _find(name: str, asked: str, entries: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """Return the group and the option, or the section and the setting, that a name or a key of it stands for."""
    known = {f"{group}.{option}".lstrip("."): (group, option) for group, option in entries}
    if name in known:
        return known[name]
    found = [full for full, (_, option) in known.items() if option == name]
    if len(found) == 1:
        return known[found[0]]
    if found:
        raise UserError(f"--help {asked}: several are called so. Expected one of: {', '.join(found)}.")
    if above := [full for full in known if name.startswith(f"{full}.")]:
        return known[max(above, key=len)]
    names = [*known, *TITLES, *filter(None, SETTINGS)]
    hint = did_you_mean(name, names)
    if not hint and (short := did_you_mean(name, [option for _, option in known.values()])):
        hint = short
    raise UserError(f"--help {asked}: no such name.{hint} Expected one that python train.py --help lists.")


def _options(directory: Path) -> list[str]:
    return [name.removesuffix(" *") for name, _ in options_of(directory)]


def _section_text(section: str, columns: int, only: str | None = None) -> str:
    """Return every setting of a section, or only one, with its type and default."""
    schema = TrainerConfig if section == "trainer" else TrainConfig
    fields = {field.name: field for field in dataclasses.fields(schema)}
    lines = [SETTINGS[section], ""]
    for name, text in settings(section):
        if only not in (None, name):
            continue
        field = fields[name]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        lines.append(f"  {section}.{name}={show(default)}" if section else f"  {name}={show(default)}")
        kind = str(field.type).replace(" | None", " or null")
        about = text if kind == "Any" else f"{kind}; {text}"
        lines += textwrap.wrap(about, columns, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def _option_text(group: str, option: str, path: Path, content: Mapping[str, Any], columns: int) -> str:
    found = list(_keys(path, content))
    about = {"command": _example(group, option, found), **_header(path)}
    about["file"] = path.relative_to(path.parents[2]).as_posix()
    lines = [*textwrap.wrap(f"{group}.{option}: {purpose(path)}", columns), "", *rows(list(about.items()), columns)]
    if found:
        prefix = "" if group == "recipe" else f"{group}."
        lines += ["", "  sets, beside what it takes from others" if group == "recipe" else "  keys"]
        lines += rows([(f"  {prefix}{key}={value}", text or " ") for key, value, text in found], columns)
    return "\n".join(line.rstrip() for line in lines)


def _header(path: Path) -> dict[str, str]:
    """Return what a file opens with: paper, command, expected; each may go on in indented lines."""
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if begins := HEADER.match(line):
            found[begins["name"].lower()] = begins["text"]
        elif found and line.startswith(CONTINUED):
            found[next(reversed(found))] += f" {line.removeprefix(CONTINUED).strip()}"
    return found


def _example(group: str, option: str, keys: Iterable[tuple[str, str, str]]) -> str:
    """Return a command that uses an option."""
    if group in NAMED:
        return f"python train.py recipe=baseline +{group}={option}"
    needed = [f" {group}.{key}=<{key}>" for key, value, _ in keys if value == NEEDED]
    if group == "recipe":
        return f"python train.py recipe={option}"
    return f"python train.py recipe=baseline {group}={option}{''.join(needed)}"


def _content(path: Path, asked: str) -> dict[str, Any]:
    """Return what a file holds; a plugin may bring one that cannot be read."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from trainer.config.unreadable import reason

    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(path))
        why = None if isinstance(content, dict) else "it holds no keys"
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        why = reason(error)
    if why is not None:
        raise UserError(f"--help {asked}: {path} cannot be read: {why}. Expected a YAML file of keys, in UTF-8.")
    return content


def _keys(path: Path, content: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield key, value and comment of everything that a file sets."""
    from trainer.config.yaml_places import read_places

    places = read_places(path)
    for key, value in _leaves(content, ""):
        if not key.startswith("defaults") and not key.endswith("_target_"):
            yield key, visible(value), places[key].comment if key in places else ""


def _leaves(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in (node or {}).items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
