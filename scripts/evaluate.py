"""Say how good a run or an export is: `python scripts/evaluate.py run=<run>` or `model=<export>`.

Accuracy, measures of each class, the confusion matrix and the calibration, on the test split of the run or on other
data. Exports are judged by the same code on the same examples as their run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import make_main, parse_options
from hookline.scripts.evaluation.choose_data import SPLITS, check_data, data_config, input_range, is_data, open_data
from hookline.trainer.errors import UserError, one_line, unknown_name, user_path
from hookline.trainer.run.finished import BEST, LAST, read_config

if TYPE_CHECKING:
    from hookline.scripts.evaluation.measures import Measures
    from hookline.trainer.input.data import Data, Split

USAGE = """python scripts/evaluate.py run=<run directory> | model=<export> [data=...] [key=value ...]

  run          directory of a finished run; evaluated with all its hooks
  model        exported file or directory in place of the run; one in <run>/export belongs to that run
  data         other data than the run's, as for train.py: data=mnist data.path=mnist.npz; data.<key>=<value> alone
               changes the run's data, such as its place
  split        train, validation or test (test)
  name         of the folder <run>/evaluation/<name>; without it after export, data and split
  output       another folder to write; needed for an export that lies in no run
  overwrite    true replaces a folder that exists
  checkpoint   of a run: best or last; without it the best, or the last where there is no best
  batch_size   examples at a time (256)
  bins         of the reliability diagram (15)
  plugins      packages of code that the run uses, such as [my_hooks], if you trust them

For a run that learns no classes, the metrics of its recipe are reported, such as recall@k.
"""


@dataclass
class Options:
    """Hold the options.

    Attributes:
        run: directory of the run, or empty.
        model: path of an export, or empty.
        split: name of the split.
        name: of the folder, or None.
        output: folder to write, or None for one in the run.
        overwrite: whether a folder that exists is replaced.
        checkpoint: "best", "last" or None.
        batch_size: examples at a time.
        bins: of the reliability diagram.
        plugins: packages that the run may use.
        data: overrides of the data.
    """

    run: str = ""
    model: str = ""
    split: str = "test"
    name: str | None = None
    output: str | None = None
    overwrite: bool = False
    checkpoint: str | None = None
    batch_size: int = 256
    bins: int = 15
    plugins: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)


@dataclass
class Evaluation:
    """Hold what was found.

    Attributes:
        data: name of the data.
        facts: of the network, as JSON values.
        metrics: of the run's own evaluation, by name; empty for an export.
        measures: of a classifier; None for another network.
        names: of the classes.
        warnings: lines for the user.
    """

    data: str
    facts: dict[str, Any]
    metrics: dict[str, float]
    measures: Measures | None
    names: Sequence[str]
    warnings: Sequence[str] = ()


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    about_data = [each for each in arguments if is_data(each)]
    others = [each for each in arguments if each not in about_data]
    options = parse_options(others, Options, texts=("run", "model", "split", "name", "output", "checkpoint"))
    options.data = about_data
    if bool(options.run) == bool(options.model):
        given = "Both run= and model= were" if options.run else "Neither run= nor model= was"
        raise UserError(f"{given} given. Expected one of them; see python scripts/evaluate.py --help.")
    if options.split not in SPLITS:
        raise unknown_name("split", options.split, SPLITS)
    if options.checkpoint not in (None, BEST, LAST):
        raise unknown_name("checkpoint", str(options.checkpoint), (BEST, LAST))
    if options.checkpoint is not None and options.model:
        raise UserError(f"checkpoint={options.checkpoint} received with model=. Expected run= for it.")
    for name in ("batch_size", "bins"):
        if type(getattr(options, name)) is not int or getattr(options, name) < 1:
            raise UserError(f"Invalid {name}: {getattr(options, name)!r}. Expected a whole number of at least 1.")
    if not isinstance(options.overwrite, bool):
        raise UserError(f"Invalid overwrite: {options.overwrite!r}. Expected true or false.")
    if options.name is not None and (not options.name or Path(options.name).name != options.name):
        raise UserError(f"Invalid name: {options.name!r}. Expected the name of a folder, without a path.")
    return options


def run_of(options: Options) -> Path | None:
    """Return the directory of the run that is evaluated, or in which the export lies; None for none."""
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
    """Return the folder to write."""
    if options.output is None and run is None:
        raise UserError(f"{options.model} lies in no run. Expected output=<folder to write>.")
    if options.output is not None:
        path = user_path(options.output, "output")
    else:
        path = Path(run or "") / "evaluation" / (options.name or _default_name(options))
    if path.exists() and (not path.is_dir() or not options.overwrite):
        remedy = "another name, or overwrite=true" if path.is_dir() else "another name"
        raise UserError(f"{path} exists already. Expected {remedy}.")
    if path.is_dir() and any(path.iterdir()) and not (path / "evaluation.json").is_file():
        raise UserError(f"{path} holds something else than an evaluation. Expected another name.")
    return path


def _default_name(options: Options) -> str:
    parts = [Path(options.model).name] if options.model else []
    parts += [each.partition("=")[2] for each in options.data if each.startswith("data=")]
    parts += ["data"] if options.data and not any(each.startswith("data=") for each in options.data) else []
    return "_".join([*parts, options.split])


def _command(options: Options) -> None:
    owner = run_of(options)
    config = None if owner is None else read_config(str(owner), options.plugins)
    data = data_config(options.data, None if config is None else config["data"], options.plugins)
    directory = choose_directory(options, owner)
    from hookline.trainer.quiet import plain_warnings, quiet_start

    with quiet_start():
        import hookline.trainer.run.assembly  # noqa: F401 - TensorFlow, whose notices stay off the screen
    from hookline.scripts.evaluation.report import print_evaluation, write_evaluation

    with plain_warnings():
        if config is not None and options.run:
            found = evaluate_run(options, config, data if options.data else None)
        else:
            found = evaluate_model(options, open_data(data, options.plugins))
    for line in found.warnings:
        print(f"Warning: {one_line(line)}", file=sys.stderr)
    title = f"{found.facts['model']} on {found.data}, {options.split} split"
    facts = {"title": title, **found.facts, "data": found.data, "split": options.split, "metrics": found.metrics}
    files = write_evaluation(directory, facts, found.measures, found.names)
    print_evaluation(facts, found.measures, directory, files)


def evaluate_run(options: Options, config: Mapping[str, Any], other: Mapping[str, Any] | None) -> Evaluation:
    """Return what a run reaches, with all its hooks."""
    from hookline.deploy.card import card_of
    from hookline.scripts.evaluation.outputs import class_objective, collect, metrics_of_run, outputs_of_run
    from hookline.trainer.run.finished import restore

    run = restore(options.run, dict(config), options.checkpoint)
    own = run.parts.data
    data = own if other is None else open_data(other, options.plugins)
    objective = class_objective(run)
    facts = {"model": f"{user_path(options.run, 'run').resolve().name} ({run.checkpoint}, step {run.step:,})"}
    names, warned = _names(data), []
    if other is not None:
        network = objective.trains[0] if objective else next(iter(run.parts.trainer.networks))
        shown = card_of(run, network).classes
        warned = check_data(data, tuple(own.input_shape), shown, input_range(own))
        names = shown if objective else ()
    split = _split(data, options.split)
    metrics = metrics_of_run(run, split, options.batch_size)
    if objective is None:
        return Evaluation(data.name, facts, metrics, None, (), warned)
    outputs, labels = collect(outputs_of_run(run, objective), split, options.batch_size)
    return Evaluation(data.name, facts, metrics, _measured(options, outputs, labels, names), names, warned)


def evaluate_model(options: Options, data: Data) -> Evaluation:
    """Return what an exported network reaches."""
    from hookline.scripts.evaluation.outputs import collect, outputs_of_model
    from hookline.scripts.prediction.model import open_model
    from hookline.trainer.ops.labels import are_probabilities, as_logits

    model = open_model(options.model, network="model", checkpoint=None, plugins=options.plugins)
    names, warned, card = _names(data), [], model.card
    if card is not None:
        if not card.classes:
            raise UserError(f"The outputs of {options.model} are no classes. Expected run=<run>: its recipe judges it.")
        warned = check_data(data, card.shape, card.classes, input_range(card))
        names = card.classes if not data.class_names else names
    outputs, labels = collect(outputs_of_model(model.predict), _split(data, options.split), options.batch_size)
    if card is not None:
        activation = card.activation
    else:
        activation = "softmax" if are_probabilities(outputs) else None
    facts, logits = {"model": Path(options.model).name}, as_logits(outputs, activation)
    return Evaluation(data.name, facts, {}, _measured(options, logits, labels, names), names, warned)


def _names(data: Data) -> Sequence[str]:
    return data.class_names or tuple(str(label) for label in range(data.classes))


def _split(data: Data, name: str) -> Split:
    split: Split = getattr(data, name)
    return split


def _measured(options: Options, outputs: Any, labels: Any, names: Sequence[str]) -> Measures:
    from hookline.scripts.evaluation.measures import measure

    if outputs.shape[1] != len(names):
        raise UserError(f"The network returns {outputs.shape[1]} outputs for {len(names)} classes. Expected as many.")
    return measure(outputs, labels, names, bins=options.bins)


main = make_main(USAGE, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
