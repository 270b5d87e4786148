"""Our own runs, as `train.py` makes them: the composed config, the traced loop, the loop over chunks."""

from __future__ import annotations

import math
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.scripts.benchmarks.contender import Done, Settings, Work
from hookline.scripts.benchmarks.training.case import COLOURED, HELD_OUT, LEARNING_RATE, TOTAL, Case, pixels
from hookline.scripts.benchmarks.training.products import products

if TYPE_CHECKING:
    from hookline.train import Job
    from hookline.trainer.run.fit import Fit

CONFIGS = Path(__file__).parent / "configs"
WATCHING = ("progress", "tensorboard", "pictures", "projector", "metrics_jsonl", "checkpoint", "final_table")
"""Of the hooks that every run has, those that work for the user's eyes, or write files."""
BESIDE = ("randomness_guard", "advisor", "early_stopping")
"""Those that do almost nothing between the beginning and the evaluations, but could end the run."""


def ours(settings: Settings, *, case: Case, overrides: Sequence[str] = ()) -> Work:
    """Return steps of a run without files and evaluations."""
    fit = start(settings, case, [f"trainer.evaluate_every_epochs={TOTAL}", *host_hooks(watched=False), *overrides])
    gate = open_gate(fit)

    def work(count: int) -> Done:
        fit.loop.accumulators.reset()
        start = time.perf_counter()
        gate.work(count)
        since_report = fit.loop.accumulators.read()  # nothing, where a report falls on the last step
        seconds = time.perf_counter() - start  # only what is read is done: a GPU may still be at work before
        return Done(seconds, (since_report or fit.final)["loss/total"])

    (network,) = fit.run.networks.values()
    work.facts = {"products": products(network.model)}  # type: ignore[attr-defined]
    return work


def whole_epochs(settings: Settings, *, case: Case, watched: bool) -> Work:
    """Return steps of a run in whole epochs, each with its evaluation."""
    fit = start(settings, case, host_hooks(watched=watched))
    gate, made = open_gate(fit), 0

    def work(count: int) -> Done:
        nonlocal made
        each = fit.run.steps_per_epoch
        steps = math.ceil((made + max(1, round(count / each))) * each) - fit.run.step
        made = round((fit.run.step + steps) / each)
        return Done(gate.work(steps) * count / steps)

    return work


def host_hooks(*, watched: bool) -> list[str]:
    """Return the overrides for all host hooks that work during a run, with a checkpoint at every epoch, or for none."""
    silent = [f"hooks.{name}=null" for name in (*BESIDE, *(() if watched else WATCHING))]
    return [*silent, "hooks.checkpoint.every_seconds=0"] if watched else silent


def open_gate(fit: Fit) -> Any:
    """Start the training of a fit, and return the gate that it waits at."""
    from hookline.scripts.benchmarks.training.gate import Gate

    gate = Gate()
    fit.hooks = [*fit.hooks, gate]
    gate.start(fit.train)
    return gate


def start(settings: Settings, case: Case, overrides: Sequence[str]) -> Fit:
    """Return a fit that is ready to train, as `hookline.trainer.run.session.execute` makes it."""
    from hookline.trainer.run.directory import make_directory
    from hookline.trainer.run.session import build_fit, open_store, prepare
    from hookline.trainer.run.start_time import StartTime

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        job = compose(settings, case, overrides, folder)
        directory = folder / "run"
        make_directory(directory, job.config, job.overrides)
        parts = prepare(job.config)
        fit = build_fit(job.config, job.recipe, parts, directory, open_store(directory, ""), StartTime())
        weakref.finalize(fit, stack.pop_all().close)
    return fit


def compose(settings: Settings, case: Case, overrides: Sequence[str], folder: Path) -> Job:
    """Return the job of a command line of `train.py`."""
    import numpy as np

    from hookline.train import check

    data = folder / "data.npz"
    arrays: dict[str, Any] = {**pixels(settings, case.images)}
    np.savez(data, **arrays)
    name = "cifar10" if case.images == COLOURED else "mnist"
    given = [
        "recipe=baseline",
        f"model={case.model}",
        "schedule=constant",
        f"optimizer.learning_rate={LEARNING_RATE}",
        "data=keras_dataset",
        f"data.name={name}",
        f"data.path={data}",
        f"data.validation_size={HELD_OUT}",
        f"trainer.steps={TOTAL}",
        "trainer.epochs=null",
        f"trainer.batch_size={settings.batch_size}",
        "plugins=[scripts]",
    ]
    set_again = {override.partition("=")[0] for override in overrides}
    kept = [override for override in given if override.partition("=")[0] not in set_again]
    (job,) = check(["--config-dir", str(CONFIGS), *kept, *overrides])
    return job
