"""What is shipped: evaluations, predictions, the plain model and exports, each with what the hooks promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from hookline.deploy.card import card_of
from hookline.deploy.formats import FORMATS, check_place
from hookline.deploy.inference.card import write_card
from hookline.deploy.options import ExportOptions
from hookline.deploy.plain_model import foreign_names, plain_model, with_values
from hookline.inputs import Form, evaluation_split, read_examples, source_of
from hookline.scripts.export import Options, write
from hookline.state import State
from hookline.trainer.errors import UserError, unknown_name, user_path
from hookline.trainer.input.batches import EvaluationBatches
from hookline.trainer.input.data import Split
from hookline.trainer.run.assembly import Assembly
from hookline.trainer.run.finished import LAST, FinishedRun
from hookline.trainer.run.views import Evaluated
from hookline.trainer.step.evaluate import Evaluator
from hookline.trainer.step.trainer import Trainer as StepTrainer

COMPARED = 1024
"""How many training examples an export is compared on where no others are known."""


@dataclass(frozen=True)
class Built:
    """Stand for an assembly where a run was loaded without its data."""

    trainer: StepTrainer


class Shipped:
    """Read what a trainer ships; it stands until the next fit."""

    def __init__(self, state: State, form: Form) -> None:
        """Take what was trained.

        Args:
            state: how far it is.
            form: of the inputs.
        """
        self._state, self._form = state, form
        self._models: dict[str, keras.Model] = {}
        self._traced: dict[Any, Any] = {}
        self._step = state.step

    def stands(self, state: State) -> bool:
        """Return whether nothing was trained since.

        Args:
            state: the current one.
        """
        return state is self._state and state.step == self._step

    def finished(self) -> FinishedRun:
        """Return the run as one that has ended, as exports know it."""
        parts = self._state.parts or Built(self._state.trainer)
        return FinishedRun(cast(Assembly, parts), LAST, self._step)

    def model(self, network: str) -> keras.Model:
        """Return the plain model of a network.

        Args:
            network: its name.

        Raises:
            UserError: a model of the user's classes that cannot be rebuilt from its config.
        """
        if network not in self._models:
            with plain_model(self.finished(), network) as plain:
                self._models[network] = plain if not foreign_names(plain) else _copied(plain)
        return self._models[network]

    def evaluate(self, split: Split, batch_size: int) -> dict[str, float]:
        """Return losses and metrics of a split, by the names of reports.

        Args:
            split: what to evaluate on.
            batch_size: examples at a time.
        """
        batches = EvaluationBatches(split, batch_size=batch_size)
        return Evaluator(self._state.trainer, batches.batch, batches.count).run(self._step)

    def predict(self, x: Any, network: str, batch_size: int) -> Any:
        """Return the outputs of a network for examples, as arrays in their structure.

        Args:
            x: as `Trainer.predict` takes it.
            network: its name.
            batch_size: examples at a time.
        """
        if isinstance(x, Split):
            source, rows = x.source, x.indices
        else:
            examples = read_examples(x, None, None, "x")
            source, rows = source_of(examples, self._form), np.arange(examples.size, dtype=np.int64)
        outputs = []
        for start in range(0, len(rows), batch_size):
            inputs = source.gather(tf.constant(rows[start : start + batch_size]))["inputs"]
            outputs.append(tf.nest.map_structure(lambda each: each.numpy(), self._outputs(network, inputs)))
        return tf.nest.map_structure(lambda *each: np.concatenate(each), *outputs)

    def _outputs(self, network: str, inputs: Any) -> Any:
        specs = tf.nest.map_structure(lambda each: tf.TensorSpec([None, *each.shape[1:]], each.dtype), inputs)
        key = (network, str(specs))
        if key not in self._traced:
            self._traced[key] = tf.function(self._forward(network), autograph=False).get_concrete_function(specs)
        return self._traced[key](inputs)

    def _forward(self, network: str) -> Any:
        trainer, step = self._state.trainer, tf.constant(self._step, tf.int64)
        ends = trainer.networks[network].final_activations

        def forward(inputs: Any) -> Any:
            made = trainer.forward(step, {"inputs": inputs}, objective="", training=False)(network, inputs)
            flat = tf.nest.flatten(made)
            for each in ends:
                flat[each.output] = getattr(keras.activations, each.name)(flat[each.output])
            return tf.nest.pack_sequence_as(made, flat)

        return forward

    def export(self, path: Path, name: str, network: str, split: Split | None, options: Mapping[str, Any]) -> Path:
        """Write a network in a format, once it is certain that the file is as good as the network.

        Args:
            path: to write to.
            name: of the format.
            network: its name.
            split: examples to compare on; None for those of the latest fit.
            options: of the format; `overwrite` and `tolerance` of each.

        Raises:
            UserError: no such format or option, a place that is taken, or a network that the format cannot hold.
        """
        if name not in FORMATS:
            raise unknown_name("format", name, FORMATS)
        form = FORMATS[name]
        known = {each.name for each in fields(ExportOptions)} & {"tolerance", *form.options}
        for option in options:
            if option not in (*known, "overwrite"):
                raise unknown_name(f"option of format={name}", option, [*known, "overwrite"])
        form.check_packages()
        place = user_path(path, "path")
        check_place(place, form, overwrite=bool(options.get("overwrite", False)))
        run = self._compared(split)
        chosen = Options(run=str(place), format=name, network=network, output=str(place), **options)
        write(run, chosen, form, place, [])
        if form.card_beside:
            write_card(place, card_of(run, network))
        return place

    def _compared(self, split: Split | None) -> FinishedRun:
        """Return the run with a test split."""
        parts = self._state.parts
        if parts is None:
            raise UserError("export needs examples to compare the file on. Expected a trainer after fit.")
        if split is None:
            train = parts.data.train
            held = parts.evaluated.get("test") or parts.evaluated.get("validation")
            split = replace(train, indices=train.indices[:COMPARED]) if held is None else held.split
        batches = EvaluationBatches(split, batch_size=256)
        evaluator = Evaluator(parts.trainer, batches.batch, batches.count)
        evaluated = {**parts.evaluated, "test": Evaluated(replace(split, name="test"), evaluator)}
        return FinishedRun(replace(parts, evaluated=evaluated), LAST, self._step)


def _copied(model: keras.Model) -> keras.Model:
    try:
        return with_values(model, model)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"'{model.name}' has classes that cannot be rebuilt from their config: {reason} Expected every argument in "
            "get_config; predict and evaluate need none."
        ) from error


def export_split(x: Any, y: Any, form: Form) -> Split | None:
    """Return examples to compare an export on; None where none were given.

    Args:
        x: inputs, or None.
        y: targets.
        form: of the model.
    """
    return None if x is None else evaluation_split(x, y, None, form)
