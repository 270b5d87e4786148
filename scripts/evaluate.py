"""Evaluate a run or an export.

python scripts/evaluate.py run=<run directory> | model=<export> [data=...] [key=value ...]

Reports accuracy, metrics of each class, the confusion matrix and the calibration, on the test split of the run or on
other data. Exports are evaluated by the same code on the same examples as their run. If the run's data has changed
since, it is refused unless data options are given.

  run          directory of a finished run; evaluated with all its hooks
  model        exported file or directory instead of a run; one in <run>/export belongs to that run
  data         other data than the run's, as for train.py: data=mnist data.path=mnist.npz; data.<key>=<value> alone
               changes an option of the run's data, such as its path
  split        train, validation or test (test)
  name         name of the folder <run>/evaluation/<name>; default: composed of export, data and split
  output       another output folder; required for an export outside a run
  overwrite    true replaces an existing folder
  checkpoint   checkpoint of a run, best or last; default: best, or last if there is no best
  batch_size   examples per batch (256)
  bins         bins of the reliability diagram (15)
  plugins      packages of code that the run uses, such as [my_hooks], if you trust them

If a run is not a classifier, the metrics of its recipe are reported, such as recall@k.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import make_main, parse_options, read_value
from hookline.trainer.errors import UserError, one_line, unknown_name, user_path
from hookline.trainer.run.finished import read_config

GROUP = "data"


@dataclass
class Options:
    """The options of the command line."""

    run: str = ""
    model: str = ""
    split: Literal["train", "validation", "test"] = "test"
    name: str | None = None
    output: str | None = None
    overwrite: bool = False
    checkpoint: Literal["best", "last"] | None = None
    batch_size: int = 256
    bins: int = 15
    plugins: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list, init=False)  # overrides of the data


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    options = parse_options([each for each in arguments if not is_data(each)], Options)
    options.data = [each for each in arguments if is_data(each)]
    if bool(options.run) == bool(options.model):
        given = "Both run= and model= were" if options.run else "Neither run= nor model= was"
        raise UserError(f"{given} given. Expected one of them; see python scripts/evaluate.py --help.")
    if options.checkpoint is not None and options.model:
        raise UserError(f"checkpoint={options.checkpoint} received with model=. Expected run= for it.")
    if options.name is not None and (not options.name or Path(options.name).name != options.name):
        raise UserError(f"Invalid name: {options.name!r}. Expected the name of a folder, without a path.")
    return options


def is_data(argument: str) -> bool:
    """Return whether an argument is about the data, such as "data=mnist" or "+data.source._target_=my.Source"."""
    key = argument.partition("=")[0].lstrip("+")
    return key == GROUP or key.startswith(f"{GROUP}.")


def data_config(overrides: Sequence[str], stored: Mapping[str, Any] | None, plugins: Sequence[str]) -> dict[str, Any]:
    """Return the config of the data."""
    if stored is not None and not any(each.startswith(f"{GROUP}=") for each in overrides):
        return {**stored, **dict(_change(stored, each) for each in overrides)}
    if not overrides:
        raise UserError("No data was given. Expected data=<name> as for train.py, or run=<run> for that of a run.")
    from hookline.trainer.config.command import Command
    from hookline.trainer.config.preflight import preflight

    named = [f"plugins=[{','.join(plugins)}]"] if plugins else []
    (job,) = preflight(Command(("recipe=baseline", *overrides, *named)))
    return dict(job.config[GROUP])


def _change(stored: Mapping[str, Any], override: str) -> tuple[str, Any]:
    """Return the key of the run's data that an override changes, and its value."""
    key, separator, text = override.partition("=")
    name = key.removeprefix(f"{GROUP}.")
    if name not in stored:
        raise unknown_name("key of the run's data", name, [each for each in stored if each != "_target_"])
    if not separator:
        raise UserError(f"'{override}' received. Expected {key}=<value>.")
    return name, read_value(key, text)


def run_of(options: Options) -> Path | None:
    """Return the directory of the evaluated run, or of the run that the export belongs to; None if there is none."""
    if options.run:
        return user_path(options.run, "run")
    path = user_path(options.model, "model").absolute()
    if not path.exists():
        raise UserError(f"model={options.model} does not exist. Expected an exported file.")
    if (path / "config.yaml").is_file():
        raise UserError(f"model={options.model} is a run. Expected run={options.model}.")
    owner = path.parents[1] if len(path.parents) > 1 else path
    return owner if (owner / "config.yaml").is_file() else None


def choose_directory(options: Options, run: Path | None) -> Path:
    """Return the output folder."""
    if options.output is None and run is None:
        raise UserError(f"{options.model} does not belong to a run. Expected output=<folder>.")
    if options.output is not None:
        path = user_path(options.output, "output")
    else:
        named = [each.partition("=")[2] for each in options.data if each.startswith("data=")]
        about = named or (["data"] if options.data else [])
        name = "_".join([*([Path(options.model).name] if options.model else []), *about, options.split])
        path = Path(run or "") / "evaluation" / (options.name or name)
    if path.exists() and (not path.is_dir() or not options.overwrite):
        remedy = "another name, or overwrite=true" if path.is_dir() else "another name"
        raise UserError(f"{path} exists already. Expected {remedy}.")
    if path.is_dir() and any(path.iterdir()) and not (path / "evaluation.json").is_file():
        raise UserError(f"{path} does not contain an evaluation to overwrite. Expected another name.")
    return path


def _command(options: Options) -> None:
    owner = run_of(options)
    config = None if owner is None else read_config(str(owner), options.plugins)
    data = data_config(options.data, None if config is None else config["data"], options.plugins)
    directory = choose_directory(options, owner)
    from hookline.trainer.deferred import plain_warnings, quiet_start

    with quiet_start():
        from hookline.scripts.evaluation import evaluate_model, evaluate_run, print_evaluation, write_evaluation
    with plain_warnings():
        if config is not None and options.run:
            facts, measures, names, warnings = evaluate_run(options, config, data if options.data else None)
        else:
            facts, measures, names, warnings = evaluate_model(options, data, None if options.data else owner)
    for line in warnings:
        print(f"Warning: {one_line(line)}", file=sys.stderr)
    print_evaluation(facts, measures, directory, write_evaluation(directory, facts, measures, names))


main = make_main(__doc__, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
