"""summary.json, and what hooks add to it."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from hookline.trainer.files import write_whole
from hookline.trainer.hook import Hook
from hookline.trainer.run.control import Run
from hookline.trainer.run.network_summary import NetworkSummary, Size
from hookline.trainer.step.returned import checked

Answer = TypeVar("Answer")


def answer(hook: Hook, stage: str, empty: Answer, *arguments: Any, given: Mapping[str, Any] | None = None) -> Answer:
    """Return the checked result of a hook's stage; if it fails, the empty one, with a warning."""
    try:
        return cast("Answer", checked(hook, stage, getattr(hook, stage)(*arguments), given=given))
    except Exception as error:  # noqa: BLE001 - whatever a user's hook does, the run is trained
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"The hook '{hook.name}', stage {stage}: {reason} Its answer is left out.", stacklevel=3)
        return empty


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
    """Return what summary.json holds. Its keys are stable and documented in the README."""
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
    """Return the steps at which the run resumed, those from which it rolled back, and what hooks warned of."""
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
    """Write summary.json by a temporary name, so that a reader never sees half of it."""
    write_whole(directory / "summary.json", json.dumps(_finite(summary), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
