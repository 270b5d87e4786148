"""Write the finished model of a run for other programs.

python scripts/export.py run=<run directory> [key=value ...]

The export holds the weights that the run's evaluation uses: exact zeros if they were pruned, powers of two if they were
quantized, -1 and +1 if they were rounded to a sign. It has no hooks and computes in float32, even if the run had
trainer.precision=float16 or bfloat16.

  run          directory of a finished run
  format       keras (a .keras file, the default), saved_model (a directory for TensorFlow), litert (a .tflite file),
               onnx (an .onnx file), packed (binary weights at one bit, read by NumPy alone), or sparse (pruned weights,
               compressed)
  checkpoint   best or last; default: best, or last if there is no best
  output       output path with the suffix of the format; default: <run>/export/<network> with that suffix
  overwrite    true overwrites an existing output
  average      true exports moving averages that evaluations of the run did not use: those of the hook ema
               (hooks.ema.evaluate=false) or of the optimizer (optimizer.use_ema=true)
  network      name of the network
  plugins      packages of code that the run uses, such as [my_hooks], if you trust them
  tolerance    how far a metric on the test split may be from the run's before the export is refused; default: 0.001, or
               0.02 if the format rounds the weights
  int8         for litert: true quantizes weights and activations to 8 bits, with ranges from training examples; inputs
               and outputs stay float32. A run with quantization_aware_training does not need it: its file is
               integer-only, as is that of format=onnx between QuantizeLinear and DequantizeLinear
  float16      for packed: true rounds kernels and biases of more than 8 bits to 16 bits
  codebook     for sparse: bits per index into the shared values of a dense kernel, 1 to 8, such as 5; without it, all
               values stay unchanged
  codebook_conv  for sparse: the same for convolutions; default: 8 if codebook is given
  huffman      for sparse: false stores indices and gaps without Huffman codes
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.deploy import formats
from hookline.deploy.formats import Contents, ExportOptions, Format
from hookline.scripts.command import make_main, parse_options
from hookline.trainer.config.stored import read_stored, recipe_of
from hookline.trainer.deferred import plain_warnings, quiet_start
from hookline.trainer.errors import UserError, check_choice, one_line, user_path
from hookline.trainer.run.finished import own_classes, read_config, restore

if TYPE_CHECKING:
    from hookline.deploy.compare import Difference
    from hookline.trainer.network import Network
    from hookline.trainer.run.run import Run


@dataclass(kw_only=True)
class Options(ExportOptions):
    """The options of the command line, with those of single formats."""

    run: str
    format: str = "keras"
    checkpoint: Literal["best", "last"] | None = None
    output: str | None = None
    overwrite: bool = False
    average: bool = False
    network: str = "model"
    plugins: list[str] = field(default_factory=list)


def _command(options: Options) -> None:
    config = read_config(options.run, options.plugins)
    form = formats.FORMATS[options.format]
    default = Path(options.run) / "export" / f"{options.network}{form.suffix}"
    path = user_path(options.output or default, "output")
    form.check_packages()
    formats.check_place(path, form, overwrite=options.overwrite)
    if options.average:
        config = evaluate_averages(config, options.network, evaluate=True)
    with quiet_start():
        from hookline.scripts.evaluation import has_changed
    run = restore(options.run, config, options.checkpoint)
    if has_changed(options.run, run.data):
        told = f"data '{run.data.name}' has changed since the training: its test split may share examples with it"
        print(f"Warning: {one_line(told)}.", file=sys.stderr)
    networks = run.trainer.networks
    formats.check_network(options.network, networks)
    if options.average and not any(is_ema(node, options.network) for node in config["hooks"].values()):
        use_averages(networks[options.network])
    print_export(run, path, *write(run, options, form, path, config["plugins"]))
    from hookline.hooks.monitors.remote import RemoteLogger

    run.config, run.recipe = read_stored(options.run, "run"), recipe_of(options.run, "run")
    with plain_warnings():  # uploads the export as an artifact of the loggers' remote runs
        for hook in run.host_hooks:
            if isinstance(hook, RemoteLogger):
                hook.send_export(run, path)


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    options = parse_options(arguments, Options)
    form = formats.FORMATS[check_choice("format", options.format, formats.FORMATS)]
    for name in options.changed:
        if name not in ("tolerance", *form.options):
            takers = [each.name for each in formats.FORMATS.values() if name in each.options]
            raise UserError(f"{name} is not for format={options.format}. Expected format={' or format='.join(takers)}.")
    return options


def write(
    run: Run, options: Options, form: Format, path: Path, plugins: Sequence[str]
) -> tuple[Contents, dict[str, float], Difference | None]:
    """Write to a temporary path, check that it loads and reaches the run's metrics, then move it into place."""
    from hookline.deploy.compare import compare
    from hookline.deploy.inference.card import write_card
    from hookline.deploy.plain_model import card_of

    with formats.put_in_place(path) as temporary:
        contents = form.write(run, options.network, temporary, options)
        with own_classes(plugins):
            predict = form.load(temporary)
        found = compare(run, options.network, form, predict, tolerance=options.tolerance, lossy=contents.lossy)
    if form.card_beside:
        write_card(path, card_of(run, options.network))
    return contents, *found


def use_averages(network: Network) -> None:
    """Replace each trained variable by its moving average from the optimizer."""
    from hookline.hooks.options import moving_average

    for name, variable in network.trainable_variables.items():
        average = moving_average(network, name)
        if average is None:
            raise UserError(
                "average=true received, but neither the hook ema nor the run's optimizer kept moving averages. "
                "Expected a run with +hooks=ema or optimizer.use_ema=true, or average=false."
            )
        variable.assign(average.value)


def print_export(
    run: Run, path: Path, contents: Contents, metrics: Mapping[str, float], difference: Difference | None
) -> None:
    """Print what was written."""
    from hookline.hooks.monitors.console import TextTable, open_console, show
    from hookline.trainer.run.results import format_bytes, format_value, short_name

    console = open_console()
    show(console, TextTable("What the file holds", contents.columns, contents.rows))
    values = ", ".join(f"{short_name(name)} {format_value(value)}" for name, value in metrics.items())
    lines = [
        *contents.notes,
        f"test split, weights of the {run.checkpoint} checkpoint, step {run.step:,}: {values}",
        *([str(difference)] if difference else []),
        f"{path} ({format_bytes(formats.size_on_disk(path))})",
    ]
    for line in lines:
        console.print(line, soft_wrap=True)


EMA = "hookline.hooks.ema.Ema"


def evaluate_averages(config: Mapping[str, Any], network: str, *, evaluate: bool) -> dict[str, Any]:
    """Return a run's config with averaged weights in evaluations on or off; unchanged if it keeps no averages."""
    hooks = {
        name: {**node, "evaluate": evaluate} if is_ema(node, network) else node
        for name, node in config["hooks"].items()
    }
    return {**config, "hooks": hooks}


def is_ema(node: Any, network: str) -> bool:
    """Return whether a hook's config is that of the hook ema for a network."""
    return (
        isinstance(node, Mapping) and node.get("_target_") == EMA and fnmatchcase(network, node.get("network", "model"))
    )


main = make_main(__doc__, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
