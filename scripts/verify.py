"""Check whether a run directory is sound.

python scripts/verify.py run=<run directory> [replay=<steps>]

Every file is read, every hash verified, and files that report the same fact are compared. With replay=<steps>, the last
steps are trained again and must be bit-identical. Nothing is changed.

  run          directory of a run, complete or not
  replay       retrain at least this many steps, from an older checkpoint up to the newest, and compare all variables
  plugins      packages of code that the run uses, such as [my_hooks], if you trust them

Exit code: 0 sound, 1 damaged (one line per damage), 2 the command line is wrong, 130 or 143 interrupted.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import make_main, parse_options
from hookline.train import DONE, FAILED
from hookline.trainer.config.stored import CONFIG_DIGEST, PYTHON, config_digest, read_yaml, recipe_of
from hookline.trainer.errors import UserError, one_line, user_path
from hookline.trainer.files import check_folders, parse_json, read_lines
from hookline.trainer.run import checkpoint_files as files
from hookline.trainer.run.checkpoint_files import Checkpoint, DamagedError, Manifest
from hookline.trainer.run.finished import read_config
from hookline.trainer.run.results import COMPLETE

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run

SHOWN = 3


@dataclass
class Options:
    """The options of the command line."""

    run: str
    replay: int | None = None
    plugins: list[str] = field(default_factory=list)


NAMES = ("config.yaml", "environment.json", "metrics.jsonl", "summary.json", "checkpoints")
CONFIG, ENVIRONMENT, METRICS, SUMMARY, CHECKPOINTS = NAMES
Line = Mapping[str, Any]
Lines = Mapping[tuple[str, int], Line]  # of metrics.jsonl, by split and step


@dataclass
class Findings:
    """The findings in a run directory."""

    damages: list[str] = field(default_factory=list)  # what is wrong, one line each
    notes: list[str] = field(default_factory=list)  # what is worth knowing, but not wrong, one line each
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)  # the sound ones, by name

    def read(self, path: Path) -> dict[str, Any]:
        """Return the dict in a JSON or YAML file; record a damage and return an empty dict if there is none."""
        damage = f"{path} is damaged: it is not what a run writes."
        try:
            content = read_yaml(path) if path.suffix == ".yaml" else files.read_json(path)
            if isinstance(content, dict):
                return content
        except OSError as error:
            damage = f"{path} cannot be read: {error.strerror}."
        except (DamagedError, ValueError) as error:  # the message of a DamagedError is complete
            damage = str(error) if isinstance(error, DamagedError) else damage
        self.damages.append(damage)
        return {}


def examine(directory: Path) -> Findings:
    """Return what is wrong with a run directory; nothing is changed."""
    found = _look(directory)
    if found.damages:  # a run in progress replaces files between two reads; real damage persists
        before, found = set(found.damages), _look(directory)
        found.damages = [each for each in found.damages if each in before]
    return found


def _look(directory: Path) -> Findings:
    """Read every file once and return the findings."""
    if not directory.is_dir() or not any((directory / name).exists() for name in NAMES):
        raise UserError(f"run={directory} is not a run directory. Expected one, with {CONFIG} and {CHECKPOINTS}.")
    found = Findings()
    check_folders(directory, "run")
    config = found.read(directory / CONFIG)
    task = config.get("task")
    try:
        if isinstance(task, dict) and task.get("_target_") != PYTHON:
            recipe_of(str(directory), "run")
    except UserError as error:
        found.damages.append(str(error))
    found.read(directory / ENVIRONMENT)
    hooks = config.get("hooks") or {}
    if not isinstance(hooks, dict):
        found.damages.append(f"{directory / CONFIG} is damaged: its hooks are not what a run writes.")
        hooks = {}
    targets = [node.get("_target_") for node in hooks.values() if isinstance(node, dict)]
    summary = found.read(directory / SUMMARY) if (directory / SUMMARY).exists() else {}
    complete = summary.get("status") in COMPLETE
    if not (directory / SUMMARY).exists():
        found.notes.append(f"There is no {SUMMARY}: the run was killed, or is training.")
    elif summary and not complete:
        found.notes.append(f"The run ended early: {summary.get('status')}.")
    wanted = "hookline.hooks.monitors.metrics_jsonl.MetricsJsonl" in targets
    lines = _metrics(directory / METRICS, found, wanted=wanted, complete=complete)
    index = _checkpoints(directory / CHECKPOINTS, found)
    found.damages += _changed_config(directory / CONFIG, config, found.checkpoints)
    if complete and not found.checkpoints and "hookline.hooks.monitors.checkpoint.Checkpoint" in targets:
        found.damages.append(f"{directory / CHECKPOINTS} holds no sound checkpoint, although the run is complete.")
    if lines is not None:
        found.damages += _report_disagreements(summary, found.checkpoints, lines, complete=complete)
    if complete:
        found.damages += _summary_disagreements(summary, index, found.checkpoints)
    return found


def _changed_config(path: Path, config: Line, checkpoints: Mapping[str, Checkpoint]) -> Iterator[str]:
    """Yield a line if a config differs from the one with which the checkpoints were written."""
    digest = config_digest(config)
    before = {name: each.environment.get(CONFIG_DIGEST, digest) for name, each in checkpoints.items()}
    if changed := [name for name, each in before.items() if config and each != digest]:
        yield (
            f"{path} has changed since {', '.join(changed)} {'was' if len(changed) == 1 else 'were'} written. Restore "
            "it to resume; to start another run from these weights, use init_from=."
        )


def _metrics(path: Path, found: Findings, *, wanted: bool, complete: bool) -> Lines | None:
    """Return the lines by split and step; None if the file cannot be read."""
    try:
        texts = list(read_lines(path))
    except OSError as error:
        if wanted or not isinstance(error, FileNotFoundError):
            found.damages.append(f"{path} cannot be read: {error.strerror}.")
        return None
    lines: dict[tuple[str, int], Line] = {}
    if texts and not texts[-1].endswith("\n") and not complete:
        found.notes.append(f"The last line of {path} is cut off: the run was killed, and drops it when it is resumed.")
        texts.pop()
    for number, text in enumerate(texts, start=1):
        try:
            line = parse_json(text)
            key = (line["split"], line["step"])
            if not (isinstance(key[0], str) and type(key[1]) is int):
                raise TypeError("no report")
        except (ValueError, KeyError, TypeError):
            found.damages.append(f"Line {number} of {path} is damaged.")
            continue
        if key in lines:
            found.damages.append(f"Line {number} of {path} is the second one of {key[0]} at step {key[1]}.")
        lines[key] = line
    return lines


def _checkpoints(directory: Path, found: Findings) -> files.Index | None:
    """Collect the sound checkpoints, and return the index."""
    index, names = None, files.checkpoint_names(directory)
    try:
        index = files.read_index(directory)
    except DamagedError as error:
        found.damages.append(str(error))
    for name in sorted((set() if index is None else index.names) - names):
        found.damages.append(f"{directory / 'index.json'} names {name}, which is not there.")
    for name in sorted(names):
        try:
            found.checkpoints[name] = files.read_checkpoint(files.read_manifest(directory / name))
        except DamagedError as error:
            found.damages.append(str(error))
    found.damages += [f"{path} was set aside: it is damaged." for path in files.set_aside(directory)]
    left = files.leftovers(directory)
    found.notes += [f"{path} was left by a writer: the run was killed, or is training." for path in left]
    return index


def _report_disagreements(
    summary: Line, checkpoints: Mapping[str, Checkpoint], lines: Lines, *, complete: bool
) -> Iterator[str]:
    """Yield a line where metrics.jsonl has other values than a checkpoint or the summary, or fewer reports."""
    states = {f"the state of {name}": each.state for name, each in checkpoints.items()}
    bests = {source: state.get("run", {}).get("best") for source, state in states.items()}
    for source, best in {**bests, SUMMARY: summary.get("best")}.items():
        if isinstance(best, Mapping) and best.get("value") is not None:
            values = [(str(best.get("monitor")), best["value"]), *_items(best.get("values"))]
            yield from _disagreements(source, "validation", best.get("step", 0), values, lines)
    if complete:
        test = [(name, value) for name, value in _items(summary.get("test")) if name != "weights"]
        yield from _disagreements(SUMMARY, "test", summary.get("steps"), test, lines)
        last = max((step for split, step in lines if split == "train"), default=0)
        yield from _disagreements(SUMMARY, "train", last, _items(summary.get("final")), lines)
    for (source, state), checkpoint in zip(states.items(), checkpoints.values(), strict=True):
        reports = state.get("hooks", {}).get("metrics_jsonl", {}).get("reports", 0)  # older runs have none
        there = sum(split != "test" and step <= checkpoint.step for split, step in lines)
        if there < reports:
            yield f"{METRICS} has {there} reports until step {checkpoint.step}, but {source} counts {reports}."


def _disagreements(source: str, split: str, step: Any, values: list[tuple[str, Any]], lines: Lines) -> Iterator[str]:
    """Yield a line for the first value of a split that differs in metrics.jsonl, where non-finite values are null."""
    line = lines.get((split, step)) if isinstance(step, int) else None
    if line is None:
        if values:
            yield f"{METRICS} has no {split} at step {step}, of which {source} gives values."
        return
    for name, value in values:
        if line.get(name) != (None if isinstance(value, float) and not math.isfinite(value) else value):
            yield f"{METRICS} gives {name} {line.get(name)} for {split} at step {step}, but {source} gives {value}."
            return


def _items(part: Any) -> list[tuple[str, Any]]:
    return list(part.items()) if isinstance(part, Mapping) else []


def _summary_disagreements(
    summary: Line, index: files.Index | None, checkpoints: Mapping[str, Checkpoint]
) -> Iterator[str]:
    """Yield a line where the checkpoints of a complete run do not match its summary."""
    tags = {} if index is None else index.tags
    best = summary.get("best")
    steps = {"last": summary.get("steps"), "best": best.get("step") if isinstance(best, Mapping) else None}
    for tag, step in steps.items():
        checkpoint = checkpoints.get(tags.get(tag, ""))
        if checkpoint is None:
            continue
        if checkpoint.step != step:
            yield f"The checkpoint '{tag}' is of step {checkpoint.step}, but {SUMMARY} gives {step}."
        elif tag == "last" and summary.get("digest") not in (None, files.tensors_digest(checkpoint.tensors)):
            yield f"The variables of the checkpoint 'last' are not those whose digest {SUMMARY} gives."


def _command(options: Options) -> int:
    directory = user_path(options.run, "run")
    found = examine(directory)
    for note in found.notes:
        print(f"Note: {one_line(note)}")
    damages = list(found.damages)
    if options.replay is not None and not damages:
        older, newer = choose_pair(directory / CHECKPOINTS, options.replay)
        config = read_config(options.run, options.plugins)
        from hookline.trainer.deferred import quiet_start

        with quiet_start():
            import hookline.trainer.run.session  # noqa: F401 - TensorFlow, whose notices stay off the screen
        damages = replay(config, older, newer)
    elif options.replay is not None:
        print("Note: nothing was trained again, because the run is damaged.")
    for damage in damages:
        print(f"Damaged: {one_line(damage)}")
    if damages:
        return FAILED
    print(f"{directory} is sound; checkpoints: {len(found.checkpoints)}.")
    return DONE


def choose_pair(directory: Path, steps: int) -> tuple[Manifest, Manifest]:
    """Return the nearest checkpoint at least `steps` before the newest one, and the newest one."""
    manifests = sorted(files.read_manifests(directory), key=lambda manifest: manifest.step)
    if not manifests:
        raise UserError(f"{directory} has no checkpoint to replay from. Expected a run with the hook 'checkpoint'.")
    newest = manifests[-1]
    older = [manifest for manifest in manifests if newest.step - manifest.step >= steps]
    if not older:
        distances = sorted({newest.step - manifest.step for manifest in manifests} - {0})
        several = "a run that saved and kept more: hooks.checkpoint.every_seconds=0, with hooks.checkpoint.keep_last"
        known = f"at most {distances[-1]}" if distances else several
        raise UserError(f"No checkpoint lies {steps} steps before the newest one, {newest.step}. Expected {known}.")
    return older[-1], newest


def replay(config: dict[str, Any], older: Manifest, newer: Manifest) -> list[str]:
    """Train from one checkpoint to another; print that the bits match, or return a line on what differs."""
    from hookline.trainer.run.directory import environment
    from hookline.trainer.run.session import prepare
    from hookline.trainer.run.state import assign_variables, changed_replicas, share_variables, values_by_key

    start, end = files.read_checkpoint(older), files.read_checkpoint(newer)
    rates = rate_changes(start, end)
    count = end.state["run"].get("replicas", 1)  # in one process, on as many replicas as the run had at its end
    own = {"strategy": "mirrored", "replicas": count} if count > 1 else {"strategy": "none", "replicas": None}
    run = prepare({**config, "trainer": {**config["trainer"], **own, "placement": "auto"}})
    assign_variables(run.variables, start.tensors, str(older.path))
    share_variables(run.loop.trainers)
    train_again(run, start.step, end.step, rates)
    found = values_by_key(run.variables)
    what, digest = f"Steps {older.step} to {newer.step} give", files.tensors_digest(found)
    bits = {key: (value.shape, value.dtype, value.tobytes()) for key, value in end.tensors.items()}
    differing = [key for key, value in found.items() if bits.get(key) != (value.shape, value.dtype, value.tobytes())]
    if not differing:
        print(f"{what} the same bits again: sha256 {digest}.")
        return []
    now = environment()
    known = {key: (was, now[key]) for key, was in end.environment.items() if key in now}
    changes = [f"{key} was {was} and is {value}" for key, (was, value) in known.items() if was != value]
    if between := changed_replicas(start, run.trainer.replica.count):
        changes.append(between)
    shown = ", ".join(f"'{key}'" for key in differing[:SHOWN])
    more = f" and {len(differing) - SHOWN} others" if len(differing) > SHOWN else ""
    changed = f" Changed since: {'; '.join(changes)}." if changes else ""
    expected = files.tensors_digest(end.tensors)
    return [f"{what} different bits, sha256 {digest} instead of {expected}: {shown}{more} differ.{changed}"]


def rate_changes(start: Checkpoint, end: Checkpoint) -> dict[int, float]:
    """Return {step: factor} for the changes of the learning rates between two checkpoints.

    When a run goes back to a checkpoint, the steps after it and their rate changes are discarded.
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


def train_again(run: Run, step: int, end: int, rates: Mapping[int, float]) -> None:
    """Train the steps again; the metric accumulators restart after each report, as they did in the run."""
    while True:
        if (factor := rates.get(step, 1.0)) != 1.0:
            for network in (network for trainer in run.loop.trainers for network in trainer.networks.values()):
                network.lower_rate(factor)
        if step >= end:
            return
        report = run.cadence.next_report(step)
        edge = min([report, end, *(each for each in rates if each > step)])
        step, vetoes = run.loop.run(step, edge - step)
        step += bool(vetoes)  # a vetoed step, which the run skipped as well, since it got further
        if step == report:
            run.loop.accumulators.reset()


parse = partial(parse_options, make=Options)
main = make_main(__doc__, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
