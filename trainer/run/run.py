"""A run: its loop over chunks, its evaluations, and the object that host hooks see."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from hookline.trainer.config.overrides import resume_override
from hookline.trainer.config.schema import TARGET
from hookline.trainer.config.stored import PYTHON
from hookline.trainer.errors import Interrupted, NonFiniteError, UnsavedError, UserError
from hookline.trainer.hook import Hook, HostHook
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import Data
from hookline.trainer.network import Network
from hookline.trainer.run.checkpoint import CheckpointStore, MemoryStore
from hookline.trainer.run.control import Best, Cadence, Control, Interruption, Journal, Report, own_values
from hookline.trainer.run.state import (
    Weights,
    assign_variables,
    roll_back,
    run_state,
    trainer_variables,
    unrepeatable,
    values_by_key,
    weights_reader,
)
from hookline.trainer.run.times import EVALUATION, HOOKS, SAVE, Times, time_names
from hookline.trainer.run.views import HeldOut, Views
from hookline.trainer.run.workers import Workers
from hookline.trainer.step.loop import ChunkLoop, step_graph
from hookline.trainer.step.stage import ask, in_stage
from hookline.trainer.step.trainer import Trainer

SPEED = "time/images_per_second"
LOSS_SCALE = "opt/loss_scale"


@dataclass(eq=False)
class Run:
    """Train, evaluate and save: `build_run` creates it, `fit` and `finish` run it, and host hooks receive it."""

    directory: Path  # while the run trains, it exists and holds config.yaml, unless nothing is written
    recipe: str  # its name, such as "bnn" or "bnn+frozen_mask"
    config: dict[str, Any]  # resolved, as plain dicts and lists
    data: Data
    training: TrainingBatches  # the batches of the training split
    loop: ChunkLoop  # traced, of all replicas of this process
    held_out: Mapping[str, HeldOut]  # evaluations of the splits "validation" and "test", if present
    hooks: list[Hook]  # graph hooks, then host hooks, each in order
    total_steps: int  # of the whole run
    best: Best  # validation value so far
    _store: CheckpointStore  # of the checkpoints
    plan: str = ""  # Markdown: the stages with their hooks, the update ops, the variables
    checkpoint: str = ""  # the tag of the checkpoint that a finished run was restored from
    control: Control = field(default_factory=Control)  # collects the requests of hooks
    step: int = 0  # steps made so far
    times: Times = field(default_factory=Times)  # where the wall time went
    journal: Journal = field(default_factory=Journal)  # what has happened so far
    _workers: Workers = field(default_factory=Workers)  # the other processes of the run; this one is the chief
    _fingerprint: str = ""  # of the data
    _unwritten: set[str] = field(default_factory=set)

    @property
    def trainer(self) -> Trainer:
        """Return the trainer of the first replica, with networks, objectives and graph hooks."""
        return self.loop.trainer

    @property
    def networks(self) -> dict[str, Network]:
        return self.loop.trainer.networks

    @property
    def host_hooks(self) -> list[HostHook]:
        return [hook for hook in self.hooks if isinstance(hook, HostHook)]

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the section `trainer` of the config."""
        return self.config["trainer"]

    @property
    def steps_per_epoch(self) -> float:
        """Return the steps per epoch, which may be fractional."""
        return self.training.steps_per_epoch

    @property
    def is_over(self) -> bool:
        """Return whether no step is left: all are made, or a hook has requested a stop."""
        return self.step >= self.total_steps or self.control.stop_reason is not None

    @property
    def from_checkpoint(self) -> bool:
        """Return whether the run was resumed, or has rolled back."""
        return bool(self.journal.resumed_at or self.journal.rolled_back)

    @property
    def images_per_second(self) -> float:
        """Return training examples per second of training time."""
        times = self.times
        return times.timed_steps * self.training.batch_size / times.train_seconds if times.train_seconds else 0.0

    @property
    def report_names(self) -> list[str]:
        """Return the names of the values of training reports."""
        scale = [] if self.trainer.loss_scale is None else [LOSS_SCALE]
        rates = _rate_names(self.networks).values()
        return [*self.loop.accumulators.names, *rates, *scale, SPEED, *time_names(self.host_hooks)]

    @cached_property
    def variables(self) -> dict[str, tf.Variable]:
        """Return every variable that the run depends on, by key: of the first replica, and the sums of a report."""
        return {"accumulators": self.loop.accumulators.variable, **trainer_variables(self.trainer)}

    @cached_property
    def shipped(self) -> Callable[[int], Weights]:
        """Return a function that reads the weights that evaluation uses."""
        return weights_reader(self.trainer)

    @cached_property
    def views(self) -> Views:
        return Views(self)

    @cached_property
    def cadence(self) -> Cadence:
        every = self.settings["evaluate_every_epochs"], self.settings["report_every_steps"]
        return Cadence(self.total_steps, self.steps_per_epoch, *every, self.training.first_step)

    def graph(self) -> tf.compat.v1.GraphDef:
        """Return the traced step as a graph for visualization."""
        return step_graph(self.loop.graph, [commit.graph for commit in self.trainer.commits], self.variables)

    def fit(self, interruption: Interruption | None = None) -> None:
        """Train until the last step, a stop requested by a hook, an error, a signal or the end of the time budget."""
        interruption = interruption or Interruption(self.settings.get("max_seconds"))
        with interruption.listening():
            self._begin()
            while not self.is_over:
                end = self.cadence.next_edge(self.step, self.host_hooks, self.times.seconds_per_step)
                if self._train_to(end) and (reason := interruption.reason) is not None:
                    self._leave(reason, interruption.signal_number)
            self._workers.check_equal(trainer_variables(self.trainer))

    def evaluate(self, split: str = "validation", step: int | None = None) -> dict[str, float]:
        """Evaluate a held-out split as of a step (None: current), call the host hooks, and return values by name."""
        with self.times.taking(EVALUATION):
            values = self.held_out[split].run(self.step if step is None else step)
        report = Report(self.step, split, values)
        if split == "validation":
            self.best.update(report)
        self.call("on_evaluation_end", report)
        return values

    def finish(self) -> dict[str, Any]:
        """Evaluate the test split once, with the weights and hook state of the best checkpoint if there is one."""
        self.wait_for_checkpoints()
        if (unsaved := self._store.unsaved_text(self.resume_command())) is not None:
            raise UnsavedError(unsaved)
        if "test" not in self.held_out:
            return {}
        step = self.put_best()
        return {"weights": "final" if step is None else "best", **self.evaluate("test", step)}

    def put_best(self) -> int | None:
        """Restore networks and hooks from the best checkpoint, and return its step; None if there is no sound one."""
        best = self._store.best()
        self._store.warn()
        if best is None:
            return None
        own = {key: each for key, each in self.variables.items() if key.startswith(("network/", "hook/"))}
        assign_variables(own, best.tensors, "the best checkpoint")
        return best.step

    def call(self, stage: str, *arguments: Any, closing: bool = False) -> list[Exception]:
        """Call a stage of every host hook in order. If `closing`, call all of them, and return their errors."""
        failures: list[Exception] = []
        for hook in self.host_hooks:
            try:
                with self._timed(hook), in_stage(hook, stage, self.step):
                    getattr(hook, stage)(self, *arguments)
            except Exception as error:
                if not closing:
                    raise
                failures.append(error)
        return failures

    def wait_for_checkpoints(self) -> None:
        """Wait until all checkpoints are on disk, and warn about those that could not be written."""
        self._store.finish()
        self._store.warn()

    def name_what_is_saved(self) -> None:
        """Report the best state on disk as the best, if a better one could not be written."""
        if "best" in self._store.unsaved():
            try:
                self.best.put_back(self._store.load("best").state["run"]["best"])
            except UserError:  # there is none
                self.best.put_back(None)

    def _begin(self) -> None:
        self._store.sweep()
        if self.journal.resumed_at:
            self._workers.take(self.step, self.variables)
        else:
            self.journal.started_from = [line for each in self.networks.values() for line in each.started_from]
        self._advise()
        self.call("on_fit_begin")
        self.times.begin()

    def _train_to(self, end: int) -> bool:
        """Run a chunk of steps and everything due at its end; return whether it reached its end."""
        reports, evaluates = end == self.cadence.next_report(self.step), end == self.cadence.next_evaluation(self.step)
        if (asked := self._workers.run_to(end)) is not None:
            self._leave(*asked)
        start, before = time.perf_counter(), self.step
        with self._workers.watching():
            self.step, self.control.vetoes = self.loop.run(before, end - before)
        self.times.chunk(time.perf_counter() - start, self.step - before, self.loop.waited)
        if self.control.vetoes:
            self._answer_vetoes()
        if self.step < end:
            return False  # a step was skipped; the others of the chunk are still to come
        self.call("on_chunk_end", self._report() if reports else None)
        if "validation" in self.held_out and (evaluates or self.control.stop_reason is not None):
            try:
                self.evaluate()
            except KeyboardInterrupt:  # from a callback, called last: this evaluation may be the best
                self._save()
                raise
        self._save()
        return True

    def _report(self) -> Report:
        values = self.loop.accumulators.read()
        self.loop.accumulators.reset()
        for network, name in _rate_names(self.networks).items():
            values[name] = float(self.networks[network].optimizer.learning_rate)
        if (scale := self.trainer.loss_scale) is not None:
            values[LOSS_SCALE] = float(scale.value)
        values[SPEED] = self.images_per_second
        values |= self.times.since_last(self.host_hooks)
        self.journal.final = values
        self._show_warnings(values)
        return Report(self.step, "train", values)

    def _advise(self) -> None:
        """Warn before training about removed final activations, unrepeatable ops, and what hooks advise against."""
        for name, network in self.networks.items():
            for each in network.final_activations:
                self._warn_once(f"Network '{name}' trains from the logits before its {each}, and is exported with it.")
        for line in unrepeatable(self.loop):
            self._warn_once(line)
        for hook in self.hooks:
            for line in ask(hook, "advise", self, step=self.step):
                self._warn_once(f"The hook '{hook.name}': {line}")

    def _show_warnings(self, values: dict[str, float]) -> None:
        """Show the first warning of each hook, over the objectives that it takes part in."""
        for hook in self.hooks:
            for view in () if hook.name in self.journal.warned else own_values(hook, values, self.trainer.objectives):
                if (message := ask(hook, "warning", view, step=self.step)) is not None:
                    self.journal.warned.append(hook.name)
                    self._warn_once(f"At step {self.step}, the hook '{hook.name}': {message}")
                    break

    def _warn_once(self, line: str) -> None:
        if line not in self.journal.warnings:
            self.journal.warnings.append(line)
            warnings.warn(line, stacklevel=3)

    @contextmanager
    def _timed(self, hook: HostHook) -> Iterator[None]:
        """Measure the time of a hook, and warn once if it cannot write its files."""
        try:
            with self.times.taking(HOOKS + hook.name):
                yield
        except OSError as error:
            if hook.name not in self._unwritten:
                self._unwritten.add(hook.name)
                line = str(error).rstrip(".")
                warnings.warn(f"At step {self.step}, the hook '{hook.name}': {line}. The run continues.", stacklevel=3)

    def _answer_vetoes(self) -> None:
        """Skip the step that was held back, or roll back to a checkpoint, as requested by a hook."""
        try:
            self.call("on_veto")
            if self.control.rate_factor is not None:
                self._roll_back(self.control.rate_factor)
            elif self.control.skip:
                self.step += 1
                self._workers.move(self.step)
            else:
                raise self._held_back("no hook continues without it")
        except NonFiniteError:
            self._report()  # the summary shows the values up to here
            raise
        self.control.skip, self.control.rate_factor, self.control.vetoes = False, None, []

    def _roll_back(self, rate_factor: float) -> None:
        self.wait_for_checkpoints()
        checkpoint = self._store.newest()
        if checkpoint is None:
            raise self._held_back("there is no checkpoint to go back to")
        roll_back(self, checkpoint, rate_factor)
        self._workers.take(self.step, self.variables)
        self.call("on_fit_begin")

    def lower_rates(self, factor: float) -> None:
        """Multiply the learning rate of every network by a factor from now on, in all processes of the run."""
        self.journal.returns.append({"to": self.step, "rate_factor": factor})
        for network in self.trainer.networks.values():
            network.lower_rate(factor)
        self._workers.take(self.step, self.variables)

    def _held_back(self, why: str) -> NonFiniteError:
        return NonFiniteError(f"Step {self.step} was held back by {', '.join(self.control.vetoes)}, and {why}.")

    def _save(self) -> None:
        if self.is_over and self.control.at_end is not None:
            self.control.at_end()
        tags, self.control.save_tags = self.control.save_tags, set()
        if tags:
            hooks = {hook.name: self._state_of(hook) for hook in self.host_hooks}
            with self.times.taking(SAVE):
                self._store.keep_last = self.control.keep_last
                state = {"run": run_state(self), "hooks": hooks}
                self._store.save(tags, self.step, values_by_key(self.variables), state)
        self._store.warn()

    def _state_of(self, hook: HostHook) -> dict[str, Any]:
        """Return a hook's state. If it fails to write its files, warn and request the state once more."""
        state: dict[str, Any] | None = None
        with self._timed(hook):
            state = ask(hook, "state_dict", step=self.step)
        return ask(hook, "state_dict", step=self.step) if state is None else state

    def _leave(self, reason: str, signal_number: int | None) -> NoReturn:
        """Save and end early, without an evaluation, which an uninterrupted run would not make here."""
        self.control.save("last")
        self._save()
        self.wait_for_checkpoints()
        resume = self.resume_command("" if signal_number else " trainer.max_seconds=null")  # it would end there again
        unsaved = self._store.unsaved_text(resume)
        line = f"Ended by {reason} after step {self.step} of {self.total_steps}. "
        if unsaved is not None and signal_number is None:
            raise UnsavedError(line + unsaved)
        raise Interrupted(line + (unsaved or f"Resume with: {resume}"), signal_number)

    def resume_command(self, overrides: str = "") -> str:
        """Return how to resume the run: a command, or a call in Python."""
        if self.config.get("task", {}).get(TARGET) != PYTHON:
            return f"python train.py {resume_override(self.directory)}{overrides}"
        kept = not isinstance(self._store, MemoryStore)
        return "fit(..., resume=True) in Python" + ("" if kept else ", which needs run_dir=; nothing was written")


def _rate_names(networks: Mapping[str, Network]) -> dict[str, str]:
    """Return the name of the learning rate of each trained network."""
    trained = [name for name, network in networks.items() if not network.fixed]
    return {name: "opt/learning_rate" if len(networks) == 1 else f"{name}/opt/learning_rate" for name in trained}
