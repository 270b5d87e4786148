"""How a trainer of Python runs: choose hooks, start or continue a fit, train, handle interrupts."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hookline.callbacks import NAME as NAME_OF_WATCH
from hookline.callbacks import Watch
from hookline.directory import NAME, Place
from hookline.hook_list import Maker, hook_makers
from hookline.hooks.monitors.console import open_console
from hookline.measures import ACCURACY
from hookline.planning import make_plan, monitored
from hookline.record import read_record, restore_paths, write_record
from hookline.spec import Spec
from hookline.state import State, carry_on
from hookline.trainer.input.data import Data
from hookline.trainer.quiet import plain_warnings
from hookline.trainer.run.assembly import assemble_blueprint
from hookline.trainer.run.process import memory_errors
from hookline.trainer.run.release import released_graphs
from hookline.trainer.run.resume import restore_fit
from hookline.trainer.run.session import build_fit, run_fit
from hookline.trainer.run.start_time import StartTime


@dataclass(frozen=True)
class Asked:
    """Say what a fit was asked for.

    Attributes:
        data: to train on.
        epochs: of this fit.
        batch_size: examples a step.
        class_weight: by label; None for all alike.
        resume: whether to continue from a checkpoint on disk.
        writes: whether it may use the run directory.
    """

    data: Data
    epochs: int
    batch_size: int
    class_weight: Mapping[int, float] | None = None
    resume: bool = False
    writes: bool = True


@dataclass
class Runner:
    """Run what a trainer was given.

    Attributes:
        spec: what is trained.
        given: the hooks that were asked for.
        run_dir: where runs are written; None for nowhere.
    """

    spec: Spec
    given: list[Any]
    run_dir: Path | None

    def set_hooks(self, mode: str | None, *, restore_best: bool = False) -> None:
        """Choose the hooks of the next fit.

        Args:
            mode: of the progress on the screen; None for none.
            restore_best: whether the best weights are kept, also where nothing is written.

        Raises:
            UserError: no such hook.
        """
        given = ["checkpoint", *self.given] if restore_best and self.run_dir is None else self.given
        makers = hook_makers(given, on_disk=self.run_dir is not None, mode=mode)
        names = {} if self.spec.loss is None else {"metric/accuracy": self._accuracy_name()}
        self.spec.makers = {**makers, NAME_OF_WATCH: Maker(NAME_OF_WATCH, lambda: Watch((), None, names), {})}

    def _accuracy_name(self) -> str:
        return next((each for each in self.spec.metrics if isinstance(each, str) and each in ACCURACY), "")

    @contextmanager
    def working(self) -> Iterator[None]:
        """Trace and train as the command line does, and leave the state of the process as it was."""
        python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - what `set_random_seed` sets
        try:
            with plain_warnings(), released_graphs(), memory_errors(), self.spec.as_trained():
                yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002

    def begin(self, stack: ExitStack, asked: Asked, state: State | None) -> State:
        """Return a fit, built and with the state that it continues from.

        Args:
            stack: holds the lock of its directory.
            asked: what is wanted.
            state: how far the trainer is; None before its first fit.

        Raises:
            UserError: a mistake that shows when a run is built.
        """
        spec, data, started = self.spec, asked.data, StartTime(None)
        config = spec.config()
        directory = self.run_dir if asked.writes else None
        place = Place(directory, config, resume=asked.resume, goes_on=state is not None)
        checkpoint = place.open(stack)
        if checkpoint is not None and state is None:
            restore_paths(read_record(place.directory), spec.models)
        before = None if asked.resume else state
        known = before.watch.fits if before else place.known(checkpoint)
        plan = make_plan(data, asked.epochs, asked.batch_size, known, step=before.step if before else None)
        if asked.class_weight is not None:
            plan.class_weights = {int(label): weight for label, weight in asked.class_weight.items()}
        if state is not None:
            spec.renew_optimizers(state.trainer)
        parts = assemble_blueprint(spec.blueprint(data, plan))
        settings = {**spec.fit_settings(plan), **monitored(spec.settings, parts)}
        whole = {**config, "run_dir": str(place.directory), "trainer": settings}
        fit = build_fit(whole, NAME, parts, place.directory, place.store, started)
        if place.make(stack, config=config):
            write_record(place.directory, spec)
        if checkpoint is not None:
            restore_fit(fit, checkpoint)
        elif before is not None:
            carry_on(before, fit, same_data=plan.epochs_before > 0)
        watch = next(each for each in parts.host_hooks if isinstance(each, Watch))
        watch.fits = {**plan.as_json(data), "epochs": asked.epochs}
        return State(parts.trainer, parts.hooks, watch, fit.variables, parts, fit)

    def train(self, state: State, *, quiet: bool) -> dict[str, Any]:
        """Train, and return the summary; Ctrl-C ends it in good order.

        Args:
            state: as `begin` returned it.
            quiet: whether nothing is said of an interrupt.
        """
        fit, parts = state.fit, state.parts
        assert fit is not None
        assert parts is not None
        try:
            return run_fit(fit, parts, writes=self.run_dir is not None).summary
        except KeyboardInterrupt as error:
            if getattr(error, "signal_number", signal.SIGINT) == signal.SIGTERM:
                raise
            line = f"Stopped after step {fit.run.step:,} of {fit.run.total_steps:,}: what was trained is kept."
            if not quiet:
                open_console().print(line, soft_wrap=True)
            return {"status": "interrupted", "stop_reason": line, "steps": fit.run.step, "final": dict(fit.final)}
