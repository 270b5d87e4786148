"""Where a run's time goes."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from hookline.trainer.hook import HostHook
from hookline.trainer.input.batches import QUEUE, TrainingBatches
from hookline.trainer.run.results import format_bytes, format_share
from hookline.trainer.run.start_time import StartTime

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run

STEP, WAITING = "time/step_ms", "time/waiting_share"
TRAINING, EVALUATION, SAVE, HOOKS = "training", "time/evaluation_ms", "time/save_ms", "time/hooks_ms/"
WATCHING = ("on_chunk_end", "on_evaluation_end")
"""The stages of host hooks between two reports."""
MILLISECONDS = 1000.0


def time_names(hooks: Iterable[HostHook]) -> list[str]:
    """Return the names of the times that training reports."""
    return [WAITING, STEP, EVALUATION, SAVE, *(HOOKS + name for name in _watching(hooks))]


def _watching(hooks: Iterable[HostHook]) -> list[str]:
    """Return the names of the hooks that do something between two reports."""
    return [
        hook.name
        for hook in hooks
        if any(getattr(type(hook), stage) is not getattr(HostHook, stage) for stage in WATCHING)
    ]


@dataclass
class Times:
    """Keep the wall time of a run, by what took it, and break it down for each report.

    In a report, "time/step_ms" is for a step, in the chunks alone, "time/waiting_share" how much of that the steps
    waited for their batches; both are without the first step, which sets everything up, so a report on it alone has
    neither. The others are sums: "time/hooks_ms/<hook>" for each host hook that watches, "time/evaluation_ms" for the
    evaluations of the validation split, and "time/save_ms" for what checkpoints held up the loop, both without what
    hooks did there, and only where there were any. A report comes before the hooks, the evaluation and the checkpoint
    of its own step: they count in the next one.

    Attributes:
        train_seconds: of training chunks, without the first step, evaluation and saving.
        timed_steps: steps made in that time.
        waited_seconds: how much of that time the steps waited for their batches.
        first_step_seconds: of the first step, which pays for set-up and XLA's compilation.
        seconds_per_step: in the latest chunk; None before the first.
        queue: batches that were ready when the latest chunk ended, and how many fit; None without a queue.
        spent: seconds by what took them: `EVALUATION`, `SAVE`, or `HOOKS` with the name of a host hook.
        before: of the run in earlier processes.
        start: the time to the first step.
    """

    train_seconds: float = 0.0
    timed_steps: int = 0
    waited_seconds: float = 0.0
    first_step_seconds: float = 0.0
    seconds_per_step: float | None = None
    queue: tuple[int, int] | None = None
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    before: float = 0.0
    start: StartTime = field(default_factory=StartTime)
    _began: float = field(default_factory=time.monotonic)
    _reported: dict[str, float] = field(default_factory=dict)

    @property
    def elapsed(self) -> float:
        """Return the wall time of the run: training, evaluation and saving, in all its processes."""
        return self.before + time.monotonic() - self._began

    @property
    def waiting_share(self) -> float | None:
        """Return the share of training time that was spent waiting for batches; None while no time was taken."""
        return self.waited_seconds / self.train_seconds if self.train_seconds else None

    @contextmanager
    def taking(self, what: str) -> Iterator[None]:
        """Return a context whose time counts as that of something."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spent[what] += time.perf_counter() - start

    def chunk(self, seconds: float, steps: int, waited: float) -> None:
        """Count a chunk of steps."""
        if self.seconds_per_step is None:
            self.start.end("step")
            self.first_step_seconds = seconds
            self.seconds_per_step = seconds / 10.0  # mostly set-up; the next chunk corrects it
        else:
            self.train_seconds += seconds
            self.timed_steps += steps
            self.waited_seconds += waited
            self.seconds_per_step = seconds / max(1, steps)

    def begin(self) -> None:
        """Count for the first report from now on."""
        self._reported = self._so_far()
        self.start.end("begin")

    def since_last(self, hooks: Iterable[HostHook]) -> dict[str, float]:
        """Return the values of a report, by name, and count from now on for the next."""
        now, before = self._so_far(), self._reported
        self._reported = now
        spent = {name: total - before.get(name, 0.0) for name, total in now.items()}
        values = {}
        if spent[TRAINING]:
            values[WAITING] = spent[WAITING] / spent[TRAINING]
        if spent[STEP]:
            values[STEP] = MILLISECONDS * spent[TRAINING] / spent[STEP]
        values |= {name: MILLISECONDS * spent[name] for name in (EVALUATION, SAVE) if spent.get(name)}
        return values | {HOOKS + name: MILLISECONDS * spent.get(HOOKS + name, 0.0) for name in _watching(hooks)}

    def as_json(self) -> dict[str, Any]:
        """Return what a checkpoint holds of it."""
        own = {"train_seconds": self.train_seconds, "timed_steps": self.timed_steps}
        return {**own, "waited_seconds": self.waited_seconds, "seconds": self.elapsed}

    def put_back(self, stored: Mapping[str, Any]) -> None:
        """Take back what `as_json` returned, in a later process."""
        self.train_seconds, self.timed_steps = stored["train_seconds"], stored["timed_steps"]
        self.waited_seconds, self.before = stored["waited_seconds"], stored["seconds"]

    def _so_far(self) -> dict[str, float]:
        return {WAITING: self.waited_seconds, TRAINING: self.train_seconds, STEP: self.timed_steps, **self.spent}


BOUND = 0.1
"""From this share of the training time on, waiting is worth fixing."""
WORTH_SECONDS = 0.5
"""A run that waited less in total is left alone: finding out why takes as long."""
REPEATS, ENOUGH_SECONDS = 5, 0.5
"""How often a part of a batch is repeated, and the duration above which once is enough."""
TAKEN = 64
"""How many batches are taken from a queue to time one."""
THREADS_PAY_SECONDS = 1e-3
"""Shorter steps were slower with several threads: synchronizing them takes longer than they save."""
ORDER, READING, AUGMENTATION = "order", "reading", "augmentation"


def judge_input(run: Run, *, measure: bool) -> dict[str, Any]:
    """Return what `summary.json` says of the input."""
    training, times, share = run.training, run.times, run.times.waiting_share
    verdict = {"placement": training.placement, "waiting_share": share and round(share, 4)}
    if share is None or share < BOUND or times.waited_seconds < WORTH_SECONDS or not measure:
        return {**verdict, "parts": None, "advice": None}
    parts = part_shares(training, run.step)
    cores, accelerated = usable_cores(), bool(tf.config.list_logical_devices("GPU"))
    step_seconds, spared_seconds = times.train_seconds / times.timed_steps, None
    if training.placement == "device" and (accelerated or cores > 1):
        spared_seconds = share * step_seconds - queue_seconds(training, run.step)
    advice = advise(
        training,
        parts,
        step_seconds=step_seconds,
        spared_seconds=spared_seconds,
        cores=cores,
        threads=run.config.get("trainer", {}).get("threads"),
        cache=run.config.get("data", {}).get("cache"),
        accelerated=accelerated,
    )
    return {**verdict, "parts": {name: round(part, 4) for name, part in parts.items()}, "advice": advice}


def part_shares(training: TrainingBatches, step: int) -> dict[str, float]:
    """Return the share of each part of making a batch, measured: they add up to 1."""
    now = tf.constant(step, tf.int64)
    indices = training.indices(now)
    seconds = {ORDER: _seconds(training.indices, now), READING: _seconds(training.read, indices)}
    if training.augmentation is not None:
        seconds[AUGMENTATION] = max(_seconds(training.drawn, indices, now) - seconds[READING], 0.0)
    total = sum(seconds.values())
    return {name: each / total for name, each in seconds.items()}


def queue_seconds(training: TrainingBatches, step: int) -> float:
    """Return how long a queue on the host takes for a batch when nothing else works, measured.

    In training it has no more of the machine than here: if it takes longer than a step now waits for its batch, it
    would slow the run down.
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
    """Return a line of advice for a run that waits for its batches."""
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
