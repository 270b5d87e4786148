"""Time ways to do the same work, side by side.

python scripts/benchmark.py what=<comparison> [key=value ...]

Each contender runs in its own process, which prepares once. Then the contenders of a case take turns, so that other
load on the machine affects all equally. A contender is a small function in `scripts/benchmarks/`.

  what          input: batches from arrays in memory, ours and tf.data's; images: from a folder, ours and Keras's;
                training: our runs, Keras's fit, PyTorch, Larq, TFMOT, and the machine's limit;
                inference: packed binary networks, against the same networks in TensorFlow, ONNX Runtime and LiteRT
  case          one or several cases, such as case=lenet_5,cnn; default: all
  contenders    patterns of contender names, such as 'hookline*' or 'hookline,limit*'
  environments  folder of virtual environments with other frameworks; without it, they are left out. To make it:
                sh scripts/benchmarks/environments.sh <folder>
  data          the data: for what=images a folder of images, else a file such as mnist.npz; without it, and for cases
                whose images have another size, images are generated
  repeats       how often the contenders take turns
  seconds       how long a contender works in one turn
  batch_size    examples per batch; default: that of the case
  threads       threads of each framework; default: the number of cores, and 1 for inference
  out           JSON file for the results
  chart         PNG file for a bar chart of the results, such as training.png
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.benchmarks.worker import Settings, Worker, find_contenders
from hookline.scripts.command import check_output, make_main, matching, new_figure, parse_options
from hookline.train import say
from hookline.trainer.errors import UserError, user_path
from hookline.trainer.run.directory import cpu_name

Row = dict[str, Any]
BASELINES = ("tf.data, batch by batch", "keras", "larq", "tfmot", "tensorflow")
"""Name prefixes of possible baselines; the fastest match is the baseline, or the first contender if none matches."""


@dataclass
class Options:
    """The options of the command line."""

    what: Literal["input", "images", "training", "inference"]
    case: str = "*"
    contenders: str = "*"
    environments: str = ""
    data: str = ""
    repeats: int = 7
    seconds: float = 1.0
    batch_size: int | None = None
    threads: int | None = None
    out: str = ""
    chart: str = ""


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    options = parse_options(arguments, Options)
    for name, ending in (("out", ""), ("chart", ".png")):
        if text := getattr(options, name):
            check_output(name, text, [ending], overwrite=True)
    return options


def choose(options: Options) -> dict[str, list[str]]:
    """Return the names of the selected contenders, by case."""
    known = find_contenders(options.what)
    cases = matching("case", options.case, known)
    names = matching("contender", options.contenders, dict.fromkeys(name for case in cases for name in known[case]))
    return {case: own for case in cases if (own := [name for name in known[case] if name in names])}


def compare(case: str, names: Sequence[str], options: Options) -> tuple[list[Row], dict[str, str], dict[str, str]]:
    """Return the rows of a case, the versions of the software used, and why contenders were left out."""
    threads = options.threads or (1 if options.what == "inference" else None)
    settings = Settings(options.data, options.batch_size, threads)
    workers, versions, left_out = list[Worker](), dict[str, str](), dict[str, str]()
    with ExitStack() as stack:
        for name in names:
            try:
                worker = Worker((options.what, case, name), options.environments, settings, options.seconds)
                stack.callback(worker.close)
                versions |= worker.versions()
            except UserError as error:
                left_out[name] = str(error)
                say(f"{case}: left out '{name}': {error}")
            else:
                workers.append(worker)
                say(f"{case}: {name} is ready")
        if not workers:
            raise UserError(f"No contender of '{case}' can take part: {' '.join(dict.fromkeys(left_out.values()))}")
        for repeat in range(options.repeats):
            first = repeat % len(workers)
            for worker in workers[first:] + workers[:first]:
                worker.turn()
            say(f"{case}: turn {repeat + 1} of {options.repeats}")
    unit = "steps/s" if options.what == "training" else "batches/s"
    return as_rows(case, unit, {worker.name: worker.speeds for worker in workers}), versions, left_out


def as_rows(case: str, unit: str, speeds: Mapping[str, Sequence[float]]) -> list[Row]:
    """Return one row of JSON values for each contender of a case, from its speeds in each turn.

    Ratios are medians and quartiles, over the turns, of the speed relative to the baseline in the same turn.
    """
    medians = {name: statistics.median(each) for name, each in speeds.items()}
    baselines = [name for name in speeds if name.startswith(BASELINES)] or [*speeds][:1]
    baseline = max(baselines, key=medians.__getitem__)
    limits = [name for name in speeds if name.startswith("limit")]
    limit = max(limits, key=medians.__getitem__, default=None)
    rows = []
    for name, each in speeds.items():
        low, ratio, high = _quartiles(each, speeds[baseline])
        rows.append(
            {
                "case": case,
                "contender": name,
                "unit": unit,
                "median": medians[name],
                "lowest": min(each),
                "highest": max(each),
                "ratio": ratio,
                "ratio_quartiles": [low, high],
                "of_limit": None if limit is None else _quartiles(each, speeds[limit])[1],
                "baseline": name == baseline,
                "limit": name in limits,
                "speeds": each,
            }
        )
    return rows


def _quartiles(speeds: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the lower quartile, the median and the upper quartile of the ratios of two speeds."""
    ratios = [own / base for own, base in zip(speeds, others, strict=True)]
    return statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else 3 * ratios


def print_rows(rows: Sequence[Row]) -> None:
    """Print the table of a case, with a column for the limit if it was measured."""
    from hookline.hooks.monitors.console import TextTable, open_console, show

    columns = {
        "contender": [f"{row['contender']} *" if row["baseline"] else row["contender"] for row in rows],
        rows[0]["unit"]: [f"{row['median']:,.1f}" for row in rows],
        "times *": [f"{row['ratio']:.2f}" for row in rows],
        "quartiles": ["{:.2f} to {:.2f}".format(*row["ratio_quartiles"]) for row in rows],
    }
    if any(row["limit"] for row in rows):
        columns["limit"] = [f"{row['of_limit']:.0%}" for row in rows]
    console = open_console()
    console.print()
    show(console, TextTable(rows[0]["case"], list(columns), list(zip(*columns.values(), strict=True))))


def write_chart(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG file with a panel for each case: medians as bars, with lines from the lowest to the highest."""
    cases = [[row for row in rows if row["case"] == case] for case in dict.fromkeys(row["case"] for row in rows)]
    heights = [1.0 + 0.32 * len(own) for own in cases]
    figure = new_figure(10.0, sum(heights))
    panels = figure.subplots(len(cases), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, own in zip(panels[:, 0], cases, strict=True):
        places, medians = range(len(own)), [row["median"] for row in own]
        spread = [[row["median"] - row["lowest"] for row in own], [row["highest"] - row["median"] for row in own]]
        axes.barh(places, medians, height=0.7, color=[_color(row) for row in own])
        axes.errorbar(medians, places, xerr=spread, fmt="none", ecolor="#333333", elinewidth=1, capsize=2)
        for place, row in enumerate(own):
            axes.text(row["highest"], place, f"  {row['median']:,.1f}  ({row['ratio']:.2f})", va="center", fontsize=8)
        axes.set_yticks(places, [row["contender"] for row in own], fontsize=8)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.18 * max(row["highest"] for row in own))
        (base,) = [row["contender"] for row in own if row["baseline"]]
        axes.set_title(f"{own[0]['case']}: {own[0]['unit']} (times '{base}')", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _color(row: Row) -> str:
    if row["limit"] or row["baseline"]:
        return "#f2c14e" if row["limit"] else "#d1495b"
    return "#1b6ca8" if row["contender"].startswith("hookline") else "#a9b4c2"


def _command(options: Options) -> None:
    cases = choose(options)
    say(f"{options.what}, {options.data or 'no data given'}, {options.repeats} turns of {options.seconds:g} s each")
    rows, left_out = list[Row](), dict[str, dict[str, str]]()
    versions = {"processor": cpu_name(), "cores": str(os.cpu_count())}
    for case, names in cases.items():
        measured, found, left_out[case] = compare(case, names, options)
        rows += measured
        versions |= found
        print_rows(measured)
    if options.out:
        report = {"options": asdict(options), "versions": versions, "left_out": left_out, "results": rows}
        user_path(options.out, "out").write_text(json.dumps(report, indent=2))
    if options.chart:
        write_chart(rows, user_path(options.chart, "chart"))
    say("\n*: what the others are compared with")
    if any(row["limit"] for row in rows):
        say("limit: share of the speed of forward and backward alone")
    say(", ".join(f"{name} {version}" for name, version in versions.items()))


main = make_main(__doc__, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
