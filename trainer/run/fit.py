"""The loop over chunks: train, report, evaluate, save, and tell the host hooks."""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import tensorflow as tf

from hookline.trainer.errors import NonFiniteError, UnsavedError, UserError, WriteError
from hookline.trainer.hook import Hook, HostHook
from hookline.trainer.network import Network
from hookline.trainer.run.checkpoint import Store
from hookline.trainer.run.checkpoint_files import tensors_digest
from hookline.trainer.run.control import Cadence, Report, Run, own_values
from hookline.trainer.run.interruption import Interrupted, Interruption
from hookline.trainer.run.resume import roll_back, run_state
from hookline.trainer.run.start_time import StartTime
from hookline.trainer.run.state import VariableValues, assign_variables, evaluation_keys, trainer_variables
from hookline.trainer.run.times import ReportTimes, time_names
from hookline.trainer.run.workers import Workers
from hookline.trainer.step.evaluate import Evaluator
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.returned import ask
from hookline.trainer.step.stage import in_stage
from hookline.trainer.step.trainer import Trainer

SPEED = "time/images_per_second"
LOSS_SCALE = "opt/loss_scale"


def report_names(measures: Sequence[str], trainer: Trainer, hooks: Iterable[HostHook]) -> list[str]:
    """Return the names of the values of training reports."""
    scale = [] if trainer.loss_scale is None else [LOSS_SCALE]
    return [*measures, *_rate_names(trainer.networks).values(), *scale, SPEED, *time_names(hooks)]


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
        validation: evaluates the validation split; None without one.
        test: evaluates the test split; None without one.
        hooks: all of them, in order; the stages of a run are the host hooks'.
        cadence: when to come up.
        store: where checkpoints go.
        variables: all that a checkpoint holds, by key.
        fingerprint: of the data.
        interruption: what asks the run to end before its time.
        seconds: wall time spent in each host hook, by name.
        final: values of the latest training report.
        digest: of all variables after the last step; None before.
        elapsed_before: wall time of this run in earlier processes, in seconds.
        started: the time to the first step; what comes before `train` is in it already.
        warned: names of the hooks whose `warning` has been shown.
        workers: the other processes of the run; this one is the chief.
    """

    run: Run
    loop: ChunkLoop
    validation: Evaluator | None
    test: Evaluator | None
    hooks: Sequence[Hook]
    cadence: Cadence
    store: Store
    variables: dict[str, tf.Variable]
    fingerprint: str = ""
    interruption: Interruption = field(default_factory=Interruption)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    final: dict[str, float] = field(default_factory=dict)
    digest: str | None = None
    elapsed_before: float = 0.0
    started: StartTime = field(default_factory=StartTime)
    workers: Workers = field(default_factory=Workers)
    _began: float = field(default_factory=time.monotonic)
    _step_seconds: float | None = None
    _times: ReportTimes = field(default_factory=ReportTimes)
    warned: set[str] = field(default_factory=set)
    _unwritten: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def host_hooks(self) -> list[HostHook]:
        """Return the hooks that watch, in order."""
        return [hook for hook in self.hooks if isinstance(hook, HostHook)]

    @property
    def elapsed(self) -> float:
        """Return the wall time of the run in seconds: training, evaluation and saving, in all its processes."""
        return self.elapsed_before + time.monotonic() - self._began

    def train(self) -> None:
        """Train until the last step, a stop that a hook asks for, or an error."""
        run = self.run
        run.from_checkpoint = bool(run.resumed_at)
        if run.from_checkpoint:
            self.workers.take(run.step, trainer_variables(self.loop.trainer))
        self._advise()
        self.call("on_fit_begin", run)
        self._times.begin(run, self.seconds)
        self.started.end("begin")
        while run.step < run.total_steps and run.control.stop_reason is None:
            end = self.cadence.next_edge(run.step, self.host_hooks, self._step_seconds)
            next_report, next_evaluation = self.cadence.next_report(run.step), self.cadence.next_evaluation(run.step)
            if (asked := self.workers.run_to(end)) is not None:
                self._leave(*asked)
            self._chunk(end)
            if run.vetoes:
                self._answer_vetoes()
            if run.step < end:
                continue  # a step was left out; the others of the chunk are still to come
            report = self._report() if end == next_report else None
            self.call("on_chunk_end", run, report)
            if end == next_evaluation or run.control.stop_reason is not None:
                self._evaluate()
            self._save()
            if (reason := self.interruption.reason) is not None:
                self._leave(reason, self.interruption.signal_number)
        self.workers.check_equal(trainer_variables(self.loop.trainer))
        self.digest = tensors_digest(VariableValues(self.variables))

    def finish(self) -> dict[str, Any]:
        """Evaluate the test split once, with the best checkpoint's weights and hook state where there is one."""
        self.wait_for_checkpoints()
        if (unsaved := self._unsaved()) is not None:
            raise UnsavedError(unsaved)
        if self.test is None:
            return {}
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
        """Call a stage of every host hook in order; time each by name.

        What a hook cannot write is reported, once for each hook, and training goes on.
        """
        for hook in self.host_hooks:
            with self._timed(hook), in_stage(hook, stage, self.run.step):
                getattr(hook, stage)(*arguments)

    @contextmanager
    def _timed(self, hook: HostHook) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        except (OSError, WriteError) as error:
            self._report_unwritten(hook, error)
        finally:
            self.seconds[hook.name] += time.perf_counter() - start

    def _report_unwritten(self, hook: HostHook, error: OSError | WriteError) -> None:
        if hook.name not in self._unwritten:
            line = str(error).rstrip(".")
            warnings.warn(f"At step {self.run.step}, the hook '{hook.name}': {line}. The run goes on.", stacklevel=3)
        self._unwritten[hook.name] += 1

    def call_all(self, stage: str, *arguments: Any) -> list[Exception]:
        """Call a closing stage of every host hook, also after one of them failed; return the failures.

        What a hook cannot write is reported and no failure: the run is as it was.
        """
        failures: list[Exception] = []
        for hook in self.host_hooks:
            try:
                with in_stage(hook, stage, self.run.step):
                    getattr(hook, stage)(*arguments)
            except (OSError, WriteError) as error:
                self._report_unwritten(hook, error)
            except Exception as error:  # noqa: BLE001 - the others must still close; the caller raises it
                failures.append(error)
        return failures

    def _chunk(self, end: int) -> None:
        run = self.run
        start, before = time.perf_counter(), run.step
        with self.workers.watching():
            run.step, run.vetoes = self.loop.run(before, end - before)
        elapsed, steps = time.perf_counter() - start, run.step - before
        if self._step_seconds is None:
            self.started.end("step")
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
        if (scale := self.loop.trainer.loss_scale) is not None:
            values[LOSS_SCALE] = float(scale.value)
        values[SPEED] = self.run.images_per_second
        values |= self._times.since_last(self.run, self.seconds, self.host_hooks)
        self.final = values
        self._warn(values)
        return Report(self.run.step, "train", values)

    def _advise(self) -> None:
        """Show what hooks see before training, and what networks train without; a run that goes on has shown it."""
        for name, network in self.run.networks.items():
            for each in network.final_activations:
                self._tell(f"Network '{name}' trains from the logits before its {each}, and is exported with it.")
        for hook in self.hooks:
            for line in ask(hook, "advise", self.run, step=self.run.step):
                self._tell(f"The hook '{hook.name}': {line}")

    def _warn(self, values: dict[str, float]) -> None:
        for hook in self.hooks:
            if hook.name not in self.warned and (message := self._warning(hook, values)):
                self.warned.add(hook.name)
                self._tell(f"At step {self.run.step}, the hook '{hook.name}': {message}")

    def _tell(self, line: str) -> None:
        if line not in self.run.warnings:
            self.run.warnings.append(line)
            warnings.warn(line, stacklevel=3)

    def _warning(self, hook: Hook, values: dict[str, float]) -> str | None:
        """Return the first warning that a hook has, over the objectives that it takes part in."""
        views = own_values(hook, values, self.loop.trainer.objectives)
        found = (ask(hook, "warning", view, step=self.run.step) for view in views)
        return next((message for message in found if message is not None), None)

    def _evaluate(self) -> None:
        run = self.run
        if self.validation is None:
            return
        with self._times.evaluation():
            report = Report(run.step, "validation", self.validation.run(run.step))
        run.best.update(report)
        self.call("on_evaluation_end", run, report)

    def _answer_vetoes(self) -> None:
        """Leave out the step that was held back, or go back to a checkpoint, as a hook asks."""
        run = self.run
        try:
            self.call("on_veto", run)
            if run.control.rate_factor is not None:
                self._roll_back(run.control.rate_factor)
            elif run.control.skip:
                run.step += 1
                self.workers.move(run.step)
            else:
                raise self._held_back("no hook went on")
        except NonFiniteError:
            self._report()  # for the summary: how it went until here
            raise
        run.control.skip, run.control.rate_factor, run.vetoes = False, None, []

    def _roll_back(self, rate_factor: float) -> None:
        self.wait_for_checkpoints()
        checkpoint = self.store.newest()
        if checkpoint is None:
            raise self._held_back("there is no checkpoint to go back to")
        roll_back(self, checkpoint, rate_factor)
        self.workers.take(self.run.step, trainer_variables(self.loop.trainer))
        self.run.from_checkpoint = True
        self.call("on_fit_begin", self.run)

    def _held_back(self, why: str) -> NonFiniteError:
        return NonFiniteError(f"Step {self.run.step} was held back by {', '.join(self.run.vetoes)}, and {why}.")

    def _leave(self, reason: str, signal_number: int | None) -> NoReturn:
        """Save and raise, before the run's time; no evaluation, which the whole run would not make."""
        self.run.control.save("last")
        self._save()
        self.wait_for_checkpoints()
        run, unsaved = self.run, self._unsaved()
        line = f"Ended by {reason} after step {run.step} of {run.total_steps}. "
        if unsaved is not None and signal_number is None:
            raise UnsavedError(line + unsaved)
        raise Interrupted(line + (unsaved or f"Go on with: python train.py resume={run.directory}"), signal_number)

    def wait_for_checkpoints(self) -> None:
        """Return when all checkpoints are on disk, and say which could not be written, though it was tried again."""
        self.store.finish()
        self.tell_problems()

    def name_what_is_saved(self) -> None:
        """Let the best evaluation be that of the best state on disk, where a better one could not be written."""
        if "best" in self.store.unsaved():
            try:
                self.run.best.put_back(self.store.load("best").state["run"]["best"])
            except UserError:  # there is none
                self.run.best.put_back(None)

    def _unsaved(self) -> str | None:
        """Return which states are not on disk, why, and what to do; None where all are there."""
        steps = self.store.unsaved()
        if not steps:
            return None
        named = " and ".join(f"'{tag}' (step {step})" for tag, step in steps.items())
        newest = self.store.newest_step()
        there, start = "No checkpoint is on disk", "the start"
        if newest is not None:
            there, start = f"Step {newest} is on disk", f"step {newest}"
        return (
            f"Not saved: {named}: {self.store.reason()}. {there}. Make room, then resume from {start}: "
            f"python train.py resume={self.run.directory}"
        )

    def tell_problems(self) -> None:
        """Warn of each checkpoint that could not be written, or that was found damaged, once."""
        for problem in self.store.problems():
            warnings.warn(problem, stacklevel=2)

    def _save(self) -> None:
        tags, self.run.control.save_tags = self.run.control.save_tags, set()
        if tags:
            hooks = {hook.name: self._state_of(hook) for hook in self.host_hooks}
            with self._times.save():
                self.store.keep_last = self.run.control.keep_last
                state = {"run": run_state(self), "hooks": hooks}
                self.store.save(tags, self.run.step, VariableValues(self.variables), state)
        self.tell_problems()

    def _state_of(self, hook: HostHook) -> dict[str, Any]:
        """Return a hook's state. What it cannot write first is reported; asked once more, it has its state."""
        state: dict[str, Any] | None = None
        with self._timed(hook):
            state = ask(hook, "state_dict", step=self.run.step)
        return ask(hook, "state_dict", step=self.run.step) if state is None else state
