"""Time ways to do the same work, side by side.

python scripts/benchmark.py what=<comparison> [key=value ...]

Each contender has a process of its own, which prepares once. Then the contenders of a case take turns, so that other
load on the machine affects all alike. A contender is a small function in `scripts/benchmarks/`.

  what          input: batches from arrays in memory, ours and tf.data's; images: from a folder, ours and Keras's;
                training: our runs, Keras's fit, PyTorch, Larq, TFMOT, and the machine's limit;
                inference: packed binary networks, against the same networks in TensorFlow, ONNX Runtime and LiteRT
  case          one of them, or several, such as case=lenet_5,cnn; all without it
  contenders    patterns on their names, such as 'hookline*' or 'hookline,limit*'
  environments  folder of virtual environments with other frameworks; without it, they are left out. To make it:
                sh scripts/benchmarks/environments.sh <folder>
  data          path of the data, such as mnist.npz; without it, what is embedded or generated
  repeats       how often the contenders take turns
  seconds       how long a contender works in one turn
  batch_size    examples per batch; without it, as the case has it
  threads       of each framework; without it, as many as there are cores, and 1 for inference
  peak          what the device reaches at most, in 10^12 floating-point operations a second, such as 19.5; with it, the
                share of it that each contender reaches is shown
  out           file for the figures as JSON
  chart         file for the figures as a bar chart, such as training.png
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.benchmarks.contender import Contender, Settings, Worker, find_contenders
from hookline.scripts.command import check_output, make_main, matching, new_figure, parse_options, plain_table
from hookline.trainer.errors import UserError, user_path
from hookline.trainer.run.directory import cpu_name

_say = partial(print, flush=True)


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
    peak: float | None = None
    out: str = ""
    chart: str = ""


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    options = parse_options(arguments, Options)
    for name, ending in (("out", ""), ("chart", ".png")):
        if text := getattr(options, name):
            check_output(name, text, [ending], overwrite=True)
    return options


def choose(options: Options) -> dict[str, list[Contender]]:
    """Return the contenders that the options ask for, by case."""
    known = [each for each in find_contenders() if each.what == options.what]
    cases = matching("case", options.case, dict.fromkeys(each.case for each in known))
    known = [each for each in known if each.case in cases]
    names = matching("contender", options.contenders, dict.fromkeys(each.name for each in known))
    found = [each for each in known if each.name in names]
    return {case: own for case in cases if (own := [each for each in found if each.case == case])}


def compare(contenders: Sequence[Contender], options: Options) -> tuple[list[Row], dict[str, str], dict[str, str]]:
    """Return the rows of a case, the versions of what took part, and why contenders were left out."""
    case, workers, left_out = contenders[0].case, list[Worker](), dict[str, str]()
    try:
        for each in contenders:
            settings = Settings(options.data, options.batch_size or each.batch_size, options.threads or each.threads)
            try:
                workers.append(Worker(each, options.environments, settings, options.seconds))
                _say(f"{case}: {each.name} is ready")
            except UserError as error:
                left_out[each.name] = str(error)
                _say(f"{case}: left out '{each.name}': {error}")
        if not workers:
            raise UserError(f"No contender of '{case}' can take part: {' '.join(dict.fromkeys(left_out.values()))}")
        for repeat in range(options.repeats):
            first = repeat % len(workers)
            for worker in workers[first:] + workers[:first]:
                worker.turn()
            _say(f"{case}: turn {repeat + 1} of {options.repeats}")
    finally:
        for worker in workers:
            worker.close()
    versions = {name: version for each in workers for name, version in each.versions.items()}
    return as_rows(workers, 1e12 * options.peak if options.peak else None), versions, left_out


Row = dict[str, Any]


def as_rows(results: Sequence[Worker], peak: float | None = None) -> list[Row]:
    """Return the figures of the contenders of one case, as JSON values.

    Ratios are medians and quartiles, over the turns, of the speed relative to the baseline in the same turn: the
    fastest contender that may be it, or the first one. "use" is the share of the peak. What is unknown is None.
    """
    baseline = max((each for each in results if each.contender.baseline), key=_median, default=results[0])
    limit = max((each for each in results if each.contender.limit), key=_median, default=None)
    rows = []
    for each in results:
        products = each.products or baseline.products or (limit or results[0]).products
        operations = 2 * products * each.settings.batch_size * _median(each) if products else None
        rows.append(
            {
                "case": each.contender.case,
                "contender": each.contender.name,
                "unit": "steps/s" if each.contender.what == "training" else "batches/s",
                "median": _median(each),
                "lowest": min(each.speeds),
                "highest": max(each.speeds),
                "ratio": (ratio := _quartiles(each, baseline))[1],
                "ratio_quartiles": ratio[::2],
                "of_limit": None if limit is None else _quartiles(each, limit)[1],
                "products": products,
                "use": operations / peak if operations and peak else None,
                "baseline": each is baseline,
                "limit": each.contender.limit,
                "speeds": each.speeds,
            }
        )
    return rows


def _median(result: Worker) -> float:
    return statistics.median(result.speeds)


def _quartiles(result: Worker, other: Worker) -> list[float]:
    """Return the lower quartile, the median and the upper quartile of the ratios of two speeds."""
    ratios = [own / base for own, base in zip(result.speeds, other.speeds, strict=True)]
    return statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else 3 * ratios


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of a case; columns without a value are left out."""
    from hookline.hooks.monitors.console import open_console

    differ = len({row["products"] for row in rows}) > 1
    columns = {
        rows[0]["case"]: [f"{row['contender']} *" if row["baseline"] else row["contender"] for row in rows],
        rows[0]["unit"]: [f"{row['median']:,.1f}" for row in rows],
        "products": [_cell(row["products"], ",d") if differ else "" for row in rows],
        "times *": [f"{row['ratio']:.2f}" for row in rows],
        "quartiles": ["{:.2f} to {:.2f}".format(*row["ratio_quartiles"]) for row in rows],
        "limit": [_cell(row["of_limit"], ".0%") for row in rows],
        "peak": [_cell(row["use"], ".1%") for row in rows],
    }
    filled = {name: cells for name, cells in columns.items() if any(cells)}
    console = open_console()
    console.print()
    console.print(plain_table(filled, zip(*filled.values(), strict=True)), markup=False)


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


LIMIT, BASELINE, OURS, OTHERS = "#f2c14e", "#d1495b", "#1b6ca8", "#a9b4c2"
"""Colours of bars."""


def write_chart(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a PNG file with a panel for each case: medians as bars, with lines from the lowest to the highest."""
    cases = [[row for row in rows if row["case"] == case] for case in dict.fromkeys(row["case"] for row in rows)]
    heights = [1.0 + 0.32 * len(own) for own in cases]
    figure = new_figure(10.0, sum(heights))
    panels = figure.subplots(len(cases), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, own in zip(panels[:, 0], cases, strict=True):
        places, medians = range(len(own)), [row["median"] for row in own]
        spread = [[row["median"] - row["lowest"] for row in own], [row["highest"] - row["median"] for row in own]]
        axes.barh(places, medians, height=0.7, color=[_colour(row) for row in own])
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


def _colour(row: Mapping[str, Any]) -> str:
    if row["limit"] or row["baseline"]:
        return LIMIT if row["limit"] else BASELINE
    return OURS if row["contender"].startswith("hookline") else OTHERS


def _command(options: Options) -> None:
    cases = choose(options)
    _say(f"{options.what}, {options.data or 'no data given'}, {options.repeats} turns of {options.seconds:g} s each")
    rows, left_out = list[Row](), dict[str, dict[str, str]]()
    versions = {"processor": cpu_name(), "cores": str(os.cpu_count())}
    for case, contenders in cases.items():
        measured, found, left_out[case] = compare(contenders, options)
        rows += measured
        versions |= found
        print_rows(measured)
    if options.out:
        report = {"options": asdict(options), "versions": versions, "left_out": left_out, "results": rows}
        user_path(options.out, "out").write_text(json.dumps(report, indent=2))
    if options.chart:
        write_chart(rows, user_path(options.chart, "chart"))
    _say("\n*: what the others are compared with")
    if any(row["limit"] for row in rows):
        _say("limit: share of the speed of forward and backward alone")
    if any(row["use"] for row in rows):
        _say("peak: share of peak=; 2 operations for each multiply-accumulate of dense layers and convolutions")
    _say(", ".join(f"{name} {version}" for name, version in versions.items()))


main = make_main(__doc__, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
