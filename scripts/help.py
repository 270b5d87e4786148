"""The text of `--help`."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hookline.trainer.config.overrides import show, visible
from hookline.trainer.config.parts import OWN_CONFIGS as CONFIG_DIR
from hookline.trainer.config.parts import Plugin, installed_plugins
from hookline.trainer.config.schema import MISSING, NAMED, TrainConfig, TrainerConfig, leaves
from hookline.trainer.errors import UserError, did_you_mean

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
SETTINGS = {"trainer": "Training (trainer.<name>=<value>)", "": "The run (<name>=<value>)"}
"""Titles of the settings in the schema, by key prefix."""
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
"""Example command lines; a test composes each of them."""
USAGE = "Usage: python train.py recipe=<name> [group=<name> ...] [key=value ...]\n\n"
USAGE += "\n".join(f"  python train.py {example}" for example in EXAMPLES)
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


def help_text() -> str:
    """Return the text of `python train.py --help`."""
    plugins = installed_plugins()
    sections = {title: options_of(group, plugins) for group, title in TITLES.items()}
    abouts = [f"{each.distribution} {each.version or ''}".strip() for each in plugins]
    sections["Plugins (installed packages that bring parts of a run)"] = [
        (each.name, about if each.problem is None else f"Warning: not used, since {each.problem}")
        for each, about in zip(plugins, abouts, strict=True)
    ]
    sections |= {title: list(settings(section)) for section, title in SETTINGS.items()}
    texts = ["\n".join([title, *rows(found)]) for title, found in sections.items() if found]
    return "\n\n".join([USAGE, *texts, FLAGS])


def terminal_width() -> int:
    """Return the width of the terminal, at most 120 columns; 100 in a pipe."""
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


def purpose(path: Path) -> str:
    """Return the purpose of a config file: its first comment that is not a Hydra directive."""
    texts = (line.lstrip("# ").strip() for line in _comments(path))
    return next((text.rstrip(".") for text in texts if text and not text.startswith("@package")), "")


def _comments(path: Path) -> list[str]:
    """Return the leading comment lines of a file."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return list(itertools.takewhile(lambda line: line.startswith("#"), lines))


def settings(section: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each setting of the schema, and its meaning with limits."""
    for field in dataclasses.fields(TrainerConfig if section == "trainer" else TrainConfig):
        about = field.metadata
        if "target" in about or field.name in SECTIONS:
            continue
        limits = [f"{word} {about[key]}" for key, word in LIMITS.items() if key in about]
        choices = [" | ".join(about["choices"])] if "choices" in about else []
        yield field.name, "; ".join([about["help"], *choices, *limits])


def options_of(group: str, plugins: Iterable[Plugin]) -> list[tuple[str, str]]:
    """Return the name and purpose of each option of a group; defaults and options from plugins are marked."""
    bundle = CONFIG_DIR / group / "default.yaml"
    lines = bundle.read_text(encoding="utf-8").splitlines() if bundle.is_file() else []
    default = re.findall(r"\w+", "\n".join(line.partition("#")[0] for line in lines).partition("defaults:")[2])
    ours = _files(group, ()).items()
    found = [(f"{name} *" if name in default else name, purpose(path)) for name, path in ours]
    return found + [
        (name, f"{purpose(path)} [{each.name}]".strip())
        for each in plugins
        for name, path in each.options(group).items()
    ]


def rows(options: Sequence[tuple[str, str]]) -> list[str]:
    """Return one or more wrapped lines for each name and its text."""
    columns = max(terminal_width(), 40)
    column = min(max(len(name) for name, _ in options) + 2, columns - 24)  # leaves room for the text
    wrapper = textwrap.TextWrapper(columns, subsequent_indent=" " * (column + 2), break_on_hyphens=False)
    lines = []
    for name, text in options:
        wrapper.initial_indent = f"  {name:<{column}}"
        if len(name) > column - 2:  # a long name gets its own line
            lines.append(f"  {name}")
            wrapper.initial_indent = wrapper.subsequent_indent
            if not text.strip():
                continue
        lines += wrapper.wrap(text or "-") or [wrapper.initial_indent]
    return lines


HEADER = re.compile(r"# (?P<name>Paper|Command|Expected): (?P<text>.+)")
CONTINUED = "#   "


def entry_text(asked: str) -> str:
    """Return the text of `python train.py --help <name>`."""
    name = asked.lstrip("+").replace("=", ".").replace("/", ".")
    if name in SETTINGS and name:
        return _section_text(name)
    plugins = installed_plugins()
    if name in TITLES:
        return "\n".join([TITLES[name], *rows(options_of(name, plugins))])
    files = {(group, option): path for group in TITLES for option, path in _files(group, plugins).items()}
    group, option = _find(name, asked, [*files, *((each, key) for each in SETTINGS for key, _ in settings(each))])
    if group in SETTINGS:
        return _section_text(group, only=option)
    return _option_text(group, option, files[group, option])


def _files(group: str, plugins: Iterable[Plugin]) -> dict[str, Path]:
    """Return the config file of each option of a group, built-in or from a plugin."""
    files = {path.stem: path for path in sorted((CONFIG_DIR / group).glob("*.yaml")) if path.stem != "default"}
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
        raise UserError(f"--help {asked}: the name is ambiguous. Expected one of: {', '.join(found)}.")
    if above := [full for full in known if name.startswith(f"{full}.")]:
        return known[max(above, key=len)]
    names = [*known, *TITLES, *filter(None, SETTINGS)]
    hint = did_you_mean(name, names) or did_you_mean(name, [option for _, option in known.values()])
    raise UserError(f"--help {asked}: no such name.{hint} Expected one that python train.py --help lists.")


def _section_text(section: str, only: str | None = None) -> str:
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
            lines += textwrap.wrap(about, terminal_width(), initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def _option_text(group: str, option: str, path: Path) -> str:
    found = list(keys_of(path))
    command = f"{group}={option}"
    if group in NAMED:
        command = f"recipe=baseline +{command}"
    elif group != "recipe":
        needed = [f" {group}.{key}=<{key}>" for key, value, _ in found if value == MISSING]
        command = f"recipe=baseline {command}{''.join(needed)}"
    about = {"command": f"python train.py {command}", **header(path)}
    about["file"] = path.relative_to(path.parents[2]).as_posix()
    lines = [*textwrap.wrap(f"{group}.{option}: {purpose(path)}", terminal_width()), "", *rows(list(about.items()))]
    if found:
        prefix = "" if group == "recipe" else f"{group}."
        lines += ["", "  sets, in addition to what it takes from others" if group == "recipe" else "  keys"]
        lines += rows([(f"  {prefix}{key}={value}", text or " ") for key, value, text in found])
    return "\n".join(line.rstrip() for line in lines)


def header(path: Path) -> dict[str, str]:
    """Return the header of a file: paper, command, expected; each may continue on indented lines."""
    found: dict[str, str] = {}
    for line in _comments(path):
        if begins := HEADER.match(line):
            found[begins["name"].lower()] = begins["text"]
        elif found and line.startswith(CONTINUED):
            found[next(reversed(found))] += f" {line.removeprefix(CONTINUED).strip()}"
    return found


def keys_of(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield key, value and comment of everything that a file sets."""
    from omegaconf import OmegaConf

    from hookline.trainer.config.keys import read_places

    places = read_places(path)
    for key, value in leaves(OmegaConf.to_container(OmegaConf.load(path))):
        if key and not key.startswith("defaults") and not key.endswith("_target_"):
            yield key, visible(value), places[key][1] if key in places else ""
