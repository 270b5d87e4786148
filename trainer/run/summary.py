"""summary.json: the ending of a run, and its results."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookline.trainer.files import write_whole
from hookline.trainer.hook import Hook, HostHook
from hookline.trainer.replicas.strategy import NONE, describe_replicas
from hookline.trainer.run.machine import FLOAT32, describe_precision, estimated, peak_memory_bytes
from hookline.trainer.run.network_summary import measure_size, summarize_network
from hookline.trainer.run.run import Run
from hookline.trainer.run.state import answer, shipped_forms
from hookline.trainer.run.times import HOOKS, judge_input


def build_summary(run: Run, ending: Mapping[str, Any], *, failed: bool = False) -> dict[str, Any]:
    """Return what summary.json holds: `ending` and the rest of the keys that trainer/README.md documents."""
    journal, times, trainer, settings = run.journal, run.times, run.trainer, run.settings
    forms = shipped_forms(trainer, run.shipped(run.step))
    unknown: dict[str, Any] = {}
    stored = {name: each.stored_bits for name, each in forms.items()}

    def networks() -> dict[str, Any]:
        return {name: summarize_network(network, forms[name]) for name, network in run.networks.items()}

    return {
        "recipe": run.recipe,
        **ending,
        "steps": run.step,
        "epochs": round(run.epoch, 4),
        "seconds": round(times.elapsed, 3),
        "images_per_second": round(run.images_per_second, 1),
        "time_to_first_step": times.start.summary() if times.first_step_seconds else None,
        "peak_memory_bytes": estimated("The peak of the memory", peak_memory_bytes, unknown),
        "precision": describe_precision(settings.get("precision", FLOAT32), trainer.loss_scale),
        "replicas": describe_replicas(settings.get("strategy", NONE), trainer.replica, run.batch_size),
        "input": judge_input(run, measure=not failed),
        "final": dict(journal.final),
        "best": run.best.as_json(),
        "hooks": {hook.name: _of_hook(hook, run) for hook in run.hooks},
        **measure_size(run.networks.values(), stored).as_json(),
        "started_from": list(journal.started_from),
        "resumed_at": list(journal.resumed_at),
        "rolled_back": list(journal.rolled_back),
        "warnings": list(journal.warnings),
        "networks": estimated("What the networks are made of", networks, unknown),
        "run_dir": str(run.directory),
        **run.workers.summary(),
    }


def _of_hook(hook: Hook, run: Run) -> dict[str, Any]:
    spent = run.times.spent.get(HOOKS + hook.name, 0.0)
    return {**answer(hook, "summary", {}), **({"host_seconds": round(spent, 3)} if isinstance(hook, HostHook) else {})}


def write_summary(directory: Path, summary: Mapping[str, Any]) -> None:
    """Write summary.json whole, with null for what is not finite."""
    write_whole(directory / "summary.json", json.dumps(_finite(summary), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
