"""Time ways to do the same work, side by side: `python scripts/benchmark.py what=input [key=value ...]`.

Each contender has a process of its own, which prepares once. Then they take turns: each repeat goes once through all of
them, so that what else the machine does meets all alike. A contender is a small function in `scripts/benchmarks/`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from scripts.benchmarks.contender import Contender, Settings, find_contenders
from scripts.command import make_main, parse_options
from trainer.errors import UserError, unknown_name
from trainer.input.checks import is_whole_number

USAGE = """python scripts/benchmark.py what=<comparison> [key=value ...]

  what        input: batches from arrays in memory, ours and tf.data's; images: from a folder, ours and Keras's
  data        path of the data, such as mnist.npz; without it, what is embedded
  repeats     how often the contenders take turns
  seconds     how long a contender works in one turn
  batch_size  examples a batch
  threads     of TensorFlow; null for as many as there are cores
  out         file for the figures as JSON
"""
WORKER = Path(__file__).resolve().parent / "benchmarks" / "worker.py"


@dataclass
class Options:
    """Hold the options of a comparison.

    Attributes:
        what: the comparison.
        data: path of the data; empty for what is embedded.
        repeats: turns of each contender, at least 1.
        seconds: of a turn, above 0.
        batch_size: examples a batch, at least 1.
        threads: of TensorFlow, or None.
        out: file for the figures; empty for none.
    """

    what: str = ""
    data: str = ""
    repeats: int = 7
    seconds: float = 1.0
    batch_size: int = 128
    threads: int | None = None
    out: str = ""


@dataclass
class Result:
    """Hold what was measured of a contender.

    Attributes:
        contender: which.
        speeds: units of work a second, one for each repeat, in order.
    """

    contender: Contender
    speeds: list[float] = field(default_factory=list)


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line.

    Args:
        arguments: such as ["what=input", "repeats=5"].

    Raises:
        UserError: an unknown key, or a value of the wrong type or out of range.
    """
    options = parse_options(arguments, Options, texts=("what", "data", "out"))
    known = list(dict.fromkeys(each.what for each in find_contenders()))
    if options.what not in known:
        raise unknown_name("comparison", options.what, known)
    for name in ("repeats", "batch_size", "threads"):
        value = getattr(options, name)
        if not (is_whole_number(value) and value >= 1) and (name, value) != ("threads", None):
            raise UserError(f"Invalid {name}: {value!r}. Expected a whole number of at least 1.")
    seconds: Any = options.seconds  # the command line may hold anything
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
        raise UserError(f"Invalid seconds: {seconds!r}. Expected a number above 0.")
    if options.out and not Path(options.out).expanduser().resolve().parent.is_dir():
        raise UserError(f"out={options.out} lies in no directory that exists. Expected a path that can be written.")
    return options


def compare(contenders: Sequence[Contender], options: Options) -> tuple[list[Result], dict[str, str]]:
    """Return what was measured of each contender, and the versions that they ran with.

    Args:
        contenders: in the order of their turns.
        options: of the comparison.

    Raises:
        UserError: a contender refuses the settings, or its process ends.
    """
    settings = Settings(options.data, options.batch_size, options.threads)
    results, versions = [Result(each) for each in contenders], {"cores": str(os.cpu_count())}
    with ExitStack() as stack:
        workers = [stack.enter_context(_Worker(each, settings, options.seconds)) for each in contenders]
        for worker in workers:  # one after the other: each finds its own speed
            versions |= worker.prepare()
        for repeat in range(options.repeats):
            turns = list(zip(workers, results, strict=True))
            first = repeat % len(turns)
            for worker, result in turns[first:] + turns[:first]:
                result.speeds.append(worker.speed())
    return results, versions


class _Worker:
    """Run a contender in a process of its own."""

    def __init__(self, contender: Contender, settings: Settings, seconds: float) -> None:
        self._contender, self._settings, self._seconds = contender, settings, seconds
        self._count = 0

    def __enter__(self) -> _Worker:
        self._errors = tempfile.TemporaryFile("w+")
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)], stdin=pipe, stdout=pipe, stderr=self._errors, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def prepare(self) -> dict[str, str]:
        """Let it prepare and find its speed; return its versions."""
        settings = asdict(self._settings)
        found = self._ask({"key": self._contender.key, "settings": settings, "seconds": self._seconds})
        self._count = int(found["count"])
        return cast(dict[str, str], found["versions"])

    def speed(self) -> float:
        """Let it work, and return how much it did in a second."""
        return self._count / float(self._ask({"count": self._count})["seconds"])

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._errors.seek(0)
            last = self._errors.read().strip().rpartition("\n")[2] or "no message"
            raise UserError(f"The process of '{self._contender.key}' ended: {last}")
        found = json.loads(line)
        if "error" in found:
            raise UserError(found["error"])
        return cast(dict[str, Any], found)


def as_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the figures of each contender: JSON values.

    "median", "lowest" and "highest" are units of work a second; "ratio" is the median, over the repeats, of how many
    times the baseline of its case it did in the same repeat.

    Args:
        results: of contenders; each case has its baseline.
    """
    baselines = {each.contender.case: each.speeds for each in results if each.contender.baseline}
    rows = []
    for each in results:
        ratios = [own / base for own, base in zip(each.speeds, baselines[each.contender.case], strict=True)]
        rows.append(
            {
                "case": each.contender.case,
                "contender": each.contender.name,
                "unit": f"{each.contender.unit}/s",
                "median": statistics.median(each.speeds),
                "lowest": min(each.speeds),
                "highest": max(each.speeds),
                "ratio": statistics.median(ratios),
                "baseline": each.contender.baseline,
                "speeds": each.speeds,
            }
        )
    return rows


def _command(options: Options) -> None:
    contenders = [each for each in find_contenders() if each.what == options.what]
    results, versions = compare(contenders, options)
    rows = as_rows(results)
    if options.out:
        path = Path(options.out).expanduser()
        path.write_text(json.dumps({"options": asdict(options), "versions": versions, "results": rows}, indent=2))
    print_rows(rows, options, versions)


def print_rows(rows: Sequence[Mapping[str, Any]], options: Options, versions: Mapping[str, str]) -> None:
    """Print the versions, and a table for each case.

    Args:
        rows: as `as_rows` returned them.
        options: of the comparison.
        versions: by name.
    """
    from rich.table import Table

    from hooks.monitors.console import open_console

    console = open_console()
    console.print(", ".join(f"{name} {version}" for name, version in versions.items()), soft_wrap=True)
    turns = f"{options.repeats} turns of {options.seconds:g} s each, batches of {options.batch_size}"
    console.print(f"{options.what}, {options.data or 'embedded data'}, {turns}", soft_wrap=True)
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case]
        (base,) = [row["contender"] for row in own if row["baseline"]]
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column(case, no_wrap=True)
        for column in (f"median {own[0]['unit']}", "lowest to highest", f"times '{base}'"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in own:
            spread = f"{row['lowest']:,.1f} to {row['highest']:,.1f}"
            table.add_row(row["contender"], f"{row['median']:,.1f}", spread, f"{row['ratio']:.2f}")
        console.print()
        console.print(table, markup=False)


main = make_main(USAGE, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
