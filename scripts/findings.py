"""What is wrong with a run directory: files that are missing or cut off, hashes, and files that disagree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookline.trainer.config.stored import CONFIG_DIGEST, OVERRIDES, config_digest, read_yaml
from hookline.trainer.errors import UserError
from hookline.trainer.files import check_folders, parse_json, read_lines, read_text
from hookline.trainer.run.checkpoint_files import (
    Checkpoint,
    DamagedError,
    Index,
    checkpoint_names,
    leftovers,
    read_checkpoint,
    read_index,
    read_json,
    read_manifest,
    set_aside,
    tensors_digest,
)
from hookline.trainer.run.results import COMPLETE

NAMES = ("config.yaml", "environment.json", "metrics.jsonl", "summary.json", "checkpoints")
CONFIG, ENVIRONMENT, METRICS, SUMMARY, CHECKPOINTS = NAMES
Line = Mapping[str, Any]


@dataclass
class Findings:
    """What was found."""

    damages: list[str] = field(default_factory=list)  # what is wrong, a line each
    notes: list[str] = field(default_factory=list)  # what is worth knowing and not wrong, a line each
    checkpoints: int = 0  # how many are sound

    def read(self, path: Path) -> dict[str, Any] | None:
        """Return what a JSON or YAML file holds; None, and a damage, where it holds something else."""
        damage = f"{path} is damaged: it is not what a run writes."
        try:
            content = read_yaml(path) if path.suffix == ".yaml" else read_json(path)
            if isinstance(content, dict):
                return content
        except OSError as error:
            damage = f"{path} cannot be read: {error.strerror}."
        except DamagedError as error:
            damage = str(error)
        except ValueError:
            damage = f"{path} is damaged: it is not YAML that a run writes."
        self.damages.append(damage)
        return None


def examine(directory: Path) -> Findings:
    """Return what is wrong with a run directory; nothing is changed."""
    if not directory.is_dir() or not any((directory / name).exists() for name in NAMES):
        raise UserError(f"run={directory} is not a run directory. Expected one, with {CONFIG} and {CHECKPOINTS}.")
    found = Findings()
    check_folders(directory, "run")
    try:
        read_text(directory / OVERRIDES)
    except (OSError, ValueError) as error:
        found.damages.append(f"{directory / OVERRIDES} cannot be read: {getattr(error, 'strerror', error)}.")
    config = found.read(directory / CONFIG)
    found.read(directory / ENVIRONMENT)
    hooks = (config or {}).get("hooks") or {}
    if not isinstance(hooks, dict):
        found.damages.append(f"{directory / CONFIG} is damaged: its hooks are not what a run writes.")
        hooks = {}
    targets = [node.get("_target_") for node in hooks.values() if isinstance(node, dict)]
    summary = found.read(directory / SUMMARY) if (directory / SUMMARY).exists() else None
    complete = summary is not None and summary.get("status") in COMPLETE
    if summary is None and not (directory / SUMMARY).exists():
        found.notes.append(f"There is no {SUMMARY}: the run was killed, or is training.")
    elif summary is not None and not complete:
        found.notes.append(f"The run ended before its time: {summary.get('status')}.")
    wanted = "hookline.hooks.monitors.metrics_jsonl.MetricsJsonl" in targets
    lines = _metrics(directory / METRICS, found, wanted=wanted, complete=complete)
    index, checkpoints = _checkpoints(directory / CHECKPOINTS, found)
    found.damages += _changed_config(directory / CONFIG, config or {}, checkpoints)
    if complete and not checkpoints and "hookline.hooks.monitors.checkpoint.Checkpoint" in targets:
        found.damages.append(f"{directory / CHECKPOINTS} holds no sound checkpoint, although the run is complete.")
    if lines is not None:
        for name, checkpoint in checkpoints.items():
            best = checkpoint.state.get("run", {}).get("best")
            found.damages += _disagreements(f"the state of {name}", best, lines)
        found.damages += _disagreements(SUMMARY, (summary or {}).get("best"), lines)
    if summary is not None and complete:
        found.damages += _summary_disagreements(summary, index, checkpoints)
    return found


def _changed_config(path: Path, config: Line, checkpoints: Mapping[str, Checkpoint]) -> Iterator[str]:
    """Yield where a config is not the one with which the checkpoints were written."""
    digest = config_digest(config)
    before = {name: each.environment.get(CONFIG_DIGEST, digest) for name, each in checkpoints.items()}
    if changed := [name for name, each in before.items() if config and each != digest]:
        yield (
            f"{path} has changed since {', '.join(changed)} {'was' if len(changed) == 1 else 'were'} written. It must "
            "be as it was to resume; for another run from these weights, use init_from=."
        )


def _metrics(path: Path, found: Findings, *, wanted: bool, complete: bool) -> dict[tuple[str, int], Line] | None:
    """Return the lines by split and step; None if there are none to compare with."""
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


def _checkpoints(directory: Path, found: Findings) -> tuple[Index | None, dict[str, Checkpoint]]:
    """Return the index and the sound checkpoints by name."""
    index, names, sound = None, checkpoint_names(directory), {}
    try:
        index = read_index(directory)
    except DamagedError as error:
        found.damages.append(str(error))
    for name in sorted((set() if index is None else index.names) - names):
        found.damages.append(f"{directory / 'index.json'} names {name}, which is not there.")
    for name in sorted(names):
        try:
            sound[name] = read_checkpoint(read_manifest(directory / name))
        except DamagedError as error:
            found.damages.append(str(error))
    found.damages += [f"{path} was set aside: it is damaged." for path in set_aside(directory)]
    found.notes += [f"{path} was left by a writer that was killed." for path in leftovers(directory)]
    found.checkpoints = len(sound)
    return index, sound


def _disagreements(source: str, best: Any, lines: Mapping[tuple[str, int], Line]) -> Iterator[str]:
    """Yield where metrics.jsonl gives another value for the best step than a checkpoint or the summary."""
    if not isinstance(best, Mapping) or best.get("value") is None:
        return
    step, monitor, value = best.get("step", 0), str(best.get("monitor")), best["value"]
    line = lines.get(("validation", step)) if isinstance(step, int) else None
    if line is None:
        yield f"{METRICS} has no validation at step {step}, which is the best one in {source}."
    elif line.get(monitor) != value:
        yield f"{METRICS} gives {monitor} {line.get(monitor)} at step {step}, but {source} gives {value}."


def _summary_disagreements(summary: Line, index: Index | None, checkpoints: Mapping[str, Checkpoint]) -> Iterator[str]:
    """Yield where the checkpoints of a complete run are not those of its summary."""
    tags = {} if index is None else index.tags
    best = summary.get("best")
    steps = {"last": summary.get("steps"), "best": best.get("step") if isinstance(best, Mapping) else None}
    for tag, step in steps.items():
        checkpoint = checkpoints.get(tags.get(tag, ""))
        if checkpoint is None:
            continue
        if checkpoint.step != step:
            yield f"The checkpoint '{tag}' is of step {checkpoint.step}, but {SUMMARY} gives {step}."
        elif tag == "last" and summary.get("digest") not in (None, tensors_digest(checkpoint.tensors)):
            yield f"The variables of the checkpoint 'last' are not those whose digest {SUMMARY} gives."
