"""summary.json: the end result of a run, the contract that other tools read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.files import write_whole
from trainer.run.control import Run
from trainer.run.network_summary import NetworkSummary
from trainer.run.size import Size


def build_summary(
    run: Run,
    *,
    status: str,
    reason: str | None,
    seconds: float,
    size: Size,
    networks: Mapping[str, NetworkSummary],
    final: Mapping[str, float],
    test: Mapping[str, Any],
    hooks: Mapping[str, Mapping[str, Any]],
    digest: str | None,
    verdict: Mapping[str, Any],
    precision: Mapping[str, Any],
    replicas: Mapping[str, Any],
    memory: Mapping[str, int | None],
    start: Mapping[str, float] | None,
) -> dict[str, Any]:
    """Return what summary.json holds. Its keys are stable and documented in the README.

    Args:
        run: at its end.
        status: "completed", "stopped" (by a hook), "paused" (out of time), "interrupted", "unsaved" or "failed".
        reason: why it stopped or failed; None when it completed.
        seconds: wall time of training, evaluation and saving.
        size: of all networks together.
        networks: what each network is made of, by name.
        final: the last training report's values.
        test: the test split's values with "weights"; empty when the run did not get there.
        hooks: what each hook adds, by name.
        digest: sha256 of all variables after the last step; None when the run did not get there.
        verdict: of the input, as `judge_input` returns it.
        precision: as `describe_precision` returns it.
        replicas: as `describe_replicas` returns it.
        memory: as `peak_memory_bytes` returns it.
        start: the time to the first step, as `StartTime` gives it; None where no step was made.
    """
    return {
        "recipe": run.recipe,
        "status": status,
        "stop_reason": reason,
        "steps": run.step,
        "epochs": round(run.epoch, 4),
        "seconds": round(seconds, 3),
        "images_per_second": round(run.images_per_second, 1),
        "time_to_first_step": None if start is None else dict(start),
        "peak_memory_bytes": dict(memory),
        "precision": dict(precision),
        "replicas": dict(replicas),
        "input": dict(verdict),
        "final": dict(final),
        "best": run.best.as_json(),
        "test": dict(test),
        "hooks": {name: dict(values) for name, values in hooks.items()},
        **_size(size),
        "digest": digest,
        **_way(run),
        "networks": {name: {**_size(each.size), **each.as_json()} for name, each in networks.items()},
        "run_dir": str(run.directory),
    }


def _way(run: Run) -> dict[str, list[Any]]:
    """Return from which steps the run went on, from which it went back, and what hooks warned of."""
    return {
        "resumed_at": list(run.resumed_at),
        "rolled_back": list(run.rolled_back),
        "warnings": list(run.warnings),
    }


def _size(size: Size) -> dict[str, dict[str, int]]:
    return {
        "params": {"total": size.total, "trainable": size.trainable},
        "bytes": {"float32": size.float32_bytes, "deployed": size.deployed_bytes},
    }


def write_summary(directory: Path, summary: Mapping[str, Any]) -> None:
    """Write summary.json by a temporary name, so that a reader never sees half of it.

    Args:
        directory: the run directory.
        summary: JSON values; NaN and infinity become null, which JSON has no other word for.
    """
    write_whole(directory / "summary.json", json.dumps(_finite(summary), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
