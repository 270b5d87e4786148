"""The help text: every recipe, hook and option with its one-line purpose. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from trainer.config.plugin_metadata import Plugin
from trainer.config.plugins import installed_plugins
from trainer.config.schema import NAMED, TrainConfig, TrainerConfig

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
"""Settings that the schema names: by what stands before their names."""
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
                        'optimizer.learning_rate=tag(log, interval(1e-4, 1e-2))', 'model.layers=int(interval(1, 5))'
  --cfg job --resolve   show the composed config instead of training; its keys are what key=value may set
  --info defaults       show which config files it is composed of
  --config-dir <path>   search a directory of your own configs, too
  --explain <key>       say what decides a value instead of training: the file or override, and what it replaced
  --help [<name>]       show this text, or all about one name in it, such as recipe.bnn, hooks.prune or trainer

debug=true or HYDRA_FULL_ERROR=1 shows the traceback of an error.
Exit code: 0 done, 1 failed, 2 the command line or the config is wrong, 130 and 143 ended by Ctrl-C and SIGTERM."""


def help_text(config_dir: Path = CONFIG_DIR, width: int | None = None) -> str:
    """Return the text of `python train.py --help`.

    Args:
        config_dir: the project's configs.
        width: columns; None for the terminal's.
    """
    columns = width or terminal_width()
    sections = [USAGE]
    plugins = installed_plugins(config_dir).values()
    for group, title in TITLES.items():
        options = [*options_of(config_dir / group), *of_plugins(plugins, group)]
        if options:
            sections.append("\n".join([title, *rows(options, columns)]) + "\n")
    if plugins:
        found = [(plugin.name, _about(plugin)) for plugin in plugins]
        sections.append(
            "\n".join(["Plugins (installed packages that bring parts of a run)", *rows(found, columns)]) + "\n"
        )
    for section, title in SETTINGS.items():
        sections.append("\n".join([title, *rows(list(settings(section)), columns)]) + "\n")
    return "\n".join([*sections, FLAGS])


def terminal_width() -> int:
    """Return how many columns a text may have: the terminal's, at most 120; 100 in a pipe."""
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


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


def settings(section: str) -> Iterator[tuple[str, str]]:
    """Yield name and meaning of each setting of the schema, with its limits.

    Args:
        section: "trainer", or empty for the root, of which the sections are left out.
    """
    for field in dataclasses.fields(TrainerConfig if section == "trainer" else TrainConfig):
        about = field.metadata
        if "target" in about or field.name in SECTIONS:
            continue
        limits = [f"{word} {about[key]}" for key, word in LIMITS.items() if key in about]
        choices = [" | ".join(about["choices"])] if "choices" in about else []
        yield field.name, "; ".join([about["help"], *choices, *limits])


def options_of(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield name and purpose of each option of a group; a hook that runs by default is marked.

    Args:
        directory: of the group.
    """
    bundle = directory / "default.yaml"
    default = set(re.findall(r"\w+", _defaults(bundle))) if bundle.is_file() else set()
    for path in sorted(directory.glob("*.yaml")):
        if path != bundle:
            yield f"{path.stem}{' *' if path.stem in default else ''}", purpose(path)


def of_plugins(plugins: Iterable[Plugin], group: str) -> Iterator[tuple[str, str]]:
    """Yield name and purpose of each option that plugins add to a group, marked with the plugin's name.

    Args:
        plugins: installed.
        group: such as "hooks".
    """
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


def rows(options: Sequence[tuple[str, str]], columns: int) -> list[str]:
    """Return a line, or several, for each name with its text.

    Args:
        options: names and texts.
        columns: that a line may have.
    """
    column = max(len(name) for name, _ in options) + 2
    wrapper = textwrap.TextWrapper(max(columns, 40), subsequent_indent=" " * (column + 2), break_on_hyphens=False)
    lines = []
    for name, text in options:
        wrapper.initial_indent = f"  {name:<{column}}"
        lines += wrapper.wrap(text or "-") or [wrapper.initial_indent]
    return lines
