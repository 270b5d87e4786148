"""Callbacks of Keras that only watch, as a host hook; those that need `model.fit` are refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import keras

from hookline.trainer.errors import UserError
from hookline.trainer.hook import HostHook
from hookline.trainer.run.results import short_name

if TYPE_CHECKING:
    from hookline.trainer.run.control import Report
    from hookline.trainer.run.run import Run

INSTEAD = {
    "BackupAndRestore": "Trainer(run_dir=...) and fit(..., resume=True)",
    "EarlyStopping": "hooks=[hookline.hooks.EarlyStopping(patience=...)], and fit(..., restore_best=True)",
    "LearningRateScheduler": "a keras.optimizers.schedules object as the optimizer's learning_rate",
    "ModelCheckpoint": "Trainer(run_dir=...), which keeps the best and the last checkpoint",
    "OrbaxCheckpoint": "Trainer(run_dir=...), which keeps the best and the last checkpoint",
    "ProgbarLogger": "fit(..., verbose=1)",
    "ReduceLROnPlateau": "hooks=[hookline.hooks.ReduceOnPlateau(factor=..., patience=...)]",
    "SwapEMAWeights": "hooks=[hookline.hooks.Ema()]",
    "TensorBoard": "Trainer(run_dir=...), which writes TensorBoard's files",
    "TerminateOnNaN": "nothing: a step with NaN changes no variable, and ends the run (hookline.hooks.NanGuard)",
}
"""What takes the place of callbacks that change training, or that look into `model.fit`."""
OF_BATCHES = tuple(f"on_{kind}batch_{end}" for kind in ("", "train_", "test_", "predict_") for end in ("begin", "end"))
NAME = "history"


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Refuse callbacks that could not do here what they do in `model.fit`."""
    for each in callbacks:
        if not isinstance(each, keras.callbacks.Callback):
            raise UserError(f"callbacks has a {type(each).__name__}. Expected keras.callbacks.Callback objects.")
        for kind in type(each).__mro__:
            if kind.__name__ in INSTEAD and kind.__module__.startswith("keras."):
                raise UserError(
                    f"The callback {type(each).__name__} needs what model.fit does inside. Expected in its place: "
                    f"{INSTEAD[kind.__name__]}."
                )
        base = keras.callbacks.Callback
        for name in OF_BATCHES:
            if name in vars(each) or getattr(type(each), name) is not getattr(base, name):
                raise UserError(
                    f"The callback {type(each).__name__} has {name}, but steps run inside a traced loop that Python "
                    "does not see. Expected stages of epochs alone, or a hook: a HostHook with next_step."
                )


class Watch(HostHook):
    """Keep what an epoch reported, and pass it on to callbacks."""

    name = NAME
    priority = 100

    def __init__(
        self, callbacks: Sequence[keras.callbacks.Callback], model: keras.Model | None, names: Mapping[str, str]
    ) -> None:
        """Take callbacks and the model that they see. A value of a report that `names` calls "" is left out."""
        self.callbacks, self.model, self.names = list(callbacks), model, dict(names)
        self.history: dict[str, list[float]] = {}  # a value an epoch, by the name that Keras gives it
        self.epochs: list[int] = []  # whose values `history` has, from 0 on
        self.fits: dict[str, Any] = {}  # what the next fit must know of this one: JSON values
        self._logs: dict[str, float] = {}
        self._validates = False
        self._listeners = keras.callbacks.CallbackList()

    def state_dict(self) -> dict[str, Any]:
        return deepcopy({"history": self.history, "epochs": self.epochs, "fit": self.fits})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history, self.epochs, self.fits = deepcopy([state[key] for key in ("history", "epochs", "fit")])

    def on_fit_begin(self, run: Run) -> None:
        self._validates = "validation" in run.held_out
        params = {"epochs": self.fits.get("epochs"), "steps": run.total_steps, "verbose": 0}
        self._listeners = keras.callbacks.CallbackList(self.callbacks, model=self.model, **params)
        if self.model is not None:
            self.model.stop_training = False
        self._listeners.on_train_begin()
        self._listeners.on_epoch_begin(self._epoch)

    def on_chunk_end(self, run: Run, report: Report | None) -> None:
        if report is not None:
            self._logs |= self.named(report.values)
            if not self._validates:
                self._end_epoch(run)

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        if report.split == "validation" and self._logs:
            self._logs |= {f"val_{name}": value for name, value in self.named(report.values).items()}
            self._end_epoch(run)

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        if summary["status"] in ("interrupted", "paused"):
            self._listeners.on_train_end(dict(self._logs))
        elif summary["status"] in ("completed", "stopped"):
            self._listeners.on_train_end({name: values[-1] for name, values in self.history.items() if values})

    def named(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the losses and metrics of a report under the names of Keras."""
        found = {}
        for name, value in values.items():
            short = self.names.get(name, short_name(name))
            if short and (name.endswith("loss/total") or "metric/" in name):
                found[short] = float(value)
        return dict(sorted(found.items(), key=lambda item: not item[0].endswith("loss")))

    @property
    def _epoch(self) -> int:
        return self.epochs[-1] + 1 if self.epochs else 0

    def _end_epoch(self, run: Run) -> None:
        epoch, logs, self._logs = self._epoch, self._logs, {}
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)
        self.epochs.append(epoch)
        self._listeners.on_epoch_end(epoch, dict(logs))
        if self.model is not None and self.callbacks and getattr(self.model, "stop_training", False):
            run.control.stop("a callback set model.stop_training")
        if run.step < run.total_steps:
            self._listeners.on_epoch_begin(self._epoch)
