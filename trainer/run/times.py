"""Timing of a run: start-up, time between reports, and waiting for input."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from hookline.trainer.hook import HostHook, Run
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.run.directory import usable_cores
from hookline.trainer.run.results import format_bytes, format_share

COMMAND_FIELD, START_FIELD = ")", 19
"""In /proc/self/stat: the end of the command's name, and the index of the start time after it (proc(5))."""


def process_began() -> float:
    """Return the start time of this process on the clock of `time.monotonic`; the current time if it is unknown."""
    now = time.monotonic()
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(COMMAND_FIELD)[2].split()
        since_boot = int(fields[START_FIELD]) / os.sysconf("SC_CLK_TCK")
        return now - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, ValueError, IndexError, AttributeError):
        return now


STEP, WAITING = "time/step_ms", "time/waiting_share"
TRAINING, EVALUATION, SAVE, HOOKS = "training", "time/evaluation_ms", "time/save_ms", "time/hooks_ms/"
WATCHING = ("on_chunk_end", "on_evaluation_end")
"""The stages of host hooks between two reports."""
MILLISECONDS = 1000.0
TRACE = "trace"


def time_names(hooks: Iterable[HostHook]) -> list[str]:
    """Return the names of the times in training reports."""
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
    """Keep the wall time of a run, by activity, and break it down for each report.

    "time/step_ms" is the mean of a step, and "time/waiting_share" the share of it spent waiting for batches, both
    without the first step. The others are sums since the last report; work at the step of a report itself (hooks,
    evaluation, checkpoint) counts toward the next one.
    """

    train_seconds: float = 0.0  # of chunks, without the first step, evaluation and saving
    timed_steps: int = 0  # steps made in that time
    waited_seconds: float = 0.0  # the part of it spent waiting for batches
    first_step_seconds: float = 0.0  # set-up and XLA's compilation included
    seconds_per_step: float | None = None  # in the latest chunk
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # by EVALUATION, SAVE or HOOKS + <hook>
    before: float = 0.0  # wall time of the run in earlier processes
    start: dict[str, float] = field(default_factory=dict)  # time to the first step, by part
    latest: float = field(default_factory=time.monotonic)  # when the latest of these parts ended
    _began: float = field(default_factory=time.monotonic)
    _reported: dict[str, float] = field(default_factory=dict)

    @property
    def elapsed(self) -> float:
        """Return the wall time of the run: training, evaluation and saving, in all its processes."""
        return self.before + time.monotonic() - self._began

    @property
    def waiting_share(self) -> float | None:
        """Return the share of training time that was spent waiting for batches; None before any time was measured."""
        return self.waited_seconds / self.train_seconds if self.train_seconds else None

    def started(self, part: str) -> None:
        """End a part of the start-up and begin the next; the run's own wall time counts from the end of tracing."""
        now = time.monotonic()
        self.start[part], self.latest = now - self.latest, now
        if part == TRACE:
            self._began = now

    def to_first_step(self) -> dict[str, float] | None:
        """Return the total start-up time as "seconds", and each part by its name; None before the first step."""
        rounded = {name: round(seconds, 3) for name, seconds in self.start.items()}
        return {"seconds": round(sum(self.start.values()), 3), **rounded} if self.first_step_seconds else None

    @contextmanager
    def taking(self, what: str) -> Iterator[None]:
        """Add the time of the block to that of an activity."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spent[what] += time.perf_counter() - start

    def chunk(self, seconds: float, steps: int, waited: float) -> None:
        """Record the time of a chunk of steps."""
        if self.seconds_per_step is None:
            self.started("step")
            self.first_step_seconds = seconds
            self.seconds_per_step = seconds / 10.0  # mostly set-up; the next chunk corrects it
        else:
            self.train_seconds += seconds
            self.timed_steps += steps
            self.waited_seconds += waited
            self.seconds_per_step = seconds / max(1, steps)

    def begin(self) -> None:
        """Start measuring for the first report."""
        self._reported = self._so_far()
        self.started("begin")

    def since_last(self, hooks: Iterable[HostHook]) -> dict[str, float]:
        """Return the times since the last report, by name, and start measuring for the next."""
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
        own = {"train_seconds": self.train_seconds, "timed_steps": self.timed_steps}
        return {**own, "waited_seconds": self.waited_seconds, "seconds": self.elapsed}

    def put_back(self, stored: Mapping[str, Any]) -> None:
        """Restore what `as_json` returned, in a later process."""
        self.train_seconds, self.timed_steps = stored["train_seconds"], stored["timed_steps"]
        self.waited_seconds, self.before = stored["waited_seconds"], stored["seconds"]

    def _so_far(self) -> dict[str, float]:
        return {WAITING: self.waited_seconds, TRAINING: self.train_seconds, STEP: self.timed_steps, **self.spent}


BOUND = 0.1
"""The smallest share of training time at which waiting is worth fixing."""
WORTH_SECONDS = 0.5
"""A run that waited less in total gets no advice: measuring the parts of a batch takes as long."""
REPEATS, ENOUGH_SECONDS = 5, 0.5
"""How often the measurement of a part of a batch is repeated, and the total duration after which it stops early."""
THREADS_PAY_SECONDS = 1e-3
"""Shorter steps were slower with several threads: synchronizing them takes longer than they save."""
ORDER, READING, AUGMENTATION = "order", "reading", "augmentation"


def judge_input(run: Run, *, measure: bool) -> dict[str, Any]:
    """Return the entry "input" of `summary.json`."""
    training, times, share = run.training, run.times, run.times.waiting_share
    verdict = {"placement": training.placement, "waiting_share": share and round(share, 4)}
    if share is None or share < BOUND or times.waited_seconds < WORTH_SECONDS or not measure:
        return {**verdict, "parts": None, "advice": None}
    parts = part_shares(training, run.step)
    return {**verdict, "parts": {name: round(part, 4) for name, part in parts.items()}, "advice": advise(run, parts)}


def part_shares(training: TrainingBatches, step: int) -> dict[str, float]:
    """Measure the share of each part in the time to make a batch; the shares add up to 1."""
    now = tf.constant(step, tf.int64)
    indices = training.indices(now)
    seconds = {ORDER: _seconds(training.indices, now), READING: _seconds(training.read, indices)}
    if training.augmentation is not None:
        seconds[AUGMENTATION] = max(_seconds(training.drawn, indices, now) - seconds[READING], 0.0)
    total = sum(seconds.values())
    return {name: each / total for name, each in seconds.items()}


def advise(run: Run, parts: Mapping[str, float]) -> str:
    """Return a line of advice for a run that waits for its batches."""
    training, config, cores = run.training, run.config, usable_cores()
    source, augmentation = training.split.source, training.augmentation
    threads, cache = config.get("trainer", {}).get("threads"), config.get("data", {}).get("cache")
    accelerated = bool(tf.config.list_logical_devices("GPU"))
    step_seconds = run.times.train_seconds / run.times.timed_steps
    slowest = max(parts, key=lambda name: parts[name])
    if threads is not None and threads < cores and step_seconds >= THREADS_PAY_SECONDS:
        remedy = f"trainer.threads={threads} leaves {cores - threads} of {cores} cores idle: try null"
    elif slowest == READING and source.host_only:
        remedy = "data.cache keeps what is decoded" if cache == "none" else "give smaller or decoded files"
    elif slowest == READING and accelerated and training.placement == "host":
        size = format_bytes(source.bytes)
        remedy = f"trainer.placement=device holds the data ({size}) in the accelerator's memory, if it fits"
    elif training.placement == "device" and (accelerated or cores > 1):
        remedy = "trainer.placement=host makes batches ahead, on other cores; compare the speed"
    elif slowest == AUGMENTATION and augmentation is not None:
        names = ", ".join(f"augment.{each.name}" for each in augmentation.augments)
        remedy = f"leave out what costs most of {names}, or use more cores"
    else:
        remedy = f"all of {cores} cores are in use: use more cores, or a larger network for the same batches"
    return f"Most of a batch's time ({format_share(parts[slowest])}) goes into its {slowest}; {remedy}."


def _seconds(function: Callable[..., Any], *arguments: tf.Tensor) -> float:
    """Return the median duration of a few traced calls, without the first unless it is the only one."""
    traced = tf.function(function, autograph=False).get_concrete_function(*arguments)
    taken: list[float] = []
    while len(taken) <= REPEATS and sum(taken) < ENOUGH_SECONDS:
        start = time.perf_counter()
        for tensor in tf.nest.flatten(traced(*arguments)):
            tensor.numpy()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:] or taken)
