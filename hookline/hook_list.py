"""The hooks of a trainer: classes, objects, config names, those that every run has, and Keras callbacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras

from hookline.hooks import catalogue
from hookline.trainer.config.schema import TARGET
from hookline.trainer.errors import UserError, check_choice, unknown_name
from hookline.trainer.hook import GraphHook, Hook, HostHook, again
from hookline.trainer.run.blueprint import BINDING, build_hook
from hookline.trainer.run.results import short_name

if TYPE_CHECKING:
    from hookline.trainer.run.control import Report
    from hookline.trainer.run.run import Run

ALWAYS = ("fused_batch_norm", "nan_guard", "randomness_guard", "advisor")
"""Hooks of configs/hooks/default.yaml that every run has."""
CHECKPOINT = "checkpoint"
ON_DISK = ("tensorboard", "pictures", "projector", "metrics_jsonl", CHECKPOINT)
"""Hooks of the same file for runs that have a directory. Early stopping is used only on request."""
WRITERS = ("tensorboard", "pictures", "projector", "metrics_jsonl", "csv", "wandb", "mlflow")
PROGRESS = "progress"


@dataclass(frozen=True)
class Maker:
    """Make a new hook for each fit and each network."""

    name: str  # of the hook
    make: Callable[[], Hook]  # returns a hook that is not built yet
    node: dict[str, Any]  # its entry in config.yaml; arguments that are not plain values are left out
    whole: bool = True  # whether the node has all arguments, so that the hook can be rebuilt from it


def progress_mode(verbose: Any) -> str | None:
    """Return the mode of the hook `progress` for a Keras `verbose` argument; None for no progress."""
    modes = {"auto": "auto", 0: None, 1: "auto", 2: "plain"}
    if not isinstance(verbose, int | str) or verbose not in modes:
        raise UserError(f"verbose={verbose!r} received. Expected 0, 1, 2 or 'auto'.")
    return modes[verbose]


def listed(given: Any) -> list[Any]:
    """Return one or several items as a list; a dict or string is one item."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str | Mapping) else [given]


def hook_makers(
    given: Sequence[Any], *, on_disk: bool, mode: str | None, restore_best: bool = False
) -> dict[str, Maker]:
    """Return the makers of the hooks of a run, by name: those of every run and those given."""
    names = [*ALWAYS, *(ON_DISK if on_disk else (CHECKPOINT,) if restore_best else ())]
    makers = {name: _of_config(name, {}) for name in names}
    if mode is not None:
        makers[PROGRESS] = _of_config(PROGRESS, {"mode": mode})
    own: set[str] = set()
    for each in given:
        for maker in _makers(each, makers):
            if maker.name in own:
                raise UserError(f"hooks has two of the name '{maker.name}'. Expected {{'another': hook}}.")
            own.add(maker.name)
            makers[maker.name] = maker
    if restore_best and (CHECKPOINT not in makers or makers[CHECKPOINT].node.get("keep_best") is False):
        raise UserError("restore_best=True needs the hook 'checkpoint' with keep_best=True. Expected it in hooks.")
    for name in WRITERS if not on_disk else ():
        if name in makers:
            raise UserError(f"The hook '{name}' writes files. Expected Trainer(run_dir=<directory>) with it.")
    return makers


def _makers(given: Any, makers: dict[str, Maker]) -> list[Maker]:
    if isinstance(given, type) and issubclass(given, Hook):
        given = given()
    if isinstance(given, Hook):
        return [_of_object(given)]
    if isinstance(given, str):
        return [_of_config(given, {})]
    if not isinstance(given, Mapping):
        raise UserError(
            f"hooks has an entry of type {type(given).__name__}. Expected hooks such as hookline.hooks.Prune(), names "
            "such as 'bnn_rounding', or {'bnn_rounding': {...}}; {'name': hook} names one."
        )
    found = []
    for name, each in given.items():
        if not isinstance(each, Hook | Mapping | None):
            raise UserError(f"hooks has {{{name!r}: {each!r}}}. Expected a hook, or a dict of options such as {{}}.")
        if each is not None:
            found.append(_of_object(each, str(name)) if isinstance(each, Hook) else _of_config(str(name), each))
        elif makers.pop(name, None) is None:
            raise unknown_name("hook to remove", str(name), makers)
    return found


def _of_config(name: str, options: Mapping[str, Any]) -> Maker:
    """Return the maker of a hook of the catalogue; options with a target are a whole node, as stored by a run."""
    entries = catalogue()
    kind = next((each.name for each in entries.values() if each.target == options.get(TARGET)), name)
    check_choice("hook", kind, entries)
    node = {**({} if TARGET in options else entries[kind].node), **options}
    plugins = [node[TARGET].partition(".")[0]] if entries[kind].plugin else []
    return Maker(name, lambda: build_hook(name, node, plugins=plugins), node)


def _of_object(hook: Hook, name: str = "") -> Maker:
    hook.name = name or hook.name or hook_name(type(hook))
    _, kwargs = hook.given
    node: dict[str, Any] = {TARGET: f"{type(hook).__module__}.{type(hook).__qualname__}"}
    node |= {name: value for name, value in kwargs.items() if _is_plain(value)}
    for key in BINDING if isinstance(hook, GraphHook) else ():
        node.setdefault(key, getattr(hook, key))
    known = any(entry.target == node[TARGET] for entry in catalogue().values())
    whole = not hook.given[0] and all(_is_plain(value) for value in kwargs.values()) and known
    return Maker(hook.name, (lambda: again(hook)) if isinstance(hook, GraphHook) else (lambda: hook), node, whole)


def hook_name(kind: type) -> str:
    """Return the name for a hook of a class: its name in the catalogue, else the class name in snake case."""
    path = f"{kind.__module__}.{kind.__qualname__}"
    known = next((entry.name for entry in catalogue().values() if entry.target == path), None)
    return known or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)


INSTEAD = {
    "BackupAndRestore": "Trainer(run_dir=...) and fit(..., resume=True)",
    "EarlyStopping": "hooks=[hookline.hooks.EarlyStopping(patience=...)], Trainer(monitor='loss/total') for the loss "
    "even where metrics has an accuracy, and fit(..., restore_best=True)",
    "LearningRateScheduler": "a keras.optimizers.schedules object as the optimizer's learning_rate",
    "ModelCheckpoint": "Trainer(run_dir=...), which keeps the best and the last checkpoint",
    "OrbaxCheckpoint": "Trainer(run_dir=...), which keeps the best and the last checkpoint",
    "ProgbarLogger": "fit(..., verbose=1)",
    "ReduceLROnPlateau": "hooks=[hookline.hooks.ReduceOnPlateau(factor=..., patience=...)]",
    "SwapEMAWeights": "hooks=[hookline.hooks.Ema()]",
    "TensorBoard": "Trainer(run_dir=...), which writes TensorBoard's files",
    "TerminateOnNaN": "nothing: a step with NaN changes no variable, and ends the run (hookline.hooks.NanGuard)",
}
"""Replacements for callbacks that change training or depend on the internals of `model.fit`."""
OF_BATCHES = tuple(f"on_{kind}batch_{end}" for kind in ("", "train_", "test_", "predict_") for end in ("begin", "end"))
HISTORY = "history"


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Refuse callbacks that cannot work here as in `model.fit`."""
    for each in callbacks:
        if not isinstance(each, keras.callbacks.Callback):
            raise UserError(f"callbacks has a {type(each).__name__}. Expected keras.callbacks.Callback objects.")
        for kind in type(each).__mro__:
            if kind.__name__ in INSTEAD and kind.__module__.startswith("keras."):
                raise UserError(
                    f"The callback {type(each).__name__} depends on the internals of model.fit. Expected instead: "
                    f"{INSTEAD[kind.__name__]}."
                )
        base = keras.callbacks.Callback
        for name in OF_BATCHES:
            if name in vars(each) or getattr(type(each), name) is not getattr(base, name):
                raise UserError(
                    f"The callback {type(each).__name__} has {name}, but steps run inside a traced loop that Python "
                    "does not see. Expected a callback without methods for batches, or a HostHook with next_step."
                )


class Watch(HostHook):
    """Record the values of each epoch, and pass them to callbacks."""

    name = HISTORY
    priority = 100

    def __init__(self, names: Mapping[str, str]) -> None:
        """Set other names for values of a report; a value with the name "" is left out."""
        self.names = dict(names)
        self.callbacks: list[keras.callbacks.Callback] = []
        self.model: Any = None  # the model that callbacks see; set when a fit begins
        self.history: dict[str, list[float]] = {}  # a value per epoch, by its name in Keras
        self.epochs: list[int] = []  # those that `history` has values of, from 0
        self.fits: dict[str, Any] = {}  # facts that the next fit needs about this one: JSON values
        self._logs: dict[str, float] = {}
        self.as_given: Callable[[], AbstractContextManager[None]] = nullcontext  # entered while callbacks run
        self.optimizer: Any = None  # that trains the model
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
        self.model.stop_training = False
        with self._shown():
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
        with self._shown():
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
        with self._shown():
            self._listeners.on_epoch_end(epoch, dict(logs))
            if self.callbacks and self.model.stop_training:
                run.control.stop("a callback set model.stop_training")
            if run.step < run.total_steps:
                self._listeners.on_epoch_begin(self._epoch)

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Let callbacks see the model as given, with the optimizer that trains it, as in `model.fit`."""
        own = vars(self.model)  # with setattr, Keras would track it
        compiled = {key: own[key] for key in ("optimizer",) if key in own}
        own["optimizer"] = self.optimizer
        try:
            with self.as_given():
                yield
        finally:
            del own["optimizer"]
            own |= compiled
