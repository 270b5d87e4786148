"""Measure what the recipes reach, against the papers' figures: `python scripts/reproduce.py`.

The runs of each target are made in out/<target>/<variant>_<seed>. It can be killed at any moment and called again:
finished runs stay, interrupted ones resume, failed ones start over. Rows whose runs are complete go to
recipes/results.json and to the table recipes/RESULTS.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import make_main, parse_options, parse_seeds
from hookline.scripts.reproduction.jobs import commands_of
from hookline.scripts.reproduction.session import Session
from hookline.scripts.reproduction.table import CHART, FILE, TABLE, points_of, read_results, write_chart, write_table
from hookline.scripts.reproduction.targets import DATA, Target, read_targets
from hookline.scripts.reproduction.targets import FILE as TARGETS
from hookline.train import say
from hookline.trainer.errors import UserError, unknown_name, user_path

USAGE = """python scripts/reproduce.py [key=value ...]

  out        directory for the runs (reproduction); called again, it makes what is missing
  mnist      the file mnist.npz; without it, targets on MNIST are not run
  cifar10    a folder with train/<class>/<image> and test/<class>/<image>; without it, its targets are not run
  clothing   a folder with a folder of photographs for each class; without it, its targets are not run
  only       names of targets, such as only=bnn,lenet*; without it all, cheap ones first
  seeds      other seeds than the targets', such as seeds=0; rows that lack a seed of theirs are shown, not kept
  jobs       runs at a time (1, so that times are honest)
  results    where rows are kept (recipes/results.json); the table RESULTS.md is written beside it
  targets    what is measured (scripts/reproduction/targets.yaml)
  list       true, or --list: show the targets, their commands and their status; nothing is run
  render     true, or --render: write RESULTS.md and the chart of accuracy and bytes again; nothing is run

Exit code: 0 done, 1 a run failed, 2 a mistake of the user, 130 interrupted.
"""
FLAGS = {"--list": "list=true", "--render": "render=true"}


@dataclass
class Options:
    """The options; see `USAGE`."""

    out: str = "reproduction"
    mnist: str = ""
    cifar10: str = ""
    clothing: str = ""
    only: str = "*"
    seeds: str | None = None
    jobs: int = 1
    results: str = str(FILE)
    targets: str = str(TARGETS)
    list: bool = False
    render: bool = False


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    options = parse_options([FLAGS.get(each, each) for each in arguments], Options)
    for name in ("out", "results", "targets"):
        if not getattr(options, name):
            raise UserError(f"{name}= received. Expected {name}=<path>.")
    return options


def chosen(patterns: str, targets: dict[str, Target]) -> list[Target]:
    """Return the targets that patterns name, in the order of the file."""
    wanted = [pattern.strip() for pattern in (patterns or "*").strip("[] ").split(",")]
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in targets):
            raise unknown_name("target", pattern, targets)
    return [target for name, target in targets.items() if any(fnmatchcase(name, pattern) for pattern in wanted)]


def places_of(options: Options) -> dict[str, Path]:
    """Return where the data lies that was given."""
    places = {}
    for name in DATA:
        if text := getattr(options, name):
            places[name] = path = user_path(text, name).absolute()
            kind = "file" if name == "mnist" else "folder"
            if not (path.is_file() if name == "mnist" else path.is_dir()):
                raise UserError(f"{name}={text} is not an existing {kind}. Expected its path, or none.")
    return places


def _command(options: Options) -> int:
    results, out = user_path(options.results, "results"), user_path(options.out, "out")
    seeds = parse_seeds(options.seeds) if options.seeds is not None else None
    rows = read_results(results)
    if options.render:
        if not rows:
            raise UserError(f"{results} holds no rows. Expected rows of runs; make some without render=true.")
        write_table(results, rows)
        print(f"table: {results.with_name(TABLE)}")
        if points := list(points_of(rows, read_targets(user_path(options.targets, "targets")))):
            chart = CHART if results == FILE else results.with_suffix(".png")
            write_chart(points, chart)
            print(f"chart: {chart}")
        return 0
    if not results.parent.is_dir():
        raise UserError(f"results={results} received, but {results.parent} is not a folder. Expected a file in one.")
    targets = read_targets(user_path(options.targets, "targets"))
    session = Session(
        out=out,
        targets=targets,
        chosen=chosen(options.only, targets),
        seeds=seeds,
        places=places_of(options),
        results=results,
        own_targets=options.targets != str(TARGETS),
        say=say,
    )
    if options.list:
        for target in session.chosen:
            print(f"\n{target.name}: {target.title} ({target.data})\n  {session.standing(target)}")
            for line in commands_of(target, targets, seeds or target.seeds):
                print(f"  {line}")
        return 0
    return session.run(options.jobs)


main = make_main(USAGE, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
