"""The results as a page and as a chart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hookline.scripts.command import markdown_table, new_figure, write_file
from hookline.scripts.reproduction.rows import Row
from hookline.scripts.reproduction.targets import SIZE, Target
from hookline.trainer.errors import UserError
from hookline.trainer.files import read_json
from hookline.trainer.run.results import format_bytes

HEAD = """# Results

`python scripts/reproduce.py` makes this page from `recipes/results.json`; do not edit it. Figures are means over the
seeds on the test split, with the lowest and the highest in parentheses. A result is compared with the figure of a
paper, a goal of the recipe, or another measurement of ours; a goal is reached if the mean is at least as good (the
column "reached" has a single "yes" or "no" if all goals of a row agree). The size is that of the weights and statistics
as `summary.json` counts them for the network that ships. A time is the median wall time of training, evaluation and
saving, without the start of Python; it reads "at most" if the machine had other work. *High quality* is the share of
samples within 3 standard deviations of a mode.
"""
TITLES = ("target", "data, seeds", "ours", "other figures", "compared with", "reached", "size", "time")
ORDER = """\
Run the commands from top to bottom: several targets may start from one run, which the first of them makes. To get the
same results, add `trainer.threads=1` or `trainer.threads=2`: the number of threads in the column "time". Commands with
`trainer.precision=bfloat16` need a processor with AMX or avx512_bf16, or a GPU that computes in bfloat16; elsewhere add
`trainer.allow_slow_precision=true`. [scripts/README.md](../scripts/README.md#reproduce) says what the folders `cifar10`
and `clothing` hold and what to install; `mnist.npz` is `~/.keras/datasets/mnist.npz`, which
`keras.datasets.mnist.load_data()` downloads."""


def render(rows: Sequence[Row]) -> str:
    """Return the results page."""
    made = [row for row in rows if "not_run" not in row]
    lines = [HEAD, *([] if made else ["Nothing was run yet.", ""])]
    if made:
        lines += [markdown_table(TITLES, map(_cells, made)), ""]
    if missing := [row for row in rows if "not_run" in row]:
        lines += ["Not run:", "", *(f"- {_name(row)}: {row['not_run']}" for row in missing), ""]
    if made:
        groups: dict[str, list[str]] = {}  # names of rows by environment
        for row in made:
            groups.setdefault(_environment(row["environment"]), []).append(f"`{row['name']}`")
        one = len(groups) == 1
        measured = [f"{text}." if one else f"- {', '.join(names)}: {text}." for text, names in groups.items()]
        lines += ["## Measured with", "", *measured, "", "## Commands", "", ORDER, ""]
        begun: set[tuple[str, str]] = set()
        for row in made:
            lines += [f"{_name(row)}, {row['data']}:", "", "```", *_commands(row["commands"], begun), "```", ""]
    return "\n".join(lines)


def _commands(lines: Sequence[str], begun: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the commands of a row; for a run that is made above, yield a comment with its directory instead."""
    for line in lines:
        bare, (_, named, directory) = line.lstrip(), line.partition(" run_dir=")
        key = (lines[0] if lines[0].startswith("for ") else "", bare)
        if named and key in begun:
            yield f"{line[: -len(bare)]}# {directory} is made above"
        else:
            begun |= {key} if named else set()
            yield line


def render_short(row: Row) -> str:
    """Return a row as one line for the screen."""
    measures = "; ".join(map(_measure, row["measures"]))
    goals = "; ".join(
        f"{_goal(goal, row['measures'])}: {'reached' if goal['reached'] else 'not reached'}" for goal in row["goals"]
    )
    return f"{row['name']}: {measures}. {f'{goals}. ' if goals else ''}{_time(row)}"


def _name(row: Row) -> str:
    return f"`{row['name']}`: {row['title']}"


def _cells(row: Row) -> list[str]:
    first, *others = row["measures"]
    seeds = f"{len(row['seeds'])} seeds"
    if len(row["seeds"]) < 4:  # more are not named one by one
        seeds = f"seed{'s' if len(row['seeds']) > 1 else ''} {', '.join(map(str, row['seeds']))}"
    reached = ["yes" if goal["reached"] else "no" for goal in row["goals"]]
    return [
        _name(row),
        f"{row['data']}, {seeds}",
        _measure(first),
        "; ".join(map(_measure, others)),
        "; ".join(_goal(goal, row["measures"]) for goal in row["goals"]),
        "; ".join(reached if len({*reached}) > 1 else reached[:1]),
        "" if row["bytes"] is None else format_bytes(row["bytes"]),
        _time(row),
    ]


def _measure(measure: Row) -> str:
    text = f"{measure['name']} {figure(measure['mean'], measure)}"
    low, high = (figure(measure[key], measure, unit=False) for key in ("low", "high"))
    return text if low == high else f"{text} ({low} to {high})"


def figure(value: float, measure: Row, *, unit: bool = True) -> str:
    """Return a value as the table shows it."""
    text = f"{value:.{measure['decimals']}f}"
    if not measure["unit"] and float(text).is_integer():  # such as the number of modes, or a ratio
        text = f"{float(text):.0f}"
    return f"{text} {measure['unit']}" if unit and measure["unit"] else text


def _goal(goal: Row, measures: Sequence[Row]) -> str:
    measure = next(each for each in measures if each["name"] == goal["measure"])
    given = len(f"{goal['figure']:g}".partition(".")[2])
    own = given > 2 or goal["source"].startswith("ours, ")  # a mean of seeds, with more decimals than a paper gives
    decimals = measure["decimals"] if own else given
    name = "" if measure is measures[0] else f"{goal['measure']} "
    return f"{name}{goal['relation']} {figure(goal['figure'], {**measure, 'decimals': decimals})}: {goal['source']}"


def _time(row: Row) -> str:
    seconds = next(iter(row["seconds"].values()))
    text = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
    threads = f"{row['threads']} thread{'s' if row['threads'] != 1 else ''}"
    return f"{'at most ' if row['under_load'] else ''}{text}, {threads}"


def _environment(environment: Row) -> str:
    commits = ", ".join(commit[:10] for commit in environment["commits"]) or "unknown"
    noun = "commits" if len(environment["commits"]) > 1 else "commit"
    changed = "" if environment["clean"] else " (some with uncommitted changes, or of unknown state)"
    versions = ", ".join(
        f"{name} {' and '.join(environment[key])}"
        for name, key in (("Python", "python"), ("TensorFlow", "tensorflow"), ("Keras", "keras"))
        if environment[key]
    )
    cores = " and ".join(map(str, environment["cores"])) or "unknown"
    cores += " core" if cores == "1" else " cores"
    cpus = " and ".join(environment["cpus"]) or "unknown processor"
    gpus = f", {environment['gpus']} GPUs" if environment["gpus"] else ""
    days = " to ".join(dict.fromkeys([*environment["dates"][:1], *environment["dates"][-1:]]))
    return f"{days}, {noun} {commits}{changed}; {versions}; {cpus}, {cores}{gpus}"


FILE = Path(__file__).resolve().parents[2] / "recipes" / "results.json"
TABLE = "RESULTS.md"
VERSION = 1


def read_results(path: Path) -> list[Row]:
    """Return the rows of a file; empty if there is no file."""
    if not path.exists():
        return []
    try:
        content: Any = read_json(path)
        if content["version"] != VERSION:
            raise ValueError(content["version"])
        return list({row["name"]: row for row in content["rows"]}.values())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged, or of another version than {VERSION}. Expected what reproduce.py writes: take it from "
            "version control, or remove it."
        ) from error


def keep(path: Path, new: Row, order: Sequence[str]) -> None:
    """Put a row into the file, and write the table; a row that was not run does not replace one that was."""
    named = {row["name"]: row for row in read_results(path)}
    before = named.get(new["name"])
    if "not_run" not in new or before is None or "not_run" in before:
        named[new["name"]] = new
    places = {name: place for place, name in enumerate(order)}
    write_results(path, sorted(named.values(), key=lambda row: places.get(row["name"], len(places))))


def write_results(path: Path, rows: Sequence[Row]) -> None:
    """Write results.json, and the table next to it."""
    write_file(path, json.dumps({"version": VERSION, "rows": list(rows)}, indent=1, ensure_ascii=False) + "\n")
    write_file(path.with_name(TABLE), render(rows))


CHART = Path(__file__).resolve().parents[2] / ".github" / "pictures" / "accuracy_and_bytes.png"
"""Chart of our own results, shown on pages."""
WIDTH, HEIGHT = 9.0, 3.6
"""Width of the picture and height of a panel, in inches."""


Point = tuple[str, float, float, str]
"""One network of the chart: data, bytes, accuracy in percent, label."""


def points_of(rows: Sequence[Row], targets: Mapping[str, Target]) -> Iterator[Point]:
    """Yield the points of the chart that targets define, for rows that were measured."""
    for row in rows:
        if (target := targets.get(row["name"])) is None:
            continue
        measured = {each["name"]: each for each in row.get("measures", ())}
        for label, (reached, size) in target.points.items():
            if not {reached, size} <= {*measured, SIZE}:
                continue  # an older row
            mean, whole = measured[reached]["mean"], row["bytes"]
            accuracy = 100 - mean if target.measures[reached].unit.complement else mean
            if size != SIZE:
                whole = measured[size]["mean"] * {"KB": 1000, "KiB": 1024}[measured[size]["unit"]]
            yield row["data"], whole, accuracy, label


LABEL_PLACES = tuple((5, height) for n in range(4) for height in (-11 - 10 * n, 4 + 10 * n))
"""Offsets of a label from its point, in typographic points: below and above, then further away."""


def write_chart(points: Sequence[Point], path: Path) -> None:
    """Write a PNG file with a panel for each data set: accuracy in percent against bytes, on a log scale."""
    panels = list(dict.fromkeys(panel for panel, *_ in points))
    figure = new_figure(WIDTH, HEIGHT * len(panels))
    figure.set_dpi(110)
    drawn = []
    for axes, panel in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        own = sorted(point[1:] for point in points if point[0] == panel)
        drawn.append((axes, own, _draw_points(axes, panel, own)))
    figure.draw_without_rendering()  # lays out the panels
    for axes, own, dots in drawn:
        centers = axes.transData.transform(dots.get_offsets())
        taken = [dots.get_window_extent().from_bounds(x - 5, y - 5, 10, 10) for x, y in centers]
        for size, accuracy, label in own:
            taken.append(_label(axes, label, (size, accuracy), taken))
    figure.savefig(path, dpi=figure.dpi)


def _draw_points(axes: Any, panel: str, own: Sequence[tuple[float, float, str]]) -> Any:
    sizes, accuracies, _ = zip(*own, strict=True)
    dots = axes.scatter(sizes, accuracies, color="#1f77b4", zorder=3)
    axes.set_xscale("log")
    axes.set_xlim(sizes[0] / 1.5, sizes[-1] * 4)  # labels are to the right of their points
    axes.margins(y=0.15)
    low, high = axes.get_xlim()
    ticks = [size for size in (10**n * m for n in range(3, 8) for m in (1, 2, 5)) if low <= size <= high]
    axes.set_xticks(ticks, [f"{size / 1000:,.0f} KB" for size in ticks])
    axes.minorticks_off()
    axes.set_ylabel("test accuracy, %")
    axes.set_title(panel, loc="left", fontsize=10)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return dots


def _label(axes: Any, label: str, point: tuple[float, float], taken: Sequence[Any]) -> Any:
    """Write a label next to its point, without overlap with points and labels if possible, and return its box."""
    for offset in LABEL_PLACES:
        text = axes.annotate(label, point, offset, textcoords="offset points", fontsize=8)
        box = text.get_window_extent()
        if offset == LABEL_PLACES[-1] or not any(box.overlaps(each) for each in taken):
            break
        text.remove()
    return box
