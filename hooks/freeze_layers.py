"""Freeze whole layers by pattern, for a run or between two epochs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from hookline.hooks.graphs import with_inner_layers, with_upstream_layers
from hookline.hooks.kernels import own_weights
from hookline.hooks.options import AVERAGE, begin_step, epoch_start
from hookline.trainer.errors import UserError, check_choice, check_number
from hookline.trainer.graph import layer_paths, select_layers
from hookline.trainer.hook import Declaration, Gradients, GraphHook, Run, Tensors
from hookline.trainer.network import inner_of
from hookline.trainer.step.context import BuildContext, StepContext

NEVER = 2**63 - 1  # end step of layers that stay frozen
ACCUMULATORS = "_accumulators"  # slots that start at `initial_accumulator_value`; all others start at 0


class FreezeLayers(GraphHook):
    """Freeze the weights of whole layers, bit for bit, while the rest of the network trains.

    The weights get no gradient, but the gradient of the layer's input still flows to the layers before it.
    stop="upstream" also freezes all layers upstream: every layer whose output reaches a frozen layer, even if it also
    reaches the network's output along another path.

    Nothing in the optimizer changes frozen weights: no earlier momentum, weight decay, regularizer, or moving average.
    Their slots are reset to those of a new optimizer. For layers that are frozen for the whole run, neither gradients
    nor updates are computed. Later hooks may still change frozen weights on purpose: prune, quantize or clip them.

    In training, batch norm normalizes by the statistics of the batch, frozen or not, unless `batch_norm` is
    "inference": then it normalizes by the moving statistics, as a Keras layer with trainable=False does. `batch_norm`
    also sets what happens to the moving statistics. With the default, "frozen", evaluations use moving statistics that
    no longer follow the data (with a warning).

    Group: technique

    Equation:
        in each step t with begin <= t < end, for each weight w of these layers:
        forward:               stop_gradient(w) instead of w
        after the optimizer:   w <- w at the start of the step;  its slots <- initial values;  its average <- w
        for a whole run:       dL/dw = None, so that the optimizer leaves w out

    Scalars:
        freeze_layers/active: share of steps in which the layers were frozen.

    Cost: Layers that are frozen for the whole run save time: 1.66 times the speed with `conv_1` of LeNet-5 frozen
        (batch 100). With `begin_epoch` or `end_epoch`, the gradient is still computed.

    Pitfalls:
        tests/hooks/test_freeze_layers.py: a gradient of zero does not freeze weights: momentum, weight decay and
            averages still move them.
        tests/hooks/test_ema.py: while a layer is frozen, evaluations with the hook `ema` use its frozen value, not its
            average.

    Reference: None; the rules are this project's own.

    Example:
        python train.py recipe=baseline +hooks=freeze_layers hooks.freeze_layers.layers=dense_1
        python train.py recipe=baseline +hooks=freeze_layers hooks.freeze_layers.end_epoch=10
    """

    before = ("prune", "incremental_quantization", "frozen_mask", "bnn_rounding")
    priority = 20

    def __init__(
        self,
        *,
        layers: str | Sequence[str],
        but: str | Sequence[str] | None = None,
        stop: str = "weights",
        batch_norm: str = "frozen",
        begin_epoch: float = 0.0,
        end_epoch: float | None = None,
        network: str = "model",
    ) -> None:
        """Check the options.

        Args:
            layers: patterns on paths or names of layers of any kind; a layer with inner layers selects them all.
            but: patterns of layers among them that still train, such as the head of the network.
            stop: "weights" freezes these layers, "upstream" also every layer before them (functional models only).
            batch_norm: "frozen" keeps the moving statistics of frozen layers, "running" keeps updating them,
                "inference" keeps them and uses them in training, too (only for a whole run).
            begin_epoch: 0 or more; frozen from the first step after this many epochs.
            end_epoch: above `begin_epoch`; the layers train again from there. None: frozen to the end.
            network: name of the network.
        """
        self.layers = layers
        self.but = [] if but is None else but
        self.stop = check_choice("stop", stop, ("weights", "upstream"))
        self.batch_norm = check_choice("batch_norm", batch_norm, ("frozen", "running", "inference"))
        self.begin_epoch = check_number("begin_epoch", begin_epoch, 0)
        self.end_epoch = None if end_epoch is None else check_number("end_epoch", end_epoch, 0)
        if self.end_epoch is not None and self.end_epoch <= self.begin_epoch:
            raise UserError(f"end_epoch={end_epoch} is not after begin_epoch={begin_epoch}. Set a later end, or null.")
        if batch_norm == "inference" and (self.begin_epoch or end_epoch is not None):
            raise UserError("batch_norm=inference holds for a whole run. Expected begin_epoch=0 and end_epoch=null.")
        self.network = network
        self.inference_norms: list[keras.Layer] = []  # batch norms that use moving statistics in training

    def _choose(self, model: keras.Model) -> dict[str, keras.Layer]:
        """Return every layer to freeze, by path."""
        chosen = select_layers(model, self.layers)
        frozen = with_inner_layers(chosen) if self.stop == "weights" else with_upstream_layers(model, chosen)
        if self.but:
            try:
                frozen -= with_inner_layers(select_layers(model, self.but))
            except UserError as error:
                raise UserError(f"hooks.{self.key}.but: {error}") from error
        return {path: layer for path, layer in layer_paths(model).items() if id(layer) in frozen}

    def build(self, context: BuildContext) -> None:
        network, chosen = context.network, self._choose(context.network.model)
        self._begin, self._end = begin_step(self.begin_epoch, context), NEVER  # another fit may follow this one
        if self.end_epoch is not None:
            self._end = epoch_start(self.end_epoch, context.steps_per_epoch)
        if self._end <= self._begin:
            raise UserError(f"No step lies between begin_epoch={self.begin_epoch:g} and end_epoch={self.end_epoch:g}.")
        self._whole_run = self._begin == 0 and self._end == NEVER
        frozen = {id(weight) for layer in chosen.values() for weight in own_weights(layer)}
        if not frozen:
            raise UserError(f"Nothing to freeze: {', '.join(chosen)} have no weights. Expected layers with weights.")
        if self.batch_norm == "inference":
            self.inference_norms = [
                each for each in chosen.values() if isinstance(each, keras.layers.BatchNormalization)
            ]
            if not self.inference_norms:
                raise UserError(f"layers={self.layers} has no batch norm. Expected batch_norm=frozen, not inference.")
        weights = {name for name, weight in network.weights.items() if id(weight) in frozen}
        self._paths = [path for path, layer in chosen.items() if own_weights(layer)]
        self._latent = [name for name in network.trainable_variables if name in weights]
        self._statistics = weights - set(self._latent) if self.batch_norm != "running" else set()
        self._entries = sum(math.prod(network.variables[name].shape) for name in self._latent)
        self._averages: dict[str, keras.Variable] = {}
        self._slots: dict[str, list[tuple[keras.Variable, float]]] = {}
        first = float(getattr(inner_of(network.optimizer), "initial_accumulator_value", 0.0))  # of Adagrad and Ftrl
        for name in self._latent:
            slots = network.optimizer_slots(name)
            if (average := slots.pop(AVERAGE, None)) is not None:
                self._averages[name] = average
            if not self._whole_run:  # after an earlier fit, slots do not have their initial values
                self._slots[name] = [(slot, first if key == ACCUMULATORS else 0.0) for key, slot in slots.items()]

    def declare(self) -> Declaration:
        if self._whole_run:
            return Declaration(frozen={*self._latent, *self._statistics}, projected=set(self._averages))
        return Declaration(projected=set(self._latent))

    def _where_active(self, context: StepContext, held: tf.Tensor, current: tf.Tensor) -> tf.Tensor:
        """Return `held` in steps in which the layers are frozen, else `current`."""
        return held if self._whole_run else tf.where(self._active(context), held, current)

    def _active(self, context: StepContext) -> tf.Tensor:
        return tf.logical_and(context.step >= self._begin, context.step < self._end)

    def frozen_entries(self, context: StepContext) -> Tensors:
        frozen = tf.logical_and(context.step > self._begin, context.step <= self._end)  # in the step just made
        return dict.fromkeys([*self._latent, *sorted(self._statistics)], frozen)

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        given = {name: weights[name] for name in self._latent}
        stopped = {name: self._where_active(context, tf.stop_gradient(each), each) for name, each in given.items()}
        return {**weights, **stopped}

    @contextmanager
    def around_forward(self, context: StepContext) -> Iterator[None]:
        """Make batch norm use its moving statistics, as Keras and other hooks do for layers that are not trainable."""
        before = [layer._trainable for layer in self.inference_norms]  # `trainable` would also set that of its weights
        try:
            for layer in self.inference_norms:
                layer._trainable = False
            yield
        finally:
            for layer, trainable in zip(self.inference_norms, before, strict=True):
                layer._trainable = trainable

    def transform_gradients(self, gradients: Gradients, context: StepContext) -> Gradients:
        """Stop gradients that bypass the weights of the forward pass, such as those of a regularizer."""
        stopped: Gradients = {}
        for name in self._latent:
            gradient = gradients[name]
            kept = gradient is not None and not self._whole_run
            stopped[name] = self._where_active(context, tf.zeros_like(gradient), gradient) if kept else None
        return {**gradients, **stopped}

    def transform_state(self, new_state: Tensors, context: StepContext) -> Tensors:
        if self._whole_run:
            return {name: value for name, value in new_state.items() if name not in self._statistics}
        variables = context.network.state_variables
        held = {
            name: self._where_active(context, tf.convert_to_tensor(variables[name].value), value)
            for name, value in new_state.items()
            if name in self._statistics
        }
        return {**new_state, **held}

    def project(self, context: StepContext) -> None:
        variables = context.network.variables
        for name in sorted(self.declare().projected):
            for variable in (variables[name], self._averages.get(name)):
                if variable is not None:
                    self._hold(context, variable, context.latent[name])
            for slot, initial in self._slots.get(name, ()):
                self._hold(context, slot, tf.fill(slot.shape, tf.cast(initial, slot.dtype)))

    def _hold(self, context: StepContext, variable: keras.Variable, value: tf.Tensor) -> None:
        current = tf.convert_to_tensor(variable.value)
        variable.value.assign(self._where_active(context, tf.cast(value, current.dtype), current))

    def measure(self, context: StepContext) -> Tensors:
        return {f"{self.key}/active": tf.cast(self._active(context), tf.float32)}

    def summary(self) -> dict[str, Any]:
        return {
            "layers": self._paths,
            "weights_frozen": self._entries,
            "stop": self.stop,
            "batch_norm": self.batch_norm,
            "statistics_held": sorted(self._statistics),
            "begin_step": self._begin,
            "end_step": None if self._end == NEVER else self._end,
        }

    def advise(self, run: Run) -> Sequence[str]:
        network, lines = run.networks[self.network], []
        if self._whole_run and len(self._latent) == len(network.trainable_variables):
            lines.append(f"every weight of '{network.name}' is frozen: nothing in it trains. Narrow the pattern.")
        if self.end_epoch is not None and epoch_start(self.end_epoch, run.steps_per_epoch) >= run.total_steps:
            lines.append(
                f"end_epoch={self.end_epoch:g} is not before the end of the run (epoch "
                f"{run.total_steps / run.steps_per_epoch:g}), so the layers never train again. Set "
                f"hooks.{self.key}.end_epoch to an earlier one, or to null if this is intended."
            )
        if self.batch_norm == "frozen" and self._statistics:
            lines.append(
                f"'{min(self._statistics)}' is frozen: training normalizes by batch statistics, but evaluations by "
                f"moving statistics that no longer follow the data. Set hooks.{self.key}.batch_norm=inference to use "
                "the moving statistics of a trained network in training too, or running to keep updating them."
            )
        return lines
