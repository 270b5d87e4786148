"""Time ways to do the same work, side by side: `python scripts/benchmark.py what=input [key=value ...]`.

Each contender has a process of its own, which prepares once. Then the contenders of a case take turns: each repeat runs
all of them once, so that other load on the machine affects all alike. A contender is a small function in
`scripts/benchmarks/`; those of `what=training` in `scripts/benchmarks/training.py`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.benchmarks.contender import Contender, Settings, find_contenders
from hookline.scripts.benchmarks.figures import Result, as_rows, find_peak, print_rows, write_chart
from hookline.scripts.benchmarks.process import Worker, interpreter
from hookline.scripts.command import check_output, make_main, parse_options
from hookline.trainer.errors import UserError, unknown_name, user_path

USAGE = """python scripts/benchmark.py what=<comparison> [key=value ...]

  what          input: batches from arrays in memory, ours and tf.data's; images: from a folder, ours and Keras's;
                training: our runs, Keras's fit, a loop by hand, PyTorch, Larq, TFMOT, and the machine's limit;
                inference: packed binary networks, against the same networks in TensorFlow, ONNX Runtime and LiteRT
  case          one of them, or several: case=lenet_5,cnn; all without it
  contenders    pattern on their names, such as 'hookline*'; several: 'hookline,limit*'
  environments  folder of virtual environments with other frameworks; without it, they are left out. To make it:
                sh scripts/benchmarks/environments.sh <folder>
  data          path of the data, such as mnist.npz; without it, what is embedded or generated
  repeats       how often the contenders take turns
  seconds       how long a contender works in one turn
  batch_size    examples per batch; without it, as the case has it
  threads       of each framework; without it, as many as there are cores, and 1 for inference
  peak          what the device reaches at most, in 10^12 floating-point operations a second, such as 19.5; without it,
                as published for the GPU, or else as measured
  out           file for the figures as JSON
  chart         file for the figures as a bar chart, such as training.png
"""


@dataclass
class Options:
    """Hold the options; see `USAGE`."""

    what: Literal["input", "images", "training", "inference"]
    case: str = ""
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
    for name in ("seconds", "peak"):
        if getattr(options, name) == 0:
            raise UserError(f"Invalid {name}: 0. Expected a number above 0.")
    for name, ending in (("out", ""), ("chart", ".png")):
        if text := getattr(options, name):
            check_output(name, text, [ending], overwrite=True)
    if options.environments and not user_path(options.environments, "environments").is_dir():
        raise UserError(
            f"environments={options.environments} is not a directory. "
            "Make it with sh scripts/benchmarks/environments.sh <folder>, or leave it out."
        )
    return options


def choose(options: Options) -> list[Contender]:
    """Return the contenders that the options ask for."""
    known = [each for each in find_contenders() if each.what == options.what]
    cases = list(dict.fromkeys(each.case for each in known))
    if options.case and options.case not in cases:  # a name may hold a comma
        wanted = [name.strip() for name in options.case.strip("[]").split(",")]
        for name in wanted:
            if name not in cases:
                raise unknown_name("case", name, cases)
        cases = wanted
    elif options.case:
        cases = [options.case]
    known = [each for each in known if each.case in cases]
    patterns = [pattern.strip() for pattern in options.contenders.split(",")]
    found = [each for each in known if any(fnmatchcase(each.name, pattern) for pattern in patterns)]
    if not found:
        names = ", ".join(dict.fromkeys(f"'{each.name}'" for each in known))
        raise UserError(f"contenders={options.contenders} matches none. Expected patterns on: {names}.")
    return found


def compare(
    contenders: Sequence[Contender], options: Options, tell: Callable[[str], None] = lambda line: None
) -> tuple[list[Result], dict[str, str], dict[str, str]]:
    """Return the measurements of a case's contenders, their versions, and why some were left out."""
    left_out: dict[str, str] = {}

    case = contenders[0].case
    with ExitStack() as stack:
        workers: list[Worker] = []
        for each in contenders:
            if (python := interpreter(each, options.environments)) is None:
                where = f" in {options.environments}" if options.environments else " (see environments= in --help)"
                left_out[each.name] = f"{each.environment} is not installed{where}."
                continue
            settings = Settings(options.data, options.batch_size or each.batch_size, options.threads or each.threads)
            worker, start = stack.enter_context(Worker(each, python, settings, options.seconds)), time.perf_counter()
            try:
                worker.prepare()  # one after the other: each finds its own speed
            except UserError as error:
                left_out[each.name] = str(error)
            else:
                workers.append(worker)
                tell(f"{case}: {each.name} is ready after {time.perf_counter() - start:.1f} s")
        if not workers:
            reasons = " ".join(dict.fromkeys(left_out.values()))
            raise UserError(f"No contender of '{case}' can take part: {reasons}")
        results = [Result(each.contender, [], each.facts, each.settings.batch_size) for each in workers]
        turns = list(zip(workers, results, strict=True))
        for repeat in range(options.repeats):
            first = repeat % len(turns)
            for worker, result in turns[first:] + turns[:first]:
                result.speeds.append(worker.speed())
            tell(f"{case}: turn {repeat + 1} of {options.repeats}")
        versions = {name: version for each in workers for name, version in each.versions.items()}
    return results, {"cores": str(os.cpu_count()), **versions}, left_out


def _command(options: Options) -> None:
    contenders = choose(options)
    _tell(f"{options.what}, {options.data or 'no data given'}, {options.repeats} turns of {options.seconds:g} s each")
    results: list[Result] = []
    versions: dict[str, str] = {}
    left_out: dict[str, dict[str, str]] = {}
    for case in dict.fromkeys(each.case for each in contenders):
        own = [each for each in contenders if each.case == case]
        measured, found, missing = compare(own, options, _tell)
        results += measured
        versions |= found
        left_out |= {case: missing} if missing else {}
        for reason in dict.fromkeys(missing.values()):
            names = ", ".join(f"'{name}'" for name, why in missing.items() if why == reason)
            _tell(f"{case}: left out {names}: {reason}")
    given = None if options.peak is None else 1e12 * options.peak
    peak, origin = find_peak(results, versions.get("accelerators", ""), given)
    rows = as_rows(results, peak)
    report = {"options": asdict(options), "versions": versions, "left_out": left_out, "peak": peak, "results": rows}
    if options.out:
        user_path(options.out, "out").write_text(json.dumps(report, indent=2))
    if options.chart:
        write_chart(rows, user_path(options.chart, "chart"))
    print_rows(rows)
    _tell("\n*: what the others are compared with")
    if any(row["limit"] for row in rows):
        _tell("limit: share of the speed of forward and backward alone")
    if peak:
        _tell(f"peak: share of {peak / 1e9:,.0f} GFLOP/s, {origin}: 2 x products of dense layers and convolutions")
    _tell(", ".join(f"{name} {version}" for name, version in versions.items()))


def _tell(line: str) -> None:
    print(line, flush=True)


main = make_main(USAGE, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
