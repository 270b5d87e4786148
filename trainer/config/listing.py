"""The help text: every recipe, hook and option with its one-line purpose. Imports nothing heavy."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from trainer.config.plugin_metadata import Plugin
from trainer.config.plugins import installed_plugins

CONFIG_DIR = Path(__file__).resolve().parents[2] / "configs"
TITLES = {
    "recipe": "Recipes (recipe=<name>, or several: recipe=[first,second])",
    "hooks": "Hooks (+hooks=<name> adds, hooks.<name>=null removes; * runs by default)",
    "data": "Data (data=<name>)",
    "augment": "Augmentations (+augment=<name> adds, augment.<name>=null removes)",
    "model": "Models (model=<name>)",
    "optimizer": "Optimizers (optimizer=<name>)",
    "schedule": "Schedules of the learning rate (schedule=<name>)",
}
USAGE = """\
Usage: python train.py recipe=<name> [group=<name> ...] [key=value ...]

  python train.py recipe=<name>
  python train.py recipe=<name> data=<name> optimizer.learning_rate=3e-3 trainer.epochs=20
  python train.py recipe=<name> +hooks=<name> hooks.<name>=null run_dir=runs/my_run
  python train.py resume=runs/my_run
  python train.py -m recipe=<first>,<second> seed=1,2,3 --jobs 2
"""
FLAGS = """\
Flags
  -m, --multirun        run every combination of values listed with commas: each in a process of its own, several at a
                        time; run again with the same --sweep, it makes only what is missing
  --jobs <number>       with -m: how many at a time; without it as many as cores, or as GPUs
  --sweep <dir>         with -m: the directory of the sweep; without it runs/sweeps/<date_time>
  --trials <number>     with -m: let Optuna choose so many jobs: of listed values, and of intervals such as
                        'optimizer.learning_rate=tag(log, interval(1e-4, 1e-2))', 'model.layers=int(interval(1, 5))'
  --cfg job --resolve   show the composed config instead of training; its keys are what key=value may set
  --info defaults       show which config files it is composed of
  --config-dir <path>   search a directory of your own configs, too
  --help                show this text

debug=true or HYDRA_FULL_ERROR=1 shows the traceback of an error.
Exit code: 0 done, 1 failed, 2 the command line or the config is wrong, 130 and 143 ended by Ctrl-C and SIGTERM."""


def help_text(config_dir: Path = CONFIG_DIR, width: int | None = None) -> str:
    """Return the text of `python train.py --help`.

    Args:
        config_dir: the project's configs.
        width: columns; None for the terminal's.
    """
    columns = width or min(shutil.get_terminal_size((100, 24)).columns, 120)
    sections = [USAGE]
    plugins = installed_plugins(config_dir).values()
    for group, title in TITLES.items():
        options = [*_options(config_dir / group), *_of_plugins(plugins, group)]
        if options:
            sections.append("\n".join([title, *_rows(options, columns)]) + "\n")
    if plugins:
        rows = [(plugin.name, _about(plugin)) for plugin in plugins]
        sections.append(
            "\n".join(["Plugins (installed packages that bring parts of a run)", *_rows(rows, columns)]) + "\n"
        )
    return "\n".join([*sections, FLAGS])


def purpose(path: Path) -> str:
    """Return what a config file says it is for: its first comment that is not an instruction to Hydra.

    Args:
        path: a YAML file.
    """
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text = line.lstrip("# ").strip()
        if text and not text.startswith("@package"):
            return text.rstrip(".")
    return ""


def _options(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield name and purpose of each option; a hook that runs by default is marked."""
    bundle = directory / "default.yaml"
    default = set(re.findall(r"\w+", _defaults(bundle))) if bundle.is_file() else set()
    for path in sorted(directory.rglob("*.yaml")):
        if path != bundle:
            name = path.relative_to(directory).with_suffix("").as_posix()
            yield f"{name}{' *' if name in default else ''}", purpose(path)


def _of_plugins(plugins: Iterable[Plugin], group: str) -> Iterator[tuple[str, str]]:
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
    """Return the defaults list of a bundle as it stands in the file."""
    lines = [line.partition("#")[0] for line in bundle.read_text(encoding="utf-8").splitlines()]
    return "\n".join(lines).partition("defaults:")[2]


def _rows(options: list[tuple[str, str]], columns: int) -> list[str]:
    column = max(len(name) for name, _ in options) + 2
    wrapper = textwrap.TextWrapper(max(columns, 40), subsequent_indent=" " * (column + 2), break_on_hyphens=False)
    rows = []
    for name, text in options:
        wrapper.initial_indent = f"  {name:<{column}}"
        rows += wrapper.wrap(text or "-")
    return rows
