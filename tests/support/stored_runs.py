"""Run directories and sweeps as they are on disk, made without training."""

import json
import os

import yaml

from hookline.scripts.comparison.runs import StoredRun

MONITORED = {"monitor": "loss/cross_entropy", "monitor_mode": "min"}
MONITORS = {"progress": {"_target_": "hookline.hooks.monitors.progress.Progress", "lines": 50}}


def config_of(seed=0, rate=0.003, hooks=None, **trainer):
    return {
        "seed": seed,
        "run_dir": None,
        "debug": False,
        "data": {"_target_": "hookline.recipes.data.digits.digits", "seed": 0},
        "model": {"_target_": "hookline.recipes.models.mlp.mlp", "units": [8, 8]},
        "optimizer": {"_target_": "hookline.recipes.optimizers.fused_update.Adam", "learning_rate": rate},
        "schedule": {"_target_": "hookline.trainer.schedules.cosine"},
        "trainer": {"epochs": 2, "batch_size": 64, "threads": None, **MONITORED, **trainer},
        "hooks": {**MONITORS, **(hooks or {})},
    }


def summary_of(accuracy=0.9, loss=0.3, **parts):
    return {
        "recipe": "bnn",
        "status": "completed",
        "seconds": 2.0,
        "final": {"loss/total": 0.1, "metric/accuracy": 1.0},
        "best": {"values": {"loss/cross_entropy": loss, "loss/total": loss, "metric/accuracy": 0.95}},
        "test": {"weights": "best", "loss/total": loss + 0.1, "metric/accuracy": accuracy},
        "params": {"total": 1000, "trainable": 900},
        "bytes": {"float32": 4000, "deployed": 2048},
        **parts,
    }


def job(recipe="bnn", seed=0, accuracy=0.9, loss=0.3, *given, **config):
    """Return a run that is complete; `config` goes to `config_of`."""
    overrides = [f"recipe={recipe}", f"seed={seed}", *given]
    summary = summary_of(accuracy, loss)
    return StoredRun("job 1", recipe, tuple(overrides), config_of(seed, **config), summary, summary["status"])


def failed(recipe="bnn", seed=0, number=1, **config):
    overrides = (f"recipe={recipe}", f"seed={seed}")
    return StoredRun(f"job {number}", recipe, overrides, config_of(seed, **config), {}, "failed (exit code 1)")


def write_run(
    directory, config=None, summary=None, overrides=("recipe=bnn", "seed=0"), *, losses=(1.0, 0.5), written=None
):
    """Write a run; without a summary it is unfinished."""
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(yaml.safe_dump(dict(config or config_of())))
    (directory / "overrides.txt").write_text("".join(f"{each}\n" for each in overrides))
    lines = [
        {"step": 10 * (index + 1), "split": split, "loss/cross_entropy": loss, "metric/accuracy": 1 - loss / 2}
        for index, loss in enumerate(losses)
        for split in ("train", "validation")
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if summary is not None:
        (directory / "summary.json").write_text(json.dumps(summary))
        if written is not None:
            os.utime(directory / "summary.json", (written, written))
    return directory


def write_sweep(directory, *jobs, version=1):
    directory.mkdir(parents=True, exist_ok=True)
    common = {"overrides": [], "status": "waiting", "exit_code": None, "seconds": 0.0}
    whole = [{"number": number, "run": str(number), **common, **each} for number, each in enumerate(jobs, start=1)]
    others = {"flags": [], "threads": None, "trials": None, "space": []}
    (directory / "sweep.json").write_text(json.dumps({"version": version, "jobs": whole, **others}))
    return directory
