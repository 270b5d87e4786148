"""Say whether a run directory is sound: `python scripts/verify.py run=<run directory>`.

Every file is read, every hash verified, and files that report the same fact are compared. With replay=<steps>, the last
steps are trained again and must give the same bits. Nothing is changed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import make_main, parse_options
from hookline.scripts.findings import CHECKPOINTS, examine
from hookline.scripts.replay import Replay, choose_pair, replay
from hookline.train import DONE, FAILED
from hookline.trainer.errors import one_line, user_path
from hookline.trainer.run.finished import read_config

USAGE = """python scripts/verify.py run=<run directory> [replay=<steps>]

  run          directory of a run, complete or not
  replay       train at least so many steps again, from an older checkpoint up to the newest, and compare all variables
  plugins      packages of code that the run uses, such as [my_hooks], if you trust them

Exit code: 0 sound, 1 damaged (a line for each damage), 2 the command line is wrong, 130 interrupted.
"""
SHOWN = 3


@dataclass
class Options:
    """Hold the options; see `USAGE`."""

    run: str
    replay: int | None = None
    plugins: list[str] = field(default_factory=list)


def _command(options: Options) -> int:
    directory = user_path(options.run, "run")
    found = examine(directory)
    for note in found.notes:
        print(f"Note: {one_line(note)}")
    damages = list(found.damages)
    if options.replay is not None and not damages:
        damages = _replay(options, directory, options.replay)
    elif options.replay is not None:
        print("Note: nothing was trained again, because the run is damaged.")
    for damage in damages:
        print(f"Damaged: {one_line(damage)}")
    if damages:
        return FAILED
    print(f"{directory} is sound; checkpoints: {found.checkpoints}.")
    return DONE


def _replay(options: Options, directory: Path, steps: int) -> list[str]:
    """Train again, print the outcome, and return what is damaged."""
    pair = choose_pair(directory / CHECKPOINTS, steps)
    config = read_config(options.run, options.plugins)
    from hookline.trainer.quiet import plain_warnings, quiet_start

    with quiet_start():
        import hookline.trainer.run.session  # noqa: F401 - TensorFlow, whose notices stay off the screen
    with plain_warnings():
        outcome = replay(config, *pair)
    if not outcome.differing:
        print(f"Steps {outcome.start} to {outcome.end} give the same bits again: sha256 {outcome.found}.")
        return []
    return [describe(outcome)]


def describe(outcome: Replay) -> str:
    """Return one line on a replay that gave other bits."""
    shown = ", ".join(f"'{key}'" for key in outcome.differing[:SHOWN])
    others = len(outcome.differing) - SHOWN
    more = f" and {others} others" if others > 0 else ""
    changes = f" Changed since: {'; '.join(outcome.changes)}." if outcome.changes else ""
    return (
        f"Steps {outcome.start} to {outcome.end} give other bits, sha256 {outcome.found} in place of "
        f"{outcome.expected}: {shown}{more} differ.{changes}"
    )


parse = partial(parse_options, make=Options)
main = make_main(USAGE, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
