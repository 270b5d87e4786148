"""Write the finished model of a run as a plain Keras model: `python scripts/strip.py run=<run directory>`.

The file holds the weights that the run's evaluation uses: exact zeros where they were pruned, powers of two where they
were quantized, -1 and +1 where they were rounded to a sign. It has no hook and no layer that is not part of Keras, so
`keras.saving.load_model` reads it where this project is not installed, and it computes in float32, also where the run
had trainer.precision=float16 or bfloat16.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from scripts.averages import evaluate_averages, keeps_averages
from scripts.command import make_main, parse_options
from trainer.errors import UserError, unknown_name
from trainer.run.finished import BEST, LAST, read_config, restore

if TYPE_CHECKING:
    from hooks.pruning.model_rows import Row
    from trainer.network import Network
    from trainer.run.finished import FinishedRun

USAGE = """python scripts/strip.py run=<run directory> [key=value ...]

  run          directory of a finished run
  checkpoint   best or last; without it the best, or the last where there is no best
  output       the file to write, which ends with .keras; without it <run>/export/<network>.keras
  overwrite    true writes over an output that exists
  average      true takes moving averages where evaluations of the run did not: those of the hook ema
               (hooks.ema.evaluate=false), or the optimizer's (optimizer.use_ema=true)
  network      name of the network
  plugins      packages of code that the run uses, such as [my_hooks], if you trust them
"""
SUFFIX = ".keras"


@dataclass
class Options:
    """Hold the options.

    Attributes:
        run: directory of the run.
        checkpoint: "best", "last", or None for the best that there is.
        output: path of the file, or None for its place in the run directory.
        overwrite: whether an existing file is replaced.
        average: whether moving averages stand in for the weights, also where the run evaluated without them.
        network: name of the network.
        plugins: packages that the run may use; its own file is not believed.
    """

    run: str = ""
    checkpoint: str | None = None
    output: str | None = None
    overwrite: bool = False
    average: bool = False
    network: str = "model"
    plugins: list[str] = field(default_factory=list)


def _command(options: Options) -> None:
    config = read_config(options.run, options.plugins)
    path = choose_output(options)
    if options.average:
        config = evaluate_averages(config, options.network, evaluate=True)
    from trainer.quiet import quiet_start

    with quiet_start():
        import trainer.run.assembly  # noqa: F401 - TensorFlow, whose notices stay off the screen
    run = restore(options.run, config, options.checkpoint)
    network = find_network(run, options.network)
    if options.average and not keeps_averages(config, options.network):
        use_averages(network)
    print_model(run, path, *write(run, options, path))


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line.

    Args:
        arguments: such as ["run=runs/frozen_mask/a", "output=small.keras"].

    Raises:
        UserError: an unknown key, or a value that is none.
    """
    options = parse_options(arguments, Options, texts=("run", "checkpoint", "output", "network"))
    if not options.run:
        raise UserError("No run was given. Expected run=<run directory>; see python scripts/strip.py --help.")
    if options.checkpoint not in (None, BEST, LAST):
        raise unknown_name("checkpoint", str(options.checkpoint), (BEST, LAST))
    for name in ("overwrite", "average"):
        if not isinstance(getattr(options, name), bool):
            raise UserError(f"Invalid {name}: {getattr(options, name)!r}. Expected true or false.")
    return options


def choose_output(options: Options) -> Path:
    """Return the path to write to.

    Args:
        options: checked.

    Raises:
        UserError: something is there already, the name has another ending, or nobody may write there.
    """
    default = Path(options.run) / "export" / f"{options.network}{SUFFIX}"
    path = Path(options.output or default).expanduser()
    if path.suffix != SUFFIX:
        raise UserError(f"output={path} received. Expected a file that ends with {SUFFIX}, such as model{SUFFIX}.")
    if path.is_dir() or (path.exists() and not options.overwrite):
        remedy = "another output" if path.is_dir() else "another output, or overwrite=true"
        raise UserError(f"{path} exists already. Expected {remedy}.")
    parent = next(each for each in path.absolute().parents if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"{path} cannot be written: {parent} is not a directory that can be written to. Give another.")
    return path


def write(run: FinishedRun, options: Options, path: Path) -> tuple[list[Row], dict[str, float]]:
    """Write the file under another name, check that it loads and is as good as the run, then rename it.

    Args:
        run: restored.
        options: checked.
        path: to write to.

    Returns:
        What the file holds, layer by layer, and its metrics on the test split.

    Raises:
        UserError: the network cannot be a plain Keras model, or the file cannot be written.
    """
    import keras

    from hooks.pruning.model_rows import model_rows
    from trainer.run.plain_model import compare, save_plain_model

    temporary = path.with_name(f".{path.stem}.{os.getpid()}{SUFFIX}")
    is_new = not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_plain_model(run, options.network, temporary)
        model = keras.saving.load_model(temporary)
        metrics = compare(run, options.network, model)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}. Expected a place that can.") from error
    finally:
        temporary.unlink(missing_ok=True)
        if is_new:
            with suppress(OSError):  # it holds the file
                path.parent.rmdir()
    return model_rows(model), metrics


def find_network(run: FinishedRun, name: str) -> Network:
    """Return a network of a run.

    Args:
        run: restored.
        name: of the network.

    Raises:
        UserError: there is none of that name.
    """
    networks = run.parts.trainer.networks
    if name not in networks:
        raise unknown_name("network", name, networks)
    return networks[name]


def use_averages(network: Network) -> None:
    """Give each trained variable the optimizer's moving average of it.

    Args:
        network: restored, with its optimizer.

    Raises:
        UserError: the optimizer kept none.
    """
    from hooks.optimizer import moving_average

    for variable in network.trainable_variables.values():
        average = moving_average(network.optimizer, variable)
        if average is None:
            raise UserError(
                "average=true received, but neither the hook ema nor the run's optimizer kept moving averages. "
                "Expected a run with +hooks=ema or optimizer.use_ema=true, or average=false."
            )
        variable.assign(average.value)


def print_model(run: FinishedRun, path: Path, rows: Sequence[Row], metrics: Mapping[str, float]) -> None:
    """Print what was written.

    Args:
        run: restored.
        path: of the file.
        rows: what it holds.
        metrics: on the test split, by name.
    """
    from rich.table import Table

    from hooks.monitors.console import open_console
    from trainer.run.results import format_bytes, format_value, short_name

    console = open_console()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("layer", "weights", "zeros", "sparsity", "dense bytes", "sparse bytes"):
        table.add_column(column, justify="left" if column == "layer" else "right", no_wrap=True)
    for row in rows:
        counts = (f"{count:,}" for count in (row.weights, row.zeros, row.dense_bytes, row.sparse_bytes))
        weights, zeros, dense, sparse = counts
        table.add_row(row.layer, weights, zeros, f"{row.sparsity:.4f}", dense, sparse)
    console.print(table)
    values = ", ".join(f"{short_name(name)} {format_value(value)}" for name, value in metrics.items())
    console.print(
        f"test split, weights of the {run.checkpoint} checkpoint, step {run.step:,}: {values}", soft_wrap=True
    )
    console.print(f"{path} ({format_bytes(path.stat().st_size)})", soft_wrap=True)


main = make_main(USAGE, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
