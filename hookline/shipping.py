"""The shipped model: evaluations, predictions, the plain model and exports, all with the hooks applied."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from hookline.deploy.formats import FORMATS, check_place
from hookline.deploy.plain_model import foreign_names, plain_model, rebuilt
from hookline.fits import State
from hookline.inputs import BATCH_SIZE, Form, evaluation_split, read_examples, split_of
from hookline.scripts.export import Options, write
from hookline.trainer.errors import UserError, check_choice, check_integer, user_path
from hookline.trainer.input.batches import EvaluationBatches
from hookline.trainer.input.data import Data, Split
from hookline.trainer.objective import Batch
from hookline.trainer.run.run import Run
from hookline.trainer.run.views import HeldOut
from hookline.trainer.step.evaluate import Evaluator

COMPARED = 1024
"""Number of training examples that an export is compared on if there is no held-out split."""


class Feed:
    """Feed batches to a graph that may have been traced with other examples of the same shapes."""

    def __init__(self, batches: EvaluationBatches) -> None:
        self.batches = batches
        self._like = batches.batch(tf.constant(0, tf.int64))
        specs = tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape, each.dtype), self._like)
        self.key = f"{batches.split.size} {specs}"

    def batch(self, index: tf.Tensor) -> Batch:
        """Return one batch, read in Python."""
        like = tf.nest.flatten(self._like)
        read = tf.py_function(
            lambda each: tf.nest.flatten(self.batches.batch(each)), [index], [each.dtype for each in like]
        )
        known = [tf.ensure_shape(tensor, each.shape) for tensor, each in zip(read, like, strict=True)]
        batch: Batch = tf.nest.pack_sequence_as(self._like, known)
        return batch


class Shipped:
    """Evaluate, predict with and export the shipped model of a trainer; valid until the next fit."""

    def __init__(self, state: State, form: Form) -> None:
        self.state, self._form = state, form
        self._models: dict[str, tuple[tuple[int, int], keras.Model]] = {}  # with the step and a checksum of weights
        self._functions: dict[str, Any] = {}
        self._evaluators: dict[str, tuple[Feed, Evaluator]] = {}

    def model(self, network: str) -> keras.Model:
        """Return the plain model of a network."""
        step, checksum = self.state.weights_step, 0
        for variable in self.state.trainer.networks[network].variables.values():
            checksum = zlib.crc32(np.ascontiguousarray(variable.numpy()).tobytes(), checksum)
        if self._models.get(network, (None,))[0] != (step, checksum):
            with plain_model(self.state.trainer, step, network) as plain:
                try:
                    made = rebuilt(plain) if foreign_names(plain) else plain
                except (NotImplementedError, TypeError, ValueError) as error:
                    raise UserError(
                        f"Keras cannot copy '{plain.name}' ({type(plain).__name__}) from its config. Expected classes "
                        "with an __init__(..., **kwargs) that calls super().__init__(**kwargs), and a get_config with "
                        "the arguments, or a functional model."
                    ) from error
                self._models[network] = (step, checksum), made
        return self._models[network][1]

    def evaluate(self, split: Split, batch_size: int | None, *, arrays: bool) -> dict[str, float]:
        """Return the losses and metrics of a split, by their names in reports.

        Arrays may differ in each call; a user's split is recognized by identity, and may read files in the graph.
        """
        batch_size = BATCH_SIZE if batch_size is None else batch_size
        feed = Feed(EvaluationBatches(split, batch_size=batch_size, placement="host" if arrays else "auto"))
        key = feed.key if arrays else f"{id(split)} {batch_size}"
        if key not in self._evaluators:
            read = feed.batch if arrays else feed.batches.batch
            self._evaluators[key] = feed, Evaluator(self.state.trainer, read, feed.batches.count)
        traced, evaluator = self._evaluators[key]
        traced.batches = feed.batches
        return evaluator.run(self.state.weights_step)

    def predict(self, x: Any, network: str, batch_size: int | None) -> Any:
        """Return the outputs of a network for examples, as arrays in the structure of the outputs."""
        size = BATCH_SIZE if batch_size is None else check_integer("batch_size", batch_size)
        if isinstance(x, Data | Split):
            split = evaluation_split(x, None, None, self._form)
        else:
            split = split_of("test", read_examples(x, None, None, "x"), self._form)
        source, rows = split.source, split.indices
        step, outputs = tf.constant(self.state.weights_step, tf.int64), []
        owner = self.state.trainer.networks[network]
        seeds = {name: tf.convert_to_tensor(owner.variables[name].value) for name in owner.seed_names}
        for start in range(0, len(rows), size):
            inputs = source.gather(tf.constant(rows[start : start + size]))["inputs"]
            # Each batch continues from the seeds of the previous one, so draws differ; the model's own stay unchanged.
            found, seeds = self._function(network, inputs, seeds)(step, inputs, seeds)
            outputs.append(tf.nest.map_structure(lambda each: each.numpy(), found))
        return tf.nest.map_structure(lambda *each: np.concatenate(each), *outputs)

    def _function(self, network: str, inputs: Any, seeds: dict[str, tf.Tensor]) -> Any:
        """Return the function that computes outputs, traced once per input signature."""
        specs = tf.nest.map_structure(lambda each: tf.TensorSpec([None, *each.shape[1:]], each.dtype), inputs)
        key = f"{network} {specs}"
        if key not in self._functions:
            traced = tf.function(partial(self._forward, network), autograph=False)
            self._functions[key] = traced.get_concrete_function(tf.TensorSpec([], tf.int64), specs, seeds)
        return self._functions[key]

    def _forward(
        self, network: str, step: tf.Tensor, inputs: Any, seeds: dict[str, tf.Tensor]
    ) -> tuple[Any, dict[str, tf.Tensor]]:
        trainer = self.state.trainer
        forward = trainer.forward(step, {"inputs": inputs}, objective="", training=False)
        state = forward.passes[network].state
        state |= seeds
        made = forward(network, inputs)
        flat = tf.nest.flatten(made)
        for each in trainer.networks[network].final_activations:
            flat[each.output] = getattr(keras.activations, each.name)(flat[each.output])
        flat = [tf.cast(each, tf.float32) if each.dtype.is_floating else each for each in flat]
        return tf.nest.pack_sequence_as(made, flat), {name: state[name] for name in seeds}

    def export(
        self, path: str | Path, name: str, network: str, split: Split | None, options: Mapping[str, Any]
    ) -> Path:
        """Write a network in a format, after checking that the file is as good as the network."""
        form = FORMATS[check_choice("format", name, FORMATS)]
        known = {"overwrite", "tolerance", *form.options}
        for option in options:
            check_choice(f"option of format={name}", option, known)
        form.check_packages()
        place = user_path(path, "path")
        check_place(place, form, overwrite=bool(options.get("overwrite", False)), remedy="overwrite=True")
        run = self._compared(split)
        chosen = Options(run=str(place), format=name, network=network, output=str(place), **options)
        write(run, chosen, form, place, [])
        return place

    def _compared(self, split: Split | None) -> Run:
        """Return the run with a test split; of a loaded run, the parts that exports use."""
        run = self.state.run
        if run is None:
            return self._loaded(split)
        if split is None:
            train = run.training.split
            held = run.held_out.get("test") or run.held_out.get("validation")
            split = replace(train, indices=train.indices[:COMPARED]) if held is None else held.split
        held_out = {**run.held_out, "test": HeldOut(run.trainer, replace(split, name="test"), batch_size=256)}
        return replace(run, held_out=held_out, step=self.state.weights_step, checkpoint=self.state.checkpoint)

    def _loaded(self, split: Split | None) -> Run:
        """Return the parts of a loaded Python run that exports use; its own examples are not known."""
        if split is None:
            raise UserError("A loaded run has no examples to compare the file on. Expected x= and y=.")
        state, fit, test = self.state, self.state.watch.fits, replace(split, name="test")
        run = SimpleNamespace(trainer=state.trainer, step=state.weights_step, checkpoint=state.checkpoint)
        run.held_out = {"test": HeldOut(state.trainer, test, batch_size=256)}
        run.data = Data("x", split, None, None, tuple(fit["input_shape"]), fit["classes"])
        run.training = SimpleNamespace(split=split)  # int8 takes its ranges from it
        return cast(Run, run)
