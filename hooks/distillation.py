"""Distillation: a network learns from the softened outputs of a trained teacher, in addition to its own loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from hookline.hooks.graphs import select_layer
from hookline.hooks.options import check_place
from hookline.trainer.errors import UserError, check_number
from hookline.trainer.final_activation import check_logits, take_off, with_final
from hookline.trainer.graph import as_functional, is_graph, layer_output
from hookline.trainer.hook import Declaration, GraphHook, Run, Tensors
from hookline.trainer.input.preparation import Range, different_ranges
from hookline.trainer.network import name_variables
from hookline.trainer.objective import SOFT_TARGETS
from hookline.trainer.ops.probabilities import as_logits
from hookline.trainer.run.finished import PYTHON, model_digest, read_model
from hookline.trainer.step.context import BuildContext, StepContext
from hookline.trainer.step.means import example_weights, weighted_mean


class Distillation(GraphHook):
    """Train a network on the outputs of a teacher for the same inputs. The teacher is frozen and in inference mode.

    The teacher is a finished run of the command line (its best checkpoint, as evaluations use it), a Keras file, or in
    Python any `keras.Model`. Its inputs are prepared as in this run. If none is given, it is the network itself in its
    initial state, before hooks change it, so a pruned or rounded network learns from the weights of `init_from`.

    Evaluations report the task's loss only. A checkpoint contains the digest of the teacher, not its weights, unless
    the network is its own teacher; a resumed run refuses a different teacher. Exports and evaluations of the run need
    the teacher at its original path.

    Group: technique

    Equation:
        L = (1 - alpha) L_task + alpha T^2 KL(softmax(z_teacher / T) || softmax(z / T)) + feature_weight L_features
        dL/dz = (1 - alpha) dL_task/dz + alpha T (softmax(z / T) - softmax(z_teacher / T)) / batch
        L_features: sum over the pairs of layers of mean (h - h_teacher)^2

    State:
        teacher/<variable>: initial value, if the network is its own teacher.

    Scalars:
        loss/distillation: alpha T^2 KL, in training.
        loss/distillation_task: -alpha L_task, in training: a correction, as the task's own loss is reported in full.
        loss/distillation_features: weighted loss between features, if `features` is set.
        distillation/agreement: share of the batch for which both networks predict the same class.
        distillation/teacher_accuracy: accuracy of the teacher on the batch; low if the teacher expects other inputs or
            classes.

    Cost: A forward pass of the teacher per step. On the digits a binary network gains nothing from its float baseline:
        98.0 % with and without it (means of 5 seeds).

    Pitfalls:
        tests/hooks/test_distillation.py: without T^2 the teacher's part of the gradient shrinks as 1 / T^2. If the
            softmax of the teacher were used as logits, its targets would be nearly uniform.

    Reference: Hinton, Vinyals and Dean 2015, arXiv 1503.02531, section 2; Romero et al. 2015, arXiv 1412.6550, equation
        3 (features); Li and Hoiem 2016, arXiv 1606.09282 (a network as its own teacher).

    Example:
        python train.py recipe=bnn +hooks=distillation hooks.distillation.teacher=runs/float
        python train.py recipe=baseline "+hooks=[prune,distillation]" init_from=runs/float
    """

    priority = 5  # takes a share of the task's loss before later hooks add theirs; gets the unchanged network

    def __init__(
        self,
        *,
        teacher: str | keras.Model | None = None,
        temperature: float = 4.0,
        alpha: float = 0.5,
        features: Mapping[str, str] | None = None,
        feature_weight: float = 1.0,
        network: str = "model",
    ) -> None:
        """Check the options.

        Args:
            teacher: directory of a run, or a file that ends in ".keras"; in Python also a `keras.Model`, whose outputs
                are logits or end in a softmax. None for the network itself with its initial weights.
            temperature: T, above 0; 1 does not soften the outputs.
            alpha: in [0, 1], the teacher's share of the loss; the task keeps the rest.
            features: dict {pattern of a teacher's layer: pattern of a layer of this network}; the output of the second,
                of the same shape, is trained to match that of the first.
            feature_weight: 0 or more.
            network: name of the network.
        """
        self.teacher = teacher
        self.temperature = check_number("temperature", temperature, minimum=0.0, above_minimum=True)
        self.alpha = check_number("alpha", alpha, minimum=0.0, maximum=1.0)
        self.features = features or {}
        self.feature_weight = check_number("feature_weight", feature_weight, minimum=0.0)
        self.network = network
        self._model: keras.Model  # the teacher, once `rebuild_model` has run
        self._kept: dict[str, tf.Variable] = {}
        self._range: Range = None  # of the teacher's pixels
        self._digest = ""
        self._activation: str | None = None  # the network's final activation, if a custom loss keeps it

    def rebuild_model(self, model: keras.Model) -> keras.Model:
        _, activations = take_off(model)
        with_final(model, activations)
        self._activation = next((each.name for each in activations), None)
        if self.teacher is None:
            self._model = model
        else:
            given, key = self.teacher, f"hooks.{self.key}.teacher"
            if isinstance(given, str):
                check_place(key, given)
            self._model, self._range = read_model(given, key) if isinstance(given, str) else (given, None)
            if is_graph(self._model) and is_graph(model):
                theirs, ours = (tf.TensorShape(part.inputs[0].shape) for part in (self._model, model))
                if not theirs.is_compatible_with(ours):
                    raise UserError(f"{key} takes inputs {theirs}, '{self.network}' {ours}. Expected the same.")
            self._digest = model_digest(self._model)
            own = {id(variable) for variable in model.variables}
            if any(id(variable) in own for variable in self._model.variables):
                shared = "The teacher shares variables with the trained network, so it would change during training."
                raise UserError(f"{shared} Expected a copy.")
        return model

    def request_taps(self, model: keras.Model) -> dict[str, Any]:
        taps = {}
        for name, own in self.features.items():
            theirs, ours = _output(self._model, name), _output(model, own)
            if theirs.shape != ours.shape:
                raise UserError(
                    f"hooks.{self.key}.features: the teacher's '{name}' returns {list(theirs.shape)}, and '{own}' "
                    f"{list(ours.shape)}. Expected layers of the same shape."
                )
            taps[f"{self.key}/{name}"] = ours
        return taps

    def build(self, context: BuildContext) -> None:
        if context.classes is None:
            raise UserError(f"hooks.{self.key} needs one class for each example. Expected hooks.{self.key}=null here.")
        if self.teacher is None:
            values = {name: v.value for name, v in name_variables(self._model.variables).items()}
            self._kept = {name: tf.Variable(value, trainable=False, name="teacher") for name, value in values.items()}

    def declare(self) -> Declaration:
        outside = {"teacher": self._digest} if self._digest else {}
        return Declaration({f"teacher/{name}": kept for name, kept in self._kept.items()}, outside=outside)

    def add_losses(self, context: StepContext) -> Tensors:
        if not context.training:
            return {}
        teacher, features = self._taught(context.batch["inputs"])
        logits = context.outputs
        if isinstance(logits, tf.Tensor):
            logits = as_logits(tf.cast(logits, tf.float32), self._activation, keras.ops)
        alone = isinstance(logits, tf.Tensor) and isinstance(teacher, tf.Tensor)
        if not alone or teacher.shape != logits.shape or logits.shape[-1] < 2:  # a softmax of one output is always 1
            shapes = [each.shape if isinstance(each, tf.Tensor) else "several outputs" for each in (teacher, logits)]
            given = f"The teacher gives {shapes[0]}, '{self.network}' {shapes[1]}"
            raise UserError(f"{given}. Expected the same classes, at least two.")
        same = tf.equal(tf.argmax(teacher, -1), tf.argmax(logits, -1))
        context.taps[f"{self.key}/agreement"] = _per_example(tf.cast(same, tf.float32))
        context.taps[f"{self.key}/teacher"] = teacher
        task = [loss for name, loss in context.losses.items() if name != f"layers_{self.network}"]
        losses = {
            self.key: self.alpha * softened_divergence(teacher, logits, self.temperature),
            f"{self.key}_task": -self.alpha * tf.add_n(task),
        }
        if features:
            pairs = [(value, context.taps[f"{self.key}/{name}"]) for name, value in features.items()]
            distances = [_per_example(tf.square(tf.cast(ours, tf.float32) - theirs)) for theirs, ours in pairs]
            losses[f"{self.key}_features"] = self.feature_weight * tf.add_n(distances)
        return losses

    def _taught(self, inputs: Any) -> tuple[Any, Tensors]:
        """Return the teacher's logits and features, without gradients and without updating its variables."""
        model, activations = take_off(self._model)  # of a model that the user may still need
        try:
            outputs: Any = model
            if self.features:
                features = {name: _output(model, name) for name in self.features}
                graph = as_functional(model)
                outputs = keras.Model(graph.input, [graph.output, features])
            values = zip(self._model.variables, map(tf.convert_to_tensor, self._kept.values()), strict=False)
            with keras.StatelessScope(list(values)):
                found = outputs(inputs, training=False)
        finally:
            with_final(model, activations)
        logits, features = found if self.features else (found, {})
        stopped = {name: tf.stop_gradient(tf.cast(each, tf.float32)) for name, each in features.items()}
        return tf.stop_gradient(tf.cast(logits, tf.float32)) if isinstance(logits, tf.Tensor) else logits, stopped

    def measure(self, context: StepContext) -> Tensors:
        weights, batch = example_weights(context.batch), context.batch
        values = {"agreement": context.taps[f"{self.key}/agreement"]}
        teacher, targets = context.taps[f"{self.key}/teacher"], batch.get("targets")
        if SOFT_TARGETS not in batch and targets is not None and targets.shape == teacher.shape[:-1]:
            found = tf.equal(tf.argmax(teacher, -1), tf.cast(targets, tf.int64))
            values["teacher_accuracy"] = _per_example(tf.cast(found, tf.float32))
        return {f"{self.key}/{name}": weighted_mean(name, value, weights) for name, value in values.items()}

    def summary(self) -> dict[str, Any]:
        name = self.teacher if isinstance(self.teacher, str) else getattr(self.teacher, "name", None)
        return {"teacher": name, "digest": self._digest, "temperature": self.temperature, "alpha": self.alpha}

    def advise(self, run: Run) -> Sequence[str]:
        model, activations = take_off(self._model)
        try:
            check_logits(model, run.data)  # for a teacher with a final softmax that cannot be removed
        finally:
            with_final(model, activations)
        made = run.data.preparation
        if self._range and made and (told := different_ranges(self._range, made.pixel_range)):
            raise UserError(
                f"hooks.{self.key}.teacher was trained on inputs {told[0]}, but the data gives inputs {told[1]}. Set "
                "data.scale (pixels: from -1 to 1, unit: from 0 to 1) so that they are alike."
            )
        of_python = run.config.get("task", {}).get("_target_") == PYTHON  # its model may be trained
        if self.teacher is not None or run.config.get("init_from") is not None or of_python:
            return ()
        return (f"the teacher is the untrained initial network. Set hooks.{self.key}.teacher to a run, or init_from.",)


def softened_divergence(teacher: tf.Tensor, logits: tf.Tensor, temperature: float) -> tf.Tensor:
    """Return T^2 KL(softmax(teacher / T) || softmax(logits / T)) per example, for logits [batch, ..., classes]."""
    target = tf.nn.log_softmax(tf.cast(teacher, tf.float32) / temperature)
    learned = tf.nn.log_softmax(tf.cast(logits, tf.float32) / temperature)
    return temperature**2 * _per_example(tf.reduce_sum(tf.exp(target) * (target - learned), axis=-1))


def _per_example(values: tf.Tensor) -> tf.Tensor:
    """Return means over all axes but the first, [batch]."""
    return tf.reduce_mean(values, axis=list(range(1, values.shape.rank)))


def _output(model: keras.Model, pattern: str) -> Any:
    """Return the output tensor of the one layer of a model's graph that matches."""
    functional = as_functional(model) if is_graph(model) else model
    return layer_output(functional, select_layer(functional, pattern))
