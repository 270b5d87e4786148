"""Measure how much each layer of a finished run can be pruned: `python scripts/sensitivity.py run=<run directory>`.

Each layer is pruned alone, by magnitude, to each sparsity, and the network is evaluated on the validation split without
any training in between (Han et al. 2015, arXiv 1506.02626, section 3.1). The result goes to <run>/sensitivity.json.
Where the run has the hook ema, its averages are left out: it is the weights themselves that are pruned.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.averages import evaluate_averages
from hookline.scripts.command import make_main, parse_options
from hookline.trainer.errors import UserError, unknown_name, user_path
from hookline.trainer.files import write_whole
from hookline.trainer.run.finished import read_config, restore

if TYPE_CHECKING:
    from hookline.hooks.pruning.sensitivity import Scan

USAGE = """python scripts/sensitivity.py run=<run directory> [key=value ...]

  run          directory of a finished run: config.yaml and the best checkpoint, or the last where there is no best
  sparsities   shares of each layer to prune, such as [0.5,0.7,0.9]
  layers       patterns on paths or names of kernel layers, such as * or [fc1,fc2]
  metric       of the validation split
  tolerance    how much worse than unpruned the metric may become with one layer pruned, such as 0.01
  target       a sparsity for all layers together; where it is given, sparsities that reach it are suggested, too
  network      name of the network
  plugins      packages of code that the run uses, such as [my_hooks], if you trust them
"""
FILE_NAME = "sensitivity.json"


@dataclass
class Options:
    """Hold the options of a scan.

    Attributes:
        run: directory of the run.
        sparsities: rising, in (0, 1].
        layers: patterns on kernel layers.
        metric: name of a validation metric.
        tolerance: the loss of the metric that is tolerated, of at least 0.
        target: sparsity of all layers together, or None.
        network: name of the network.
        plugins: packages that the run may use; its own file is not believed.
    """

    run: str = ""
    sparsities: list[float] = field(default_factory=lambda: [0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
    layers: str | list[str] = "*"
    metric: str = "metric/accuracy"
    tolerance: float = 0.01
    target: float | None = None
    network: str = "model"
    plugins: list[str] = field(default_factory=list)


def _command(options: Options) -> None:
    config = read_config(options.run, options.plugins)
    print_scan(options, measure(options, config))


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    options = parse_options(arguments, Options, texts=("run", "metric", "network"))
    _check(options)
    return options


def _check(options: Options) -> None:
    if not options.run:
        raise UserError("No run was given. Expected run=<run directory>; see python scripts/sensitivity.py --help.")
    shares: Any = options.sparsities  # the command line may hold anything
    if not isinstance(shares, list) or not shares or not all(_is_share(share) and share > 0 for share in shares):
        raise UserError(f"Invalid sparsities: {shares!r}. Expected shares in (0, 1], such as [0.5,0.7,0.9].")
    options.sparsities = sorted({float(share) for share in shares})
    if not _is_number(options.tolerance) or not 0 <= options.tolerance < math.inf:
        raise UserError(f"Invalid tolerance: {options.tolerance!r}. Expected a number of at least 0, such as 0.01.")
    patterns: Any = [options.layers] if isinstance(options.layers, str) else options.layers
    if not isinstance(patterns, list) or not patterns or not all(isinstance(each, str) for each in patterns):
        raise UserError(f"Invalid layers: {options.layers!r}. Expected patterns, such as * or [fc1,fc2].")
    if options.target is not None and not _is_share(options.target):
        raise UserError(f"Invalid target: {options.target!r}. Expected a sparsity in [0, 1], such as 0.9.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def measure(options: Options, config: dict[str, Any]) -> Scan:
    """Return the metric for each layer and sparsity."""
    from hookline.trainer.quiet import quiet_start

    with quiet_start():
        from hookline.hooks.pruning.sensitivity import scan_layers
        from hookline.hooks.pruning.settings import select_kernels
    run = restore(options.run, evaluate_averages(config, options.network, evaluate=False))
    parts = run.parts
    if options.network not in parts.trainer.networks:
        raise unknown_name("network", options.network, parts.trainer.networks)
    if options.metric not in parts.validation.names:
        raise unknown_name("metric", options.metric, parts.validation.names)
    kernels = select_kernels(parts.trainer.networks[options.network], options.layers)
    return scan_layers(
        kernels,
        options.sparsities,
        lambda: parts.validation.run(run.step)[options.metric],
        smaller_is_better="loss/" in options.metric,
    )


def print_scan(options: Options, scan: Scan) -> None:
    """Print a table and the suggestions, and write them to the run directory."""
    from rich.table import Table

    from hookline.hooks.monitors.console import open_console

    console = open_console()
    result = as_json(options, scan)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("layer", "entries", *(f"{share:g}" for share in options.sparsities), "suggested"):
        table.add_column(column, justify="left" if column == "layer" else "right", no_wrap=True)
    for path, values in scan.values.items():
        shown = [f"{values[share]:.4f}" for share in options.sparsities]
        table.add_row(path, f"{scan.entries[path]:,}", *shown, f"{result['suggested'][path]:g}")
    console.print(f"{options.metric} of the validation split, unpruned {scan.baseline:.4f}; with one layer pruned to:")
    console.print(table)
    _print_suggestion(console, f"tolerance {options.tolerance:g}", result["suggested"], result["suggested_total"])
    if options.target is not None:
        reached = result["suggested_for_target"]
        if reached is None:
            console.print(f"target {options.target:g}: not reached, even with every layer at its largest sparsity.")
        else:
            label = f"target {options.target:g} (tolerance {result['tolerance_for_target']:.4g})"
            _print_suggestion(console, label, reached, result["total_for_target"])
    console.print(_write(user_path(options.run, "run") / FILE_NAME, result), soft_wrap=True)


def _print_suggestion(console: Any, label: str, suggested: Mapping[str, float], total: float) -> None:
    text = "{" + ",".join(f"{path}:{share:g}" for path, share in suggested.items()) + "}"
    console.print(f"{label}: final_sparsity={text}, {total:.4f} in all", soft_wrap=True, highlight=False, markup=False)


def as_json(options: Options, scan: Scan) -> dict[str, Any]:
    """Return what sensitivity.json holds."""
    suggested = scan.suggest(options.tolerance)
    reached = None if options.target is None else scan.reach(options.target)
    return {
        "metric": options.metric,
        "baseline": scan.baseline,
        "layers": [
            {"layer": path, "entries": scan.entries[path], "values": {f"{share:g}": each[share] for share in each}}
            for path, each in scan.values.items()
        ],
        "tolerance": options.tolerance,
        "suggested": suggested,
        "suggested_total": scan.total(suggested),
        "target": options.target,
        "tolerance_for_target": reached and reached[0],
        "suggested_for_target": reached and reached[1],
        "total_for_target": reached and scan.total(reached[1]),
    }


def _write(path: Path, result: Mapping[str, Any]) -> str:
    try:
        write_whole(path, json.dumps(result, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}. Expected a writable directory.") from error
    return str(path)


main = make_main(USAGE, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
