"""Whether a run was held up by its input, where the time went, and what would help."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from trainer.input.batches import QUEUE, TrainingBatches
from trainer.run.control import Run
from trainer.run.results import format_bytes, format_share

BOUND = 0.1
"""From this share of the training time on, waiting is worth a remedy."""
WORTH_SECONDS = 0.5
"""A run that waited less in all is left alone: to find out why takes as long."""
REPEATS, ENOUGH_SECONDS = 5, 0.5
"""How often a part of a batch is made again, and after how long once is enough."""
TAKEN = 64
"""How many batches are taken from a queue to see how long it takes for one."""
THREADS_PAY_SECONDS = 1e-3
"""Shorter steps were slower with several threads: these take longer to come together than they save."""
ORDER, READING, AUGMENTATION = "order", "reading", "augmentation"


def judge_input(run: Run, *, measure: bool) -> dict[str, Any]:
    """Return what `summary.json` says of the input.

    Args:
        run: at its end.
        measure: whether to make some batches again, where training waited long, to see which part takes the time.

    Returns:
        "placement"; "waiting_share" of the training time, None where no time was taken; "parts", the share of each part
        of making a batch, and "advice", one line: both None unless training waited and they were measured.
    """
    training, share = run.training, run.waiting_share
    verdict = {"placement": training.placement if training else None, "waiting_share": share and round(share, 4)}
    if training is None or share is None or share < BOUND or run.waited_seconds < WORTH_SECONDS or not measure:
        return {**verdict, "parts": None, "advice": None}
    parts = part_shares(training, run.step)
    settings = run.config.get("trainer", {})
    cores, accelerated = usable_cores(), bool(tf.config.list_logical_devices("GPU"))
    step_seconds, spared_seconds = run.train_seconds / run.timed_steps, None
    if training.placement == "device" and (accelerated or cores > 1):
        spared_seconds = share * step_seconds - queue_seconds(training, run.step)
    return {
        **verdict,
        "parts": {name: round(part, 4) for name, part in parts.items()},
        "advice": advise(
            training,
            parts,
            step_seconds=step_seconds,
            spared_seconds=spared_seconds,
            cores=cores,
            threads=settings.get("threads"),
            cache=run.config.get("data", {}).get("cache"),
            accelerated=accelerated,
        ),
    }


def part_shares(training: TrainingBatches, step: int) -> dict[str, float]:
    """Return the share of each part of making a batch, measured: they add up to 1.

    Args:
        training: the batches of a run.
        step: of the batch to make again.
    """
    now = tf.constant(step, tf.int64)
    indices = training.indices(now)
    seconds = {ORDER: _seconds(training.indices, now), READING: _seconds(training.read, indices)}
    if training.augmentation is not None:
        seconds[AUGMENTATION] = max(_seconds(training.drawn, indices, now) - seconds[READING], 0.0)
    total = sum(seconds.values())
    return {name: each / total for name, each in seconds.items()}


def queue_seconds(training: TrainingBatches, step: int) -> float:
    """Return how long a queue on the host takes for a batch when nothing else works, measured.

    In training it has no more of the machine than here: where it takes longer than a step waits for its batch now, it
    would hold the run up.

    Args:
        training: the batches of a run, on the device.
        step: of the first batch to make.
    """
    queue = training.on_host().iterator(step)
    for _ in range(QUEUE):  # while the first is made, others are, too
        next(queue)
    start, count = time.perf_counter(), 0
    while count < TAKEN and time.perf_counter() - start < ENOUGH_SECONDS:
        next(queue)
        count += 1
    return (time.perf_counter() - start) / count


def advise(
    training: TrainingBatches,
    parts: Mapping[str, float],
    *,
    step_seconds: float,
    spared_seconds: float | None,
    cores: int,
    threads: int | None,
    cache: str | None,
    accelerated: bool,
) -> str:
    """Return the remedy for a run that waits for its batches, in one line.

    Args:
        training: the batches of the run.
        parts: share of each part of making a batch.
        step_seconds: of a step, with what it waits.
        spared_seconds: what a queue on the host would take off a step, below 0 where it would take longer; None where
            there can be none, or is one already.
        cores: that this process may use.
        threads: the setting trainer.threads.
        cache: the setting data.cache; None where there is none.
        accelerated: whether there is an accelerator.
    """
    slowest = max(parts, key=lambda name: parts[name])
    held_by = f"Most of a batch's time ({format_share(parts[slowest])}) goes into its {slowest}"
    if threads is not None and threads < cores and step_seconds >= THREADS_PAY_SECONDS:
        return f"{held_by}; trainer.threads={threads} leaves {cores - threads} of {cores} cores idle: try null."
    source = training.split.source
    if slowest == READING and source.host_only:
        remedy = "data.cache keeps what is decoded" if cache == "none" else "give smaller or decoded files"
        return f"{held_by}: {remedy}."
    if slowest == READING and accelerated and training.placement == "host":
        size = format_bytes(source.bytes)
        return (
            f"{held_by}: trainer.placement=device holds the data ({size}) in the accelerator's memory, where it fits."
        )
    if spared_seconds is not None and spared_seconds >= BOUND * step_seconds:
        return f"{held_by}: trainer.placement=host makes batches ahead, on other cores."
    if slowest == AUGMENTATION and training.augmentation is not None:
        names = ", ".join(f"augment.{each.name}" for each in training.augmentation.augments)
        return f"{held_by}: leave out what costs most of {names}, or use more cores."
    if spared_seconds is not None:
        step = f"{1e3 * step_seconds:,.2f} ms"
        return f"{held_by}; at steps of {step}, trainer.placement=host would gain little or nothing."
    return f"{held_by}, with all of {cores} cores in use: more cores, or a larger network for the same batches."


def usable_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _seconds(function: Callable[..., Any], *arguments: tf.Tensor) -> float:
    """Return how long a traced call takes: the median of a few, without the first."""
    traced = tf.function(function, autograph=False).get_concrete_function(*arguments)
    taken: list[float] = []
    while len(taken) <= REPEATS and sum(taken) < ENOUGH_SECONDS:
        start = time.perf_counter()
        for tensor in tf.nest.flatten(traced(*arguments)):
            tensor.numpy()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:] or taken)
