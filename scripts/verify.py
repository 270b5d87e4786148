"""Say whether a run directory is sound: `python scripts/verify.py run=<run directory>`.

Every file is read, every hash verified, and files that report the same fact are compared. With replay=<steps>, the last
steps are trained again and must give the same bits. Nothing is changed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import make_main, parse_options
from hookline.scripts.findings import CHECKPOINTS, examine
from hookline.train import DONE, FAILED
from hookline.trainer.errors import UserError, one_line, user_path
from hookline.trainer.run.finished import read_config

if TYPE_CHECKING:
    from hookline.trainer.run.checkpoint_files import Checkpoint, Manifest
    from hookline.trainer.run.run import Run

USAGE = """python scripts/verify.py run=<run directory> [replay=<steps>]

  run          directory of a run, complete or not
  replay       train at least so many steps again, from an older checkpoint up to the newest, and compare all variables
  plugins      packages of code that the run uses, such as [my_hooks], if you trust them

Exit code: 0 sound, 1 damaged (a line for each damage), 2 the command line is wrong, 130 interrupted.
"""
SHOWN = 3


@dataclass
class Options:
    """The options; see `USAGE`."""

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
    older, newer = choose_pair(directory / CHECKPOINTS, steps)
    config = read_config(options.run, options.plugins)
    from hookline.trainer.quiet import plain_warnings, quiet_start

    with quiet_start():
        import hookline.trainer.run.session  # noqa: F401 - TensorFlow, whose notices stay off the screen
    with plain_warnings():
        found = replay(config, older, newer)
    what = f"Steps {older.step} to {newer.step} give"
    if not found.differing:
        print(f"{what} the same bits again: sha256 {found.digest}.")
        return []
    shown = ", ".join(f"'{key}'" for key in found.differing[:SHOWN])
    others = len(found.differing) - SHOWN
    more = f" and {others} others" if others > 0 else ""
    changes = f" Changed since: {'; '.join(found.changes)}." if found.changes else ""
    return [f"{what} other bits, sha256 {found.digest} in place of {found.expected}: {shown}{more} differ.{changes}"]


class Replay(NamedTuple):
    """The outcome."""

    expected: str  # sha256 of the newer checkpoint's variables
    digest: str  # of the same variables, trained again
    differing: tuple[str, ...]  # keys of those that are not the same, bit for bit
    changes: list[str]  # how this environment differs from the one that wrote the newer checkpoint


def choose_pair(directory: Path, steps: int) -> tuple[Manifest, Manifest]:
    """Return the newest checkpoint, and the nearest one that lies at least some steps before it."""
    from hookline.trainer.run.checkpoint_files import read_manifests

    manifests = sorted(read_manifests(directory), key=lambda manifest: manifest.step)
    if not manifests:
        raise UserError(f"{directory} has no checkpoint to replay from. Expected a run with the hook 'checkpoint'.")
    newest = manifests[-1]
    older = [manifest for manifest in manifests if newest.step - manifest.step >= steps]
    if not older:
        distances = sorted({newest.step - manifest.step for manifest in manifests} - {0})
        known = f"at most {distances[-1]}" if distances else "a run that kept more than one: hooks.checkpoint.keep_last"
        raise UserError(
            f"No checkpoint lies {steps} steps before the newest one, of step {newest.step}. Expected {known}."
        )
    return older[-1], newest


def replay(config: dict[str, Any], older: Manifest, newer: Manifest) -> Replay:
    """Train from one checkpoint to another, and compare."""
    from hookline.trainer.run.checkpoint_files import read_checkpoint, tensors_digest
    from hookline.trainer.run.directory import environment
    from hookline.trainer.run.resume import changed_replicas
    from hookline.trainer.run.session import prepare
    from hookline.trainer.run.state import VariableValues, assign_variables, share_variables

    start, end = read_checkpoint(older), read_checkpoint(newer)
    rates = rate_changes(start, end)
    count = end.state["run"].get("replicas", 1)  # in one process, on as many replicas as the run had at its end
    own = {"strategy": "mirrored", "replicas": count} if count > 1 else {"strategy": "none", "replicas": None}
    run = prepare({**config, "trainer": {**config["trainer"], **own, "placement": "device"}})
    assign_variables(run.variables, start.tensors, str(older.path))
    share_variables(run.loop.trainers)
    train_again(run, start.step, end.step, rates)
    found = dict(VariableValues(run.variables))
    between = changed_replicas(start, run.trainer.replica.count)
    bits = {key: (value.shape, value.dtype, value.tobytes()) for key, value in end.tensors.items()}
    differing = [key for key, value in found.items() if bits.get(key) != (value.shape, value.dtype, value.tobytes())]
    now = environment()
    known = {key: (was, now[key]) for key, was in end.environment.items() if key in now}
    changes = [f"{key} was {was} and is {value}" for key, (was, value) in known.items() if was != value]
    changes += [between] if between else []
    return Replay(tensors_digest(end.tensors), tensors_digest(found), tuple(differing), changes)


def rate_changes(start: Checkpoint, end: Checkpoint) -> dict[int, float]:
    """Return by what the rates were multiplied where, on the way that led from one checkpoint to another.

    A run that went back to a checkpoint has left the steps behind it, and what it did to its rates there.
    """
    before = len(start.state["run"]["returns"])
    changes: dict[int, float] = {}
    for back in end.state["run"]["returns"][before:]:
        if back["to"] < start.step:
            raise UserError(
                f"The run went back to step {back['to']}, before the checkpoint of step {start.step} that the replay "
                f"would start from. Expected replay= to reach a checkpoint of step {back['to']} or before, or one that "
                "was written since."
            )
        changes = {step: factor for step, factor in changes.items() if step < back["to"]}
        changes[back["to"]] = back["rate_factor"]
    return changes


def train_again(run: Run, step: int, end: int, rates: Mapping[int, float] | None = None) -> None:
    """Make the steps; the sums of the metrics restart after each report, as they did in the run."""
    rates = rates or {}
    _lower_rates(run, rates.get(step, 1.0))
    while step < end:
        report = run.cadence.next_report(step)
        edge = min([report, end, *(each for each in rates if each > step)])
        step, vetoes = run.loop.run(step, edge - step)
        step += bool(vetoes)  # held back, and skipped by the run, too: it got further
        if step == report:
            run.loop.accumulators.reset()
        _lower_rates(run, rates.get(step, 1.0))


def _lower_rates(run: Run, factor: float) -> None:
    if factor != 1.0:
        for trainer in run.loop.trainers:
            for network in trainer.networks.values():
                network.lower_rate(factor)


parse = partial(parse_options, make=Options)
main = make_main(USAGE, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
