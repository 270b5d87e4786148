"""Time ways to do the same work, side by side: `python scripts/benchmark.py what=input [key=value ...]`.

Each contender has a process of its own, which prepares once. Then the contenders of a case take turns: each repeat runs
all of them once, so that other load on the machine affects all alike. A contender is a small function in
`scripts/benchmarks/`; those of `what=training` are in `scripts/benchmarks/training/contenders.py`.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.benchmarks.chart import write_chart
from hookline.scripts.benchmarks.contender import Contender, Settings, find_contenders
from hookline.scripts.benchmarks.figures import Result, as_rows, find_peak, print_rows
from hookline.scripts.benchmarks.process import Worker, interpreter
from hookline.scripts.command import make_main, parse_options
from hookline.trainer.errors import UserError, unknown_name, user_path
from hookline.trainer.input.checks import is_whole_number

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
    """Hold the options of a comparison.

    Attributes:
        what: the comparison.
        case: names of cases, with commas between them; empty for all.
        contenders: patterns on their names, with commas between them.
        environments: folder of virtual environments; empty for none.
        data: path of the data; empty for what is embedded.
        repeats: turns of each contender, at least 1.
        seconds: of a turn, above 0.
        batch_size: examples per batch, at least 1; None for what the case has.
        threads: of each framework, or None.
        peak: 10^12 floating-point operations a second, above 0; None for what is published or measured.
        out: file for the figures; empty for none.
        chart: PNG file for a bar chart; empty for none.
    """

    what: str = ""
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
    texts = ("what", "case", "contenders", "environments", "data", "out", "chart")
    options = parse_options(arguments, Options, texts=texts)
    known = list(dict.fromkeys(each.what for each in find_contenders()))
    if options.what not in known:
        raise unknown_name("comparison", options.what, known)
    for name in ("repeats", "batch_size", "threads"):
        value = getattr(options, name)
        optional = name != "repeats" and value is None
        if not (is_whole_number(value) and value >= 1) and not optional:
            raise UserError(f"Invalid {name}: {value!r}. Expected a whole number of at least 1.")
    for name in ("seconds", "peak"):
        value = getattr(options, name)
        optional = name == "peak" and value is None
        if not optional and (not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf):
            raise UserError(f"Invalid {name}: {value!r}. Expected a number above 0.")
    for name in ("out", "chart"):
        value = getattr(options, name)
        if value and not user_path(value, name).resolve().parent.is_dir():
            raise UserError(f"{name}={value} lies in no directory that exists. Expected a path that can be written.")
    if options.chart and not options.chart.endswith(".png"):
        raise UserError(f"chart={options.chart} received. Expected a file that ends with .png.")
    if options.environments and not user_path(options.environments, "environments").is_dir():
        raise UserError(
            f"environments={options.environments} is no directory. "
            "Make it with sh scripts/benchmarks/environments.sh <folder>, or leave it out."
        )
    return options


def choose(options: Options) -> list[Contender]:
    """Return the contenders that the options ask for."""
    all_of_them = [each for each in find_contenders() if each.what == options.what]
    cases = list(dict.fromkeys(each.case for each in all_of_them))
    wanted = [options.case] if options.case in cases else options.case.strip("[]").split(",")
    for case in wanted if options.case else ():
        if case.strip() not in cases:
            raise unknown_name("case", case.strip(), cases)
    of_cases = [each for each in all_of_them if not options.case or each.case in [case.strip() for case in wanted]]
    patterns = [pattern.strip() for pattern in options.contenders.split(",")]
    found = [each for each in of_cases if any(fnmatchcase(each.name, pattern) for pattern in patterns)]
    if not found:
        names = ", ".join(dict.fromkeys(f"'{each.name}'" for each in of_cases))
        raise UserError(f"contenders={options.contenders} matches none. Expected patterns on: {names}.")
    return found


def compare(
    contenders: Sequence[Contender], options: Options, tell: Callable[[str], None] = lambda line: None
) -> tuple[list[Result], dict[str, str], dict[str, str]]:
    """Return the measurements of a case's contenders, their versions, and why some were left out."""
    left_out: dict[str, str] = {}
    with ExitStack() as stack:
        started: list[Worker] = []
        for each in contenders:
            if (python := interpreter(each, options.environments)) is None:
                left_out[each.name] = _missing(each, options)
                continue
            settings = Settings(options.data, options.batch_size or each.batch_size, options.threads or each.threads)
            started.append(stack.enter_context(Worker(each, python, settings, options.seconds)))
        imported = _able(started, Worker.wait, left_out)
        workers = _able(imported, lambda worker: _prepare(worker, tell), left_out)  # each finds its own speed
        if not workers:
            reasons = " ".join(dict.fromkeys(left_out.values()))
            raise UserError(f"No contender of '{contenders[0].case}' can take part: {reasons}")
        results = [Result(each.contender, facts=each.facts, batch_size=each.settings.batch_size) for each in workers]
        for repeat in range(options.repeats):
            turns = list(zip(workers, results, strict=True))
            first = repeat % len(turns)
            for worker, result in turns[first:] + turns[:first]:
                result.speeds.append(worker.speed())
            tell(f"{contenders[0].case}: turn {repeat + 1} of {options.repeats}")
        versions = {name: version for each in workers for name, version in each.versions.items()}
    return results, {"cores": str(os.cpu_count()), **versions}, left_out


def _able(workers: Sequence[Worker], act: Callable[[Worker], None], left_out: dict[str, str]) -> list[Worker]:
    """Run an action on workers, one after the other, and return those that succeeded; note why the others did not."""
    able = []
    for worker in workers:
        try:
            act(worker)
        except UserError as error:
            left_out[worker.contender.name] = str(error)
        else:
            able.append(worker)
    return able


def _prepare(worker: Worker, tell: Callable[[str], None]) -> None:
    start = time.perf_counter()
    worker.prepare()
    tell(f"{worker.contender.case}: {worker.contender.name} is ready after {time.perf_counter() - start:.1f} s")


def _missing(contender: Contender, options: Options) -> str:
    if not options.environments:
        return f"{contender.environment} is not installed (see environments= in --help)."
    return f"{contender.environment} is not installed in {options.environments}."


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
