"""Callbacks of Keras that only watch, as a host hook; those that need `model.fit` are refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras

from hookline.trainer.errors import UserError
from hookline.trainer.hook import HostHook
from hookline.trainer.run.results import short_name

if TYPE_CHECKING:
    from hookline.trainer.run.control import Report, Run

INSTEAD = {
    "BackupAndRestore": "Trainer(run_dir=...) and fit(..., resume=True)",
    "EarlyStopping": "hooks=[hookline.hooks.EarlyStopping(patience=...)], and fit(..., restore_best=True)",
    "LearningRateScheduler": "a keras.optimizers.schedules object as the optimizer's learning_rate",
    "ModelCheckpoint": "Trainer(run_dir=...), which keeps the best and the last checkpoint",
    "OrbaxCheckpoint": "Trainer(run_dir=...), which keeps the best and the last checkpoint",
    "ProgbarLogger": "fit(..., verbose=1)",
    "ReduceLROnPlateau": "a keras.optimizers.schedules object as the optimizer's learning_rate",
    "SwapEMAWeights": "hooks=[hookline.hooks.Ema()]",
    "TensorBoard": "Trainer(run_dir=...), which writes TensorBoard's files",
    "TerminateOnNaN": "nothing: a step with NaN changes no variable, and ends the run (hookline.hooks.NanGuard)",
}
"""What takes the place of callbacks that change training, or that look into `model.fit`."""
OF_BATCHES = (
    *("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end"),
    *("on_test_batch_begin", "on_test_batch_end", "on_predict_batch_begin", "on_predict_batch_end"),
)
NAME = "history"


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Refuse callbacks that could not do here what they do in `model.fit`.

    Args:
        callbacks: of Keras.

    Raises:
        UserError: names the callback and what takes its place.
    """
    for each in callbacks:
        if not isinstance(each, keras.callbacks.Callback):
            raise UserError(
                f"callbacks has a {type(each).__name__}. Expected keras.callbacks.Callback objects; hooks go to "
                "Trainer(hooks=...)."
            )
        for kind in type(each).__mro__:
            if kind.__name__ in INSTEAD and kind.__module__.startswith("keras."):
                raise UserError(
                    f"The callback {type(each).__name__} needs what model.fit does inside. Expected in its place: "
                    f"{INSTEAD[kind.__name__]}."
                )
        own = next((name for name in OF_BATCHES if _overrides(each, name)), None)
        if own is not None:
            raise UserError(
                f"The callback {type(each).__name__} has {own}, but steps run inside a traced loop that Python does "
                "not see. Expected stages of epochs alone, or a hook: a HostHook with next_step."
            )


def _overrides(callback: keras.callbacks.Callback, name: str) -> bool:
    return name in vars(callback) or getattr(type(callback), name) is not getattr(keras.callbacks.Callback, name)


class Watch(HostHook):
    """Keep what an epoch reported, and tell callbacks.

    Attributes:
        history: a value an epoch, by the name that Keras gives it.
        epochs: whose values `history` has, from 0 on.
        fits: what the next fit must know of this one: JSON values.
    """

    name = NAME
    priority = 100

    def __init__(
        self, callbacks: Sequence[keras.callbacks.Callback], model: keras.Model | None, names: Mapping[str, str]
    ) -> None:
        """Take callbacks.

        Args:
            callbacks: checked.
            model: that they see, with its latent weights.
            names: what the history calls values of reports, where it is not the short name; "" leaves one out.
        """
        self.callbacks, self.model, self.names = list(callbacks), model, dict(names)
        self.history: dict[str, list[float]] = {}
        self.epochs: list[int] = []
        self.fits: dict[str, Any] = {}
        self._logs: dict[str, float] = {}
        self._validates = False

    def state_dict(self) -> dict[str, Any]:
        history = {key: list(each) for key, each in self.history.items()}
        return {"history": history, "epochs": list(self.epochs), "fit": dict(self.fits)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = {key: list(each) for key, each in state["history"].items()}
        self.epochs = list(state["epochs"])
        self.fits = dict(state["fit"])

    def on_fit_begin(self, run: Run) -> None:
        self._validates = "validation" in run.held_out
        for each in self.callbacks:
            if self.model is not None:
                each.set_model(self.model)
            each.set_params({"epochs": self.fits.get("epochs"), "steps": run.total_steps, "verbose": 0})
        if self.model is not None:
            self.model.stop_training = False
        self._tell("on_train_begin", {})
        self._begin_epoch()

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
        if isinstance(run.error, KeyboardInterrupt):
            self._tell("on_train_end", dict(self._logs))
        elif summary["status"] in ("completed", "stopped"):
            last = {name: values[-1] for name, values in self.history.items() if values}
            self._tell("on_train_end", last)

    def named(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the losses and metrics of a report under the names of Keras.

        Args:
            values: by the names of reports.
        """
        found = {}
        for name, value in values.items():
            short = self.names.get(name, short_name(name))
            if short and (name.endswith("loss/total") or "metric/" in name):
                found[short] = float(value)
        return dict(sorted(found.items(), key=lambda item: not item[0].endswith("loss")))

    def _begin_epoch(self) -> None:
        for each in self.callbacks:
            each.on_epoch_begin(self._epoch, {})

    @property
    def _epoch(self) -> int:
        return self.epochs[-1] + 1 if self.epochs else 0

    def _end_epoch(self, run: Run) -> None:
        epoch, logs = self._epoch, self._logs
        self._logs = {}
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)
        self.epochs.append(epoch)
        for each in self.callbacks:
            each.on_epoch_end(epoch, dict(logs))
        if self.model is not None and self.callbacks and getattr(self.model, "stop_training", False):
            run.control.stop("a callback set model.stop_training")
        if run.step < run.total_steps:
            self._begin_epoch()

    def _tell(self, stage: str, logs: dict[str, float]) -> None:
        for each in self.callbacks:
            getattr(each, stage)(logs)
