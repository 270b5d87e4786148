"""The entry point for Python: a trainer for a model in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from hookline.fits import OwnStep, State, begin, first_half, second_half, train
from hookline.hook_list import ALWAYS, HISTORY, ON_DISK, PROGRESS, check_callbacks, listed, progress_mode
from hookline.inputs import Form, evaluation_split, rows_form, training_data
from hookline.optimizers import resolve_optimizers
from hookline.recipes.supervised import MODEL, by_output
from hookline.running import History
from hookline.shipping import Shipped
from hookline.spec import Spec, checked_models, trainer_settings
from hookline.trainer.errors import UserError, check_choice, check_integer, check_number, user_path
from hookline.trainer.input.data import Data, Split
from hookline.trainer.objective import Objective
from hookline.trainer.run.control import Interruption
from hookline.trainer.run.directory import check_initial


class Trainer:
    """Train a Keras model with hooks, evaluate and ship it.

    `fit` trains the variables of the given model in place, as Keras does, and keeps its structure: they are the latent
    weights. `evaluate`, `predict`, `model` and `export` use the shipped weights: masked, quantized or averaged.
    """

    def __init__(
        self,
        model: keras.Model | None = None,
        optimizer: Any = "adam",
        loss: Any = None,
        metrics: Any = None,
        hooks: Any = (),
        *,
        seed: int = 0,
        run_dir: str | Path | None = None,
        init_from: str | Path | None = None,
        loss_weights: Mapping[str, float] | Sequence[float] | None = None,
        networks: Mapping[str, keras.Model] | None = None,
        objectives: Sequence[Objective] = (),
        **settings: Any,
    ) -> None:
        """Store the model and the settings; nothing is built yet.

        Args:
            model: any built Keras 3 model with one output [batch, ...], or several in a dict or list.
            optimizer: a name or a Keras optimizer, also with a schedule; for `networks` a name or {name: optimizer}.
            loss: a name, a `keras.losses.Loss`, or a function (y_true, y_pred) of float32 [batch, ...] that returns
                one value per example; a dict {output: loss} for several outputs. Cross-entropies are computed from
                logits: a final softmax or sigmoid is removed for training, and present in everything that is shipped.
            metrics: names, Keras metrics, or functions as for `loss`; a dict {output: list} for several outputs.
            hooks: hook objects, classes, config names, {name: object} or {name: options}; {name: None} removes a
                default hook. An object is a template: each fit trains with a new copy; host hooks are not copied.
            seed: seeds everything random except the initial weights, which the model already has.
            run_dir: a new directory for checkpoints, curves and summary.json; None writes nothing.
            init_from: a run, or a .keras, .h5 or .safetensors file, to load the initial weights of the first fit from.
            loss_weights: factors of the losses of several outputs, by output name or in a list.
            networks: several models by name, instead of `model`.
            objectives: the objectives that a step minimizes, instead of `loss`.
            **settings: settings of the `trainer` section of a config, such as accumulation_steps=4.

        Raises:
            UserError: an invalid argument; the message is one line. UserError is a ValueError.
        """
        models = checked_models(model, networks)
        _check_given(loss, objectives, networks, seed, init_from)
        self.run_dir = None if run_dir is None else user_path(run_dir, "run_dir")
        self._spec = spec = Spec(
            models,
            resolve_optimizers(optimizer, models),
            int(seed),
            trainer_settings(settings),
            self.run_dir,
            None if init_from is None else str(init_from),
            listed(hooks),
            objectives=list(objectives),
        )
        if loss is not None:
            spec.losses, spec.metrics, spec.loss_weights = by_output(models[MODEL], loss, metrics, loss_weights)
        elif metrics or loss_weights:
            raise UserError("metrics or loss_weights received without loss. Expected objectives that include them.")
        self._spec.choose_hooks(None)
        self._state: State | None = None
        self._kept: Shipped | None = None
        self._fixed = ""  # why training is refused; empty if it is allowed

    def __repr__(self) -> str:
        """Return the networks, the requested hooks, the number of steps, and the run directory."""
        sizes = ", ".join(f"{model.name} ({model.count_params():,} weights)" for model in self._spec.models.values())
        hidden = {*ALWAYS, *ON_DISK, PROGRESS, HISTORY}
        own = ", ".join(name for name in self._spec.makers if name not in hidden) or "none"
        place = "nothing on disk" if self.run_dir is None else f"run_dir={self.run_dir}"
        return f"Trainer({sizes}; hooks: {own}; step {self.step:,}; {place})"

    @property
    def step(self) -> int:
        """Return the number of steps made so far."""
        return 0 if self._state is None else self._state.step

    @property
    def hooks(self) -> dict[str, Any]:
        """Return the hooks in use, by name; empty before the first fit."""
        return {} if self._state is None else {hook.name: hook for hook in self._state.hooks}

    @property
    def history(self) -> dict[str, list[float]]:
        """Return the values of all epochs so far, by name."""
        return {} if self._state is None else dict(self._state.watch.history)

    @property
    def models(self) -> dict[str, keras.Model]:
        """Return the shipped model of each network, by name; see `model`."""
        with self._spec.working():
            return {name: self._shipped.model(name) for name in self._spec.models}

    @property
    def model(self) -> keras.Model:
        """Return a plain Keras model with the shipped weights: with masks, bits and averages applied, without hooks.

        It shares nothing with the given model, has the same final activation, and is saved and loaded with Keras alone.
        It is valid until the next fit.

        Raises:
            UserError: nothing has been trained yet, or there are several networks; see `models`.
        """
        name = self._name(None)
        with self._spec.working():
            return self._shipped.model(name)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        *,
        validation_data: Any = None,
        validation_split: float = 0.0,
        epochs: int = 1,
        batch_size: int | None = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | str | None = None,
        callbacks: Any = (),
        verbose: int | str = "auto",
        resume: bool = False,
        restore_best: bool = False,
        max_seconds: float | None = None,
    ) -> History:
        """Train, and return the losses and metrics of each epoch.

        A second call continues training: with the weights, the optimizer state, the step count and the hook state.
        Hooks keep the schedules that they laid out for the first call. Ctrl-C stops training after the current steps,
        keeps the trained weights, and returns.

        Args:
            x: inputs [n, ...]: an array, a tensor, a dict or list of them; or a `tf.data.Dataset` or
                `keras.utils.PyDataset` of batches, read once into memory; or a Hookline `Data` or `Split`. Each epoch
                visits every example once, in an order determined by the seed. Inputs are cast to the model's dtypes.
            y: targets [n, ...]: labels as integers [n] or [n, 1], one-hot rows, or float32 values; None if x has them.
            validation_data: (x, y), (x, y, sample_weight), a dataset or a `Split`; evaluated after each epoch.
            validation_split: the fraction of x and y, at their end, to hold out instead of `validation_data`.
            epochs: passes over the examples, in addition to earlier ones; may be raised when a first fit is resumed.
            batch_size: examples per step; None for that of the dataset, else 32.
            sample_weight: float [n], the weight of each example.
            class_weight: the weight of each class in the loss, by label, 1 for labels left out; or "balanced".
            callbacks: Keras callbacks with methods for epochs and training only. They see the given model.
            verbose: 0 for no progress, 1 or "auto" for a bar on a terminal and lines elsewhere, 2 for lines.
            resume: whether to resume a stopped or killed fit in `run_dir`, bit-identical to an uninterrupted run. The
                model, the data and the other arguments must be unchanged. Without a run there, a new one begins.
            restore_best: whether to end with the weights of the best evaluation instead of the last ones.
            max_seconds: wall time in seconds after which training stops as with Ctrl-C; None for no limit.

        Returns:
            History: `history` has "loss" and the metrics; those of the validation data have the prefix "val_".

        Raises:
            UserError: an invalid argument; the message is one line. UserError is a ValueError.
            NonFiniteError: a step produced NaN or infinity; its update was not applied.
        """
        callbacks = listed(callbacks or ())
        if y is None and isinstance(x, list) and any(isinstance(each, tuple) for each in x):
            raise UserError("x is a list of tuples. Expected arrays: x, y = map(np.stack, zip(*x)), then fit(x, y).")
        self._check_fit(callbacks, epochs, max_seconds, validation_split, resume=resume)
        self._spec.choose_hooks(progress_mode(verbose), restore_best=restore_best)
        with self._spec.working():
            data, size = training_data(
                x, y, sample_weight, validation_data, validation_split, batch_size, form=self._spec.form
            )
            options = {"epochs": int(epochs), "batch_size": size, "class_weight": class_weight, "resume": resume}
            return self._fit(data, options, callbacks, restore_best, Interruption(max_seconds), verbose == 0)

    def _check_fit(self, callbacks: Sequence[Any], epochs: Any, seconds: Any, share: Any, *, resume: bool) -> None:
        self._check_trainable()
        check_callbacks(callbacks)
        check_integer("epochs", epochs)
        check_number("max_seconds", 0 if seconds is None else seconds, 0)
        check_number("validation_split", share or 0, 0, 1)
        if resume and self.run_dir is None:
            raise UserError("resume=True received without a run directory. Expected Trainer(run_dir=<directory>).")

    def _check_trainable(self) -> None:
        if self._fixed:
            raise UserError(f"The run was trained from the command line. {self._fixed}")

    def _fit(
        self,
        data: Data,
        options: dict[str, Any],
        callbacks: Sequence[Any],
        restore_best: bool,
        interruption: Interruption,
        quiet: bool,
    ) -> History:
        if data.validation is None:
            for each in ["restore_best=True"] if restore_best else self._spec.waiting_hooks():
                raise UserError(f"{each} received without validation data. Expected validation_data=.")
        with ExitStack() as stack:
            spec, state = self._spec, begin(stack, self._spec, self._state, data, run_dir=self.run_dir, **options)
            watch, run = state.watch, state.run
            assert run is not None
            watch.callbacks, watch.as_given = list(callbacks), partial(spec.ending, as_given=True)
            watch.model, watch.optimizer = (next(iter(each.values())) for each in (spec.models, spec.optimizers))
            before = {} if options["resume"] else {name: len(each) for name, each in watch.history.items()}
            first = 0 if options["resume"] else len(watch.epochs)
            self._state, self._kept = state, None
            summary = train(run, interruption, writes=self.run_dir is not None, quiet=quiet)
        if restore_best:
            state.best_step = run.put_best()
        values = {name: each[before.get(name, 0) :] for name, each in watch.history.items()}
        return History({name: each for name, each in values.items() if each}, watch.epochs[first:], summary)

    def prepare(self, x: Any, y: Any = None, *, epochs: int = 1, batch_size: int | None = None) -> None:
        """Build hooks and optimizers for custom steps, without training; see `compute_gradients`.

        Args:
            x: as for `fit`.
            y: as for `fit`.
            epochs: the number of epochs over which hooks lay out their schedules.
            batch_size: examples per step; None for that of the dataset, else 32.

        Raises:
            UserError: see `fit`.
        """
        self._check_trainable()
        self._spec.choose_hooks(None)
        with self._spec.working(), ExitStack() as stack:
            data, size = training_data(x, y, batch_size=batch_size, form=self._spec.form)
            self._state = begin(stack, self._spec, self._state, data, epochs=epochs, batch_size=size)

    def evaluate(
        self, x: Any = None, y: Any = None, *, sample_weight: Any = None, batch_size: int | None = 256
    ) -> dict[str, float]:
        """Return the losses and metrics of the shipped model on some examples.

        Args:
            x: inputs [n, ...], a dataset, a `Data` (its test split, if any) or a `Split`; see `fit`.
            y: targets [n, ...], a dict for several outputs; None if x has them.
            sample_weight: float [n]; None for equal weights.
            batch_size: examples per batch, None for 32; it changes values only by rounding. A model that draws random
                numbers at inference draws the same ones for each batch.

        Returns:
            "loss" and the metrics: floats by name.

        Raises:
            UserError: nothing has been trained yet, or the examples do not fit the model.
        """
        shipped = self._shipped
        with self._spec.working():
            split = evaluation_split(x, y, sample_weight, self._form)
            values = shipped.evaluate(split, batch_size, arrays=not isinstance(x, Data | Split))
        return self._trained.watch.named(values)

    def predict(self, x: Any, *, network: str | None = None, batch_size: int | None = 256) -> Any:
        """Return the outputs of the shipped model for some examples.

        Args:
            x: inputs [n, ...], a dataset, a `Data` (its test split, if any) or a `Split`; targets are not used.
            network: the name of the network; None if there is only one.
            batch_size: examples per batch, None for 32. Random numbers of the model differ from batch to batch.

        Returns:
            A NumPy array [n, ...], such as probabilities float32 [n, classes]; several outputs keep their structure.

        Raises:
            UserError: nothing has been trained yet, or there is no such network.
        """
        name = self._name(network)
        with self._spec.working():
            return self._shipped.predict(x, name, batch_size)

    def export(
        self,
        path: str | Path,
        format: str = "keras",  # noqa: A002 - what it is called on the command line
        *,
        network: str | None = None,
        x: Any = None,
        y: Any = None,
        **options: Any,
    ) -> Path:
        """Write the shipped model for other programs, after checking that the file is as good as the trainer.

        Args:
            path: file, or directory of a SavedModel, with the extension of the format.
            format: "keras", "saved_model", "litert", "onnx", "packed" or "sparse".
            network: the name of the network; None if there is only one.
            x: examples to compare on; None for the validation data of the latest fit, else training examples. Required
                for a loaded Python run, where int8=True also takes its ranges from them.
            y: their targets.
            **options: options of scripts/export.py, such as int8=True, codebook=5, tolerance=0.01, overwrite=True.

        Returns:
            The path that was written.

        Raises:
            UserError: an unknown format or option, a path that exists, or a network that the format cannot hold.
        """
        name = self._name(network)
        with self._spec.working():
            split = None if x is None else evaluation_split(x, y, None, self._form)
            return self._shipped.export(path, format, name, split, options)

    @tf.autograph.experimental.do_not_convert
    def compute_gradients(self, x: tf.Tensor, y: tf.Tensor, sample_weight: tf.Tensor | None = None) -> OwnStep:
        """Compute the first half of a custom step: losses, and gradients after every hook's `transform_gradients`.

        Call it inside a `tf.function` that is made after the latest `prepare` or `fit`, once for each
        `apply_gradients`; hookline/README.md has an example.

        Args:
            x: inputs [batch, ...], as the model takes them.
            y: targets [batch, ...], as `fit` takes them; float rows are class probabilities, one-hot or not.
            sample_weight: float32 [batch]; None for equal weights.

        Returns:
            OwnStep: `gradients` by variable name, which may be changed, `losses` and `metrics`. If the objective
                trains several networks, the names are "<network>/<variable>".

        Raises:
            UserError: nothing is built yet, the call is outside a graph, or there are several objectives or updates.
        """
        with self._spec.ending(as_given=False):
            return first_half(self._trained, self._spec.form.classes, x, y, sample_weight)

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(self, half: OwnStep) -> dict[str, tf.Tensor]:
        """Finish the step: hook updates, vetoes, the optimizer, projections. Unless discarded, it counts as a step.

        Args:
            half: the result of `compute_gradients` in the same `tf.function`.

        Returns:
            Losses, metrics and hook measurements: float32 scalars by their names in reports. For a step that a hook
            discarded they are NaN, and "held_back" is 1.0, else 0.0.
        """
        return second_half(self._trained, half)

    @property
    def _trained(self) -> State:
        if self._state is None:
            raise UserError("Nothing was trained yet. Expected fit() first, or hookline.load(run_dir).")
        return self._state

    @property
    def _form(self) -> Form:
        form, trained = self._spec.form, self._trained.watch.fits
        return rows_form(form) if form.one_hot and not trained["classes"] else form

    @property
    def _shipped(self) -> Shipped:
        state = self._trained
        if self._kept is None or self._kept.state is not state:
            self._kept = Shipped(state, self._spec.form)
        return self._kept

    def _name(self, network: str | None) -> str:
        """Return the name of a network, by default that of the only one."""
        models = self._spec.models
        if network is None and len(models) > 1:
            raise UserError(f"There are several networks: {', '.join(models)}. Expected network= or models.")
        return next(iter(models)) if network is None else check_choice("network", network, models)


def _check_given(loss: Any, objectives: Sequence[Objective], networks: Any, seed: Any, init_from: Any) -> None:
    if (loss is None) == (not objectives):
        received = "No loss" if loss is None else "loss and objectives"
        raise UserError(f"{received} received. Expected loss= or objectives=.")
    if networks is not None and loss is not None:
        raise UserError("networks and loss received. Expected objectives=, which say what each network minimizes.")
    check_integer("seed", seed, 0, 2**31 - 1)
    if init_from is not None:
        check_initial(str(init_from))
