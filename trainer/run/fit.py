"""The loop over chunks: train, report, evaluate, save, and tell the host hooks."""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from trainer.errors import NonFiniteError
from trainer.hook import Hook, HostHook
from trainer.network import Network
from trainer.run.cadence import Cadence
from trainer.run.checkpoint import CheckpointStore
from trainer.run.control import Report, Run
from trainer.run.own_values import own_values
from trainer.run.state import assign_variables, evaluation_keys, read_variables
from trainer.step.evaluate import Evaluator
from trainer.step.loop import ChunkLoop
from trainer.step.stage import in_stage

SPEED = "time/images_per_second"
WAITING = "time/waiting_share"


def report_names(measures: Sequence[str], networks: Mapping[str, Network]) -> list[str]:
    """Return the names of the values of a training report.

    Args:
        measures: names that the step measures.
        networks: of the run, by name.
    """
    return [*measures, *_rate_names(networks).values(), SPEED, WAITING]


def _rate_names(networks: Mapping[str, Network]) -> dict[str, str]:
    """Return what the learning rate of each network that is trained is called."""
    trained = [name for name, network in networks.items() if not network.fixed]
    return {name: "opt/learning_rate" if len(networks) == 1 else f"{name}/opt/learning_rate" for name in trained}


@dataclass
class Fit:
    """Run a built step from its first chunk to the test.

    Attributes:
        run: what host hooks see.
        loop: the traced loop.
        validation: evaluates the validation split.
        test: evaluates the test split.
        hooks: all of them, in order; the stages of a run are the host hooks'.
        cadence: when to come up.
        store: where checkpoints go.
        variables: all that a checkpoint holds, by key.
        seconds: wall time spent in each host hook, by name.
    """

    run: Run
    loop: ChunkLoop
    validation: Evaluator
    test: Evaluator
    hooks: Sequence[Hook]
    cadence: Cadence
    store: CheckpointStore
    variables: dict[str, tf.Variable]
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    final: dict[str, float] = field(default_factory=dict)
    _step_seconds: float | None = None
    _reported: tuple[float, float] = (0.0, 0.0)
    _warned: set[str] = field(default_factory=set)

    @property
    def host_hooks(self) -> list[HostHook]:
        """Return the hooks that watch, in order."""
        return [hook for hook in self.hooks if isinstance(hook, HostHook)]

    def train(self) -> None:
        """Train until the last step, a stop that a hook asks for, or an error."""
        run = self.run
        self.call("on_fit_begin", run)
        while run.step < run.total_steps and run.control.stop_reason is None:
            end = self.cadence.next_edge(run.step, self.host_hooks, self._step_seconds)
            next_report, next_evaluation = self.cadence.next_report(run.step), self.cadence.next_evaluation(run.step)
            self._chunk(end)
            report = self._report() if end == next_report or run.vetoes else None
            self.call("on_chunk_end", run, report)
            if run.vetoes:
                raise NonFiniteError(f"Step {run.step} was held back by {', '.join(run.vetoes)}, and no hook went on.")
            if end == next_evaluation or run.control.evaluate or run.control.stop_reason is not None:
                self._evaluate()
            self._save()

    def finish(self) -> dict[str, Any]:
        """Evaluate the test split once, with the best checkpoint's weights and hook state where there is one.

        Returns:
            The test values by name, with "weights": "best" or "final".
        """
        weights, step = "final", self.run.step
        if "best" in self.store.tags():
            keys = evaluation_keys(self.variables)
            best = self.store.load("best")
            assign_variables({key: self.variables[key] for key in keys}, best.tensors, "the best checkpoint")
            weights, step = "best", best.step
        values = self.test.run(step)  # what holds at some steps only must hold as it did when these weights were saved
        self.call("on_evaluation_end", self.run, Report(self.run.step, "test", values))
        return {"weights": weights, **values}

    def call(self, stage: str, *arguments: Any) -> None:
        """Call a stage of every host hook in order; time each by name."""
        for hook in self.host_hooks:
            start = time.perf_counter()
            try:
                with in_stage(hook, stage, self.run.step):
                    getattr(hook, stage)(*arguments)
            finally:
                self.seconds[hook.name] += time.perf_counter() - start

    def call_all(self, stage: str, *arguments: Any) -> list[Exception]:
        """Call a closing stage of every host hook, also after one of them failed; return the failures."""
        failures: list[Exception] = []
        for hook in self.host_hooks:
            try:
                with in_stage(hook, stage, self.run.step):
                    getattr(hook, stage)(*arguments)
            except Exception as error:  # noqa: BLE001 - the others must still close; the caller raises it
                failures.append(error)
        return failures

    def _chunk(self, end: int) -> None:
        run = self.run
        start, before = time.perf_counter(), run.step
        run.step, run.vetoes = self.loop.run(before, end - before)
        elapsed, steps = time.perf_counter() - start, run.step - before
        if self._step_seconds is None:
            run.first_step_seconds = elapsed
            self._step_seconds = elapsed / 10.0  # mostly set-up; the next chunk corrects it
        else:
            run.train_seconds += elapsed
            run.timed_steps += steps
            run.waited_seconds += self.loop.waited
            self._step_seconds = elapsed / max(1, steps)
        run.queue = None if run.training is None else run.training.queue(run.step)

    def _report(self) -> Report:
        values = self.loop.accumulators.read()
        self.loop.accumulators.reset()
        for network, name in _rate_names(self.run.networks).items():
            values[name] = float(self.run.networks[network].optimizer.learning_rate)
        values[SPEED] = self.run.images_per_second
        values |= self._waiting()
        self.final = values
        self._warn(values)
        return Report(self.run.step, "train", values)

    def _waiting(self) -> dict[str, float]:
        """Return the share of training time since the latest report that was spent waiting for batches, by name.

        Without the first step, which set everything up; a report on it alone has no such value.
        """
        now = (self.run.waited_seconds, self.run.train_seconds)
        waited, seconds = (new - old for new, old in zip(now, self._reported, strict=True))
        self._reported = now
        return {WAITING: waited / seconds} if seconds else {}

    def _warn(self, values: dict[str, float]) -> None:
        for hook in self.hooks:
            if hook.name not in self._warned and (message := self._warning(hook, values)):
                self._warned.add(hook.name)
                warnings.warn(f"At step {self.run.step}, the hook '{hook.name}': {message}", stacklevel=2)

    def _warning(self, hook: Hook, values: dict[str, float]) -> str | None:
        """Return the first warning that a hook has, over the objectives that it takes part in."""
        views = own_values(hook, values, self.loop.trainer.objectives)
        return next((message for view in views if (message := hook.warning(view)) is not None), None)

    def _evaluate(self) -> None:
        run = self.run
        run.control.evaluate = False
        report = Report(run.step, "validation", self.validation.run(run.step))
        run.best.update(report)
        self.call("on_evaluation_end", run, report)

    def _save(self) -> None:
        tags, self.run.control.save_tags = self.run.control.save_tags, set()
        if tags:
            self.call("before_save", self.run)
            host_state = {hook.name: hook.state_dict() for hook in self.host_hooks}
            self.store.save(tags, self.run.step, read_variables(self.variables), host_state)
