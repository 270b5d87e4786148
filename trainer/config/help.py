"""What `--help` and `--info` show."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hookline.trainer.config.plugins import Plugin, installed_plugins
from hookline.trainer.config.schema import NAMED, TrainConfig, TrainerConfig, leaves
from hookline.trainer.config.values import show, visible
from hookline.trainer.errors import UserError, did_you_mean

CONFIG_DIR = Path(__file__).resolve().parents[2] / "configs"
TITLES = {
    "recipe": "Recipes (recipe=<name>, or several: recipe=[first,second])",
    "hooks": "Hooks (+hooks=<name> adds, hooks.<name>=null removes; * runs by default)",
    "data": "Data (data=<name>)",
    "model": "Models (model=<name>)",
    "augment": "Augmentations (+augment=<name> adds, augment.<name>=null removes)",
    "optimizer": "Optimizers (optimizer=<name>)",
    "schedule": "Schedules of the learning rate (schedule=<name>)",
    "task": "Tasks (task=<name>; a recipe chooses its own)",
}
SETTINGS = {
    "trainer": "Training (trainer.<name>=<value>)",
    "": "The run (<name>=<value>)",
}
"""Settings that the schema names, by the prefix of their names."""
SECTIONS = ("trainer", *NAMED)
LIMITS = {"minimum": "at least", "maximum": "at most"}
EXAMPLES = (
    "recipe=bnn",
    "recipe=bnn data=mnist optimizer.learning_rate=3e-3 trainer.epochs=20",
    "recipe=baseline +hooks=bnn_rounding hooks.early_stopping=null run_dir=runs/my_run",
    "'recipe=[bnn,frozen_mask]' hooks.prune.final_sparsity=0.8",
    "resume=runs/my_run",
    "-m recipe=bnn,baseline seed=1,2,3 --jobs 2",
    "recipe=bnn --explain optimizer.learning_rate",
    "--help hooks.prune",
)
"""Command lines; a test composes each."""
USAGE = "\n".join(
    [
        "Usage: python train.py recipe=<name> [group=<name> ...] [key=value ...]",
        "",
        *(f"  python train.py {example}" for example in EXAMPLES),
        "",
    ]
)
FLAGS = """\
Flags
  -m, --multirun        run every combination of values listed with commas: each in a process of its own, several at a
                        time; run again with the same --sweep, it makes only what is missing
  --jobs <number>       with -m: how many at a time; without it as many as cores, or as GPUs
  --sweep <dir>         with -m: the directory of the sweep; without it runs/sweeps/<date_time>
  --trials <number>     with -m: let Optuna choose so many jobs: of listed values, and of intervals such as
                        'optimizer.learning_rate=tag(log, interval(1e-4, 1e-2))', 'model.layers=int(interval(1, 5))';
                        several processes with the same --sweep search together; +hooks=trial_pruner ends poor trials
  --storage <url>       with --trials: keep Optuna's study in a database, not in study.journal of the sweep's directory
  --cfg job --resolve   show the composed config instead of training; its keys are what key=value may set
  --info defaults       show which config files it is composed of
  --config-dir <path>   search a directory of your own configs, too
  --explain <key>       say what decides a value instead of training: the file or override, and what it replaced
  --help [<name>]       show this text, or all about one name in it, such as recipe.bnn, hooks.prune or trainer

debug=true or HYDRA_FULL_ERROR=1 shows the traceback of an error.
Exit code: 0 done, 1 failed, 2 the command line or the config is wrong, 130 and 143 ended by Ctrl-C and SIGTERM."""


def help_text(config_dir: Path = CONFIG_DIR, width: int | None = None) -> str:
    """Return the text of `python train.py --help`."""
    columns = width or terminal_width()
    sections = [USAGE]
    plugins = installed_plugins(config_dir).values()
    for group, title in TITLES.items():
        if options := [*options_of(config_dir / group), *of_plugins(plugins, group)]:
            sections.append("\n".join([title, *rows(options, columns)]) + "\n")
    if found := [(plugin.name, _about(plugin)) for plugin in plugins]:
        title = "Plugins (installed packages that bring parts of a run)"
        sections.append("\n".join([title, *rows(found, columns)]) + "\n")
    for section, title in SETTINGS.items():
        sections.append("\n".join([title, *rows(list(settings(section)), columns)]) + "\n")
    return "\n".join([*sections, FLAGS])


def terminal_width() -> int:
    """Return how many columns a text may have: the terminal's, at most 120; 100 in a pipe."""
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


def purpose(path: Path) -> str:
    """Return what a config file says it is for: its first comment that is not an instruction to Hydra."""
    texts = (line.lstrip("# ").strip() for line in _comments(path))
    return next((text.rstrip(".") for text in texts if text and not text.startswith("@package")), "")


def _comments(path: Path) -> list[str]:
    """Return the lines of comments that a file begins with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(itertools.takewhile(lambda line: line.startswith("#"), lines))


def settings(section: str) -> Iterator[tuple[str, str]]:
    """Yield name and meaning of each setting of the schema, with its limits."""
    for field in dataclasses.fields(TrainerConfig if section == "trainer" else TrainConfig):
        about = field.metadata
        if "target" in about or field.name in SECTIONS:
            continue
        limits = [f"{word} {about[key]}" for key, word in LIMITS.items() if key in about]
        choices = [" | ".join(about["choices"])] if "choices" in about else []
        yield field.name, "; ".join([about["help"], *choices, *limits])


def options_of(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield name and purpose of each option of a group; a hook that runs by default is marked."""
    bundle = directory / "default.yaml"
    default = set(re.findall(r"\w+", _defaults(bundle))) if bundle.is_file() else set()
    for path in sorted({*directory.glob("*.yaml")} - {bundle}):
        yield f"{path.stem}{' *' if path.stem in default else ''}", purpose(path)


def of_plugins(plugins: Iterable[Plugin], group: str) -> Iterator[tuple[str, str]]:
    """Yield name and purpose of each option that plugins add to a group, marked with the plugin's name."""
    for plugin in plugins:
        for name, path in plugin.options(group).items():
            try:
                text = purpose(path)
            except (OSError, UnicodeDecodeError):
                text = "cannot be read"
            yield name, f"{text} [{plugin.name}]".strip()


def _about(plugin: Plugin) -> str:
    if plugin.problem is not None:
        return f"Warning: not used, since {plugin.problem}"
    return f"{plugin.distribution} {plugin.version or ''}".strip()


def _defaults(bundle: Path) -> str:
    """Return the defaults list of a bundle as written in its file."""
    lines = [line.partition("#")[0] for line in bundle.read_text(encoding="utf-8").splitlines()]
    return "\n".join(lines).partition("defaults:")[2]


def rows(options: Sequence[tuple[str, str]], columns: int) -> list[str]:
    """Return a line, or several, for each name with its text."""
    columns = max(columns, 40)
    column = min(max(len(name) for name, _ in options) + 2, columns - 24)  # a text needs some room
    wrapper = textwrap.TextWrapper(columns, subsequent_indent=" " * (column + 2), break_on_hyphens=False)
    lines = []
    for name, text in options:
        wrapper.initial_indent = f"  {name:<{column}}"
        if len(name) > column - 2:  # a long one has a line of its own
            lines.append(f"  {name}")
            wrapper.initial_indent = wrapper.subsequent_indent
            if not text.strip():
                continue
        lines += wrapper.wrap(text or "-") or [wrapper.initial_indent]
    return lines


HEADER = re.compile(r"# (?P<name>Paper|Command|Expected): (?P<text>.+)")
CONTINUED = "#   "
NEEDED = "???"


def entry_text(asked: str, config_dir: Path = CONFIG_DIR, width: int | None = None) -> str:
    """Return the text of `python train.py --help <name>`."""
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
    files = {path.stem: path for path in sorted((config_dir / group).glob("*.yaml")) if path.stem != "default"}
    return files | {option: path for plugin in plugins for option, path in plugin.options(group).items()}


def _find(name: str, asked: str, entries: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """Return the group and the option, or the section and the setting, that a name or a key refers to."""
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
    hint = did_you_mean(name, names) or did_you_mean(name, [option for _, option in known.values()])
    raise UserError(f"--help {asked}: no such name.{hint} Expected one that python train.py --help lists.")


def _section_text(section: str, columns: int, only: str | None = None) -> str:
    """Return every setting of a section, or only one, with its type and default."""
    schema = TrainerConfig if section == "trainer" else TrainConfig
    fields = {field.name: field for field in dataclasses.fields(schema)}
    lines = [SETTINGS[section], ""]
    for name, text in settings(section):
        if only in (None, name):
            field, key = fields[name], f"{section}.{name}".lstrip(".")
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            kind = str(field.type).replace(" | None", " or null")
            about = text if kind == "Any" else f"{kind}; {text}"
            lines.append(f"  {key}={show(default)}")
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
    """Return the header of a file: paper, command, expected; each may continue on indented lines."""
    found: dict[str, str] = {}
    for line in _comments(path):
        if begins := HEADER.match(line):
            found[begins["name"].lower()] = begins["text"]
        elif found and line.startswith(CONTINUED):
            found[next(reversed(found))] += f" {line.removeprefix(CONTINUED).strip()}"
    return found


def _example(group: str, option: str, keys: Iterable[tuple[str, str, str]]) -> str:
    """Return a command that uses an option."""
    if group in NAMED:
        return f"python train.py recipe=baseline +{group}={option}"
    if group == "recipe":
        return f"python train.py recipe={option}"
    needed = [f" {group}.{key}=<{key}>" for key, value, _ in keys if value == NEEDED]
    return f"python train.py recipe=baseline {group}={option}{''.join(needed)}"


def _content(path: Path, asked: str) -> dict[str, Any]:
    """Return what a file holds; a plugin may bring one that cannot be read."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from hookline.trainer.config.compose import reason

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
    from hookline.trainer.config.origins import read_places

    places = read_places(path)
    for key, value in leaves(content):
        if key and not key.startswith("defaults") and not key.endswith("_target_"):
            yield key, visible(value), places[key].comment if key in places else ""
