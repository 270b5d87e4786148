"""Measure how much each layer of a finished run can be pruned.

python scripts/sensitivity.py run=<run directory> [key=value ...]

Each layer is pruned alone, by magnitude, to each sparsity, and the network is evaluated on the validation split without
any training in between (Han et al. 2015, arXiv 1506.02626, section 3.1). The result goes to <run>/sensitivity.json.
If the run has the hook ema, its averages are not used: the weights themselves are pruned.

  run          directory of a finished run: config.yaml and the best checkpoint, or the last if there is no best
  sparsities   shares of each layer to prune, such as [0.5,0.7,0.9]
  layers       patterns of paths or names of kernel layers, such as * or [fc1,fc2]
  metric       metric of the validation split
  tolerance    how much worse than unpruned the metric may become with one layer pruned, such as 0.01
  target       overall sparsity of all layers; if given, sparsities that reach it are suggested as well
  network      name of the network
  plugins      packages of code that the run uses, such as [my_hooks], if you trust them
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import make_main, parse_options, write_file
from hookline.scripts.export import evaluate_averages
from hookline.trainer.errors import UserError, check_choice, user_path
from hookline.trainer.run.finished import read_config, restore
from hookline.trainer.run.results import AUTO, mode_of

if TYPE_CHECKING:
    from hookline.hooks.pruning.sensitivity import Scan

FILE_NAME = "sensitivity.json"


@dataclass
class Options:
    """The options of the command line."""

    run: str
    sparsities: list[float] = field(default_factory=lambda: [0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
    layers: str | list[str] = "*"
    metric: str = "metric/accuracy"
    tolerance: float = 0.01
    target: float | None = None
    network: str = "model"
    plugins: list[str] = field(default_factory=list)


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    options = parse_options(arguments, Options)
    options.sparsities = sorted({*options.sparsities})
    for name, shares in (("sparsities", options.sparsities or [0]), ("target", [options.target or 1])):
        if not all(0 < share <= 1 for share in shares):
            raise UserError(f"Invalid {name}: {shares}. Expected shares above 0, up to 1, such as 0.9.")
    return options


def measure(options: Options) -> Scan:
    """Return the metric for each layer and sparsity."""
    from hookline.trainer.deferred import quiet_start

    with quiet_start():
        from hookline.hooks.kernels import select_kernels
        from hookline.hooks.options import first_of
        from hookline.hooks.pruning.sensitivity import kept_from_zero, scan_layers
        from hookline.scripts.evaluation import check_unchanged
        from hookline.trainer.run.state import shipped_weights
    run = restore(
        options.run, evaluate_averages(read_config(options.run, options.plugins), options.network, evaluate=False)
    )
    check_unchanged(options.run, run.data)
    check_choice("metric", options.metric, run.held_out["validation"].names)
    network = run.networks[check_choice("network", options.network, run.networks)]
    kernels = select_kernels(network, options.layers, doing="pruned")
    not_zero = kept_from_zero(kernels, lambda: shipped_weights(run.trainer, run.step)[network.name])
    if not_zero:
        warnings.warn(
            f"Hooks of the run round pruned weights of {first_of(not_zero)} to nonzero values, so these are "
            "measured. Use a run without these hooks to measure real zeros.",
            stacklevel=2,
        )
    mode = mode_of(options.metric, run.best.mode if options.metric == run.best.monitor else AUTO)
    return scan_layers(
        kernels,
        options.sparsities,
        lambda: run.held_out["validation"].run(run.step)[options.metric],
        smaller_is_better=mode == "min",
    )


def print_scan(options: Options, scan: Scan) -> None:
    """Print a table and the suggestions, and write them to the run directory."""
    from hookline.hooks.monitors.console import TextTable, open_console, show

    console = open_console()
    result = as_json(options, scan)
    heads = ("layer", "entries", *(f"{share:g}" for share in options.sparsities), "suggested")
    rows = [
        (path, f"{scan.entries[path]:,}", *(f"{values[share]:.4f}" for share in options.sparsities), f"{suggested:g}")
        for (path, values), suggested in zip(scan.values.items(), result["suggested"].values(), strict=True)
    ]
    better = "lower" if scan.smaller_is_better else "higher"
    title = f"{options.metric} ({better} is better) of the validation split, unpruned {scan.baseline:.4f}; pruned to:"
    show(console, TextTable(title, heads, rows))
    _print_suggestion(console, f"tolerance {options.tolerance:g}", result["suggested"], result["suggested_total"])
    if options.target is not None:
        reached = result["suggested_for_target"]
        if reached is None:
            console.print(f"target {options.target:g}: not reached, even with every layer at its largest sparsity.")
        else:
            label = f"target {options.target:g} (tolerance {result['tolerance_for_target']:.4g})"
            _print_suggestion(console, label, reached, result["total_for_target"])
    path = user_path(options.run, "run") / FILE_NAME
    write_file(path, json.dumps(result, indent=2) + "\n")
    console.print(str(path), soft_wrap=True)


def _print_suggestion(console: Any, label: str, suggested: Mapping[str, float], total: float) -> None:
    text = "{" + ",".join(f"{path}:{share:g}" for path, share in suggested.items()) + "}"
    console.print(f"{label}: final_sparsity={text}, {total:.4f} in all", soft_wrap=True)


def as_json(options: Options, scan: Scan) -> dict[str, Any]:
    """Return the content of sensitivity.json."""
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


main = make_main(__doc__, parse, lambda options: print_scan(options, measure(options)))

if __name__ == "__main__":
    sys.exit(main())
