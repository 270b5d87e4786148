"""Supervised learning: any Keras or custom losses and metrics on the outputs of one network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.recipes.classification import Classification
from hookline.recipes.losses import (
    BINARY,
    ENDS,
    ONE,
    ONE_HOT,
    SPARSE,
    Loss,
    Measures,
    beside,
    losses_of,
    mask_of,
    metrics_of,
    weights_of,
)
from hookline.recipes.model_checks import check_inputs, check_targets
from hookline.trainer.errors import UserError, check_choice
from hookline.trainer.final_activation import FinalActivation, check_logits, ends_linear, first_outputs, take_off
from hookline.trainer.graph import as_functional, is_graph
from hookline.trainer.input.data import Data
from hookline.trainer.network import Network, check_names, check_training
from hookline.trainer.objective import SOFT_TARGETS, Batch, ForwardFunction, Objective, ObjectiveOutput
from hookline.trainer.recipe import Parts, Recipe

MODEL = "model"
PROBED = 256  # number of first examples to check the targets of
INPUTS, TARGETS = "inputs", "targets"


@dataclass(frozen=True, eq=False)
class Head:
    """The loss and metrics of one output."""

    loss: Loss | None  # None for metrics alone
    measures: Measures
    from_logits: bool  # whether a cross-entropy takes the output as logits
    weight: float  # of the loss in the total loss


class KerasLoss(Objective):
    """Minimize Keras or custom losses, each of one output of a network."""

    name = "keras_loss"
    trains = (MODEL,)

    def __init__(
        self, heads: Mapping[str, Head], names: Sequence[str], *, classes: int, reconstructs: bool, uneven: bool
    ) -> None:
        """Set losses and metrics by output, the names of the outputs, and whether the inputs are the targets.

        `uneven` is whether some values of an example may not count, due to a Keras mask or a class to ignore.
        """
        self.heads, self.names, self.reconstructs = dict(heads), list(names), reconstructs
        self.uneven = uneven
        only = self.heads.get(ONE)
        self.class_losses = (only.loss.name,) if only and only.loss and classes and not reconstructs else ()

    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        if SOFT_TARGETS in batch:
            raise UserError(
                "task=supervised received examples mixed by augmentation, with class probabilities as targets. "
                "Expected loss=sparse_categorical_crossentropy, or augment.<name>=null."
            )
        outputs, targets = forward(MODEL, batch["inputs"]), batch.get("targets")
        output = ObjectiveOutput(losses={}, outputs=outputs)
        for name, head in self.heads.items():
            own = _item(outputs, name, self.names or list(self.heads))
            wanted = batch["inputs"] if self.reconstructs else targets if name == ONE else _target(targets, name)
            if wanted is None:
                raise UserError("The data has no targets. Expected them, or task.targets=inputs to reconstruct inputs.")
            _check_shapes(name, own, wanted, head.loss)
            if head.loss is not None:
                values, counts = head.loss.each(wanted, own, from_logits=head.from_logits)
                label = head.loss.name if name == ONE else f"{name}_{head.loss.name}"
                output.counts |= {} if counts is None else {f"loss/{label}": counts, f"metric/{name}_loss": counts}
                output.losses[label] = values if head.weight == 1.0 else head.weight * values
                if name != ONE:
                    output.metrics[f"{name}_loss"] = values  # without its weight; averaged by sample weights
            head.measures.add(output, batch, wanted, own, training=forward.training)
        return output

    def split_metrics(self, collected: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        found: dict[str, tf.Tensor] = {}
        for head in self.heads.values():
            found |= head.measures.of_split(collected)
        return found


def _item(outputs: Any, name: str, names: Sequence[str]) -> tf.Tensor:
    if name == ONE and not isinstance(outputs, Mapping | list | tuple):
        return outputs
    if isinstance(outputs, Mapping) and name in outputs:
        return outputs[name]
    if isinstance(outputs, list | tuple) and len(outputs) == len(names) and name in names:
        return outputs[names.index(name)]
    found = ", ".join(outputs) if isinstance(outputs, Mapping) else f"a {type(outputs).__name__}"
    found = "one tensor" if isinstance(outputs, tf.Tensor) else found
    expected = f"an output '{name}', which has a loss or metrics" if name else "one tensor, or a loss for each by name"
    raise UserError(f"The network returns {found}. Expected {expected}.")


def _target(targets: Any, name: str) -> Any:
    if not isinstance(targets, Mapping) or name not in targets:
        found = ", ".join(targets) if isinstance(targets, Mapping) else "one tensor"
        raise UserError(f"The targets are {found}. Expected a dict with '{name}', one for each output of the network.")
    return targets[name]


def _check_shapes(name: str, outputs: Any, targets: Any, loss: Loss | None) -> None:
    """Refuse outputs that would be broadcast against targets of another shape: the loss would be silently wrong."""
    if loss is None or loss.kind == SPARSE or not loss.by_value or not isinstance(outputs, tf.Tensor):
        return
    wanted, given = (each.shape for each in beside(targets, outputs))
    if given.rank != wanted.rank or not given.is_compatible_with(wanted):
        of = f"output '{name}'" if name else "network"
        remedy = f"let the network end with {wanted[-1]} (task.outputs={wanted[-1]} for a built-in network)"
        if wanted.rank == 1:
            remedy = f"one output for numbers (task.outputs=1 for a built-in network), or loss={SPARSE} for classes"
        elif given.rank != wanted.rank:
            remedy = "use a network that returns them, such as model=u_net for maps and model=mlp for rows"
        raise UserError(
            f"The {of} returns the shape {list(given)}, and the targets have {list(wanted)}. Expected the same for "
            f"loss={loss.name}: {remedy}."
        )


def recipe_of(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    losses: Mapping[str, Loss],
    metrics: Mapping[str, Sequence[Any]],
    data: Data,
    shapes: Mapping[str, Sequence[int | None]],
    *,
    weights: Mapping[str, float] | None = None,
    reconstructs: bool = False,
) -> Recipe:
    """Return the recipe of one network, that of the model, with the objective of its losses.

    Losses, metrics, shapes (batch axis first) and weights are by output, ONE for a single output. A final softmax or
    sigmoid is removed if its cross-entropy can take logits; `final_activations` of the network record it.
    """
    check_names(model)
    check_training(model)
    loss, names = losses.get(ONE), output_names(model)
    classifies = loss is not None and loss.classifies(shapes.get(ONE, ())) and data.classes > 0 and not reconstructs
    wanted = {place: losses[name] for place, name in enumerate(names) if name in losses}
    model, activations = _logits_of(model, wanted, classifies=classifies)
    if data.input_shape or data.preparations:
        check_inputs(model, data)
    network = Network(MODEL, model, optimizer, final_activations=activations)
    ends = {names[each.output]: each.name for each in activations}
    if loss is not None and classifies:
        check_logits(model, data)
        classes = int(shapes[ONE][1] or 0)
        one_hot = loss.kind == ONE_HOT
        shown = ends.get(ONE) or (ENDS[loss.kind] if loss.kind and not loss.from_logits else None)
        measures = Measures(metrics.get(ONE, ()), activation=shown, kind=loss.kind, one_hot=one_hot, counted=True)
        own = Classification(classes=classes, label_smoothing=loss.label_smoothing, measures=measures)
        return Recipe([network], [own])

    called = list(dict.fromkeys([*losses, *metrics]))

    def head(name: str) -> Head:
        own, end = losses.get(name), ends.get(name)
        kind, activation = (None, None) if own is None else (own.kind, own.end)
        kind = BINARY if activation == "sigmoid" else kind  # a focal loss, too
        gives_logits = end is None and _gives_logits(model, own, name, names or called, data)
        shown = activation if gives_logits else end
        prefix = f"{name}_" if name else ""
        measures = Measures(metrics.get(name, ()), activation=shown, kind=kind, prefix=prefix)
        from_logits = gives_logits or name in ends or (own is not None and own.from_logits)
        return Head(own, measures, from_logits, float((weights or {}).get(name, 1.0)))

    heads = {name: head(name) for name in called}
    uneven = may_mask(model) or any(loss.ignored is not None for loss in losses.values())
    objective = KerasLoss(heads, names, classes=data.classes, reconstructs=reconstructs, uneven=uneven)
    return Recipe([network], [objective])


def may_mask(model: keras.Model) -> bool:
    """Return whether outputs of a model may carry a Keras mask; True for a subclassed model, where it is unknown."""
    return not is_graph(model) or any(mask_of(each) is not None for each in as_functional(model).outputs)


def output_names(model: keras.Model) -> list[str]:
    """Return the names of a model's outputs, in order: [ONE] for a single output, [] if unknown."""
    if not is_graph(model):
        return []
    struct = getattr(as_functional(model), "_outputs_struct", None)
    if isinstance(struct, Mapping):
        return list(keras.tree.flatten({name: name for name in struct}))
    return list(model.output_names) if isinstance(struct, list | tuple) else [ONE]


def by_output(
    model: keras.Model, loss: Any, metrics: Any = None, loss_weights: Any = None
) -> tuple[dict[str, Loss], dict[str, list[Any]], dict[str, float]]:
    """Return losses, metrics and loss weights by output, in the form that `recipe_of` takes."""
    names = output_names(model)
    called = list(as_functional(model).output_names) if names == [ONE] else names
    if repeated := {each for each in called if called.count(each) > 1}:
        raise UserError(
            f"The model '{model.name}' has several outputs named '{min(repeated)}'. Expected names that differ, "
            "such as those of a model that returns a dict."
        )
    keys = dict(zip(called, names, strict=True))
    losses = losses_of(loss, keys)
    return losses, metrics_of(metrics, losses, keys), weights_of(loss_weights, losses, keys)


def output_shapes(model: keras.Model, data: Data | None = None) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of a model's outputs by name, batch axis first; for a subclassed model, by a call with data."""
    if is_graph(model):
        shapes = [tuple(each.shape) for each in as_functional(model).outputs]
        return dict(zip(output_names(model), shapes, strict=True))
    if data is None:
        return {}
    outputs = first_outputs(model, data)
    named = outputs if isinstance(outputs, Mapping) else {ONE: outputs}
    return {name: (None, *tuple(each.shape)[1:]) for name, each in named.items() if hasattr(each, "shape")}


def _logits_of(
    model: keras.Model, wanted: Mapping[int, Loss], *, classifies: bool
) -> tuple[keras.Model, tuple[FinalActivation, ...]]:
    """Return a model without the final activations of its cross-entropies, and the removed activations."""
    if all(loss.kind is None or loss.from_logits for loss in wanted.values()):
        return model, ()
    stripped, found = take_off(model)
    losses = [wanted.get(each.output) for each in found]
    if all(
        loss and loss.kind and ENDS[loss.kind] == end.name and not loss.from_logits
        for loss, end in zip(losses, found, strict=True)
    ):
        return stripped, found
    for each in found:
        if each.attribute:
            each.operation.activation = getattr(keras.activations, each.name)
    if found and classifies:
        raise UserError(
            f"The model '{model.name}' has a {found[0]}, and loss={wanted[0].name} would take its values as logits. "
            f"Expected a softmax, or loss={BINARY} for targets of 0 and 1 of each class."
        )
    return model, ()


def _gives_logits(model: keras.Model, loss: Loss | None, name: str, names: Sequence[str], data: Data) -> bool:
    """Return whether a loss that expects probabilities would get logits."""
    linear = name in names and ends_linear(model, names.index(name))
    if loss is not None and loss.overlaps and linear:
        raise UserError(
            f"loss={loss.name} takes probabilities, and '{model.name}' ends without an activation. Expected a model "
            "of your own, whose last layer has a sigmoid or a softmax."
        )
    if loss is None or loss.end is None or loss.from_logits:
        return False
    if linear:
        return True
    outputs = first_outputs(model, data)  # visible even untrained: after a batch norm, some are outside [0, 1]
    found = outputs if name == ONE or outputs is None else _item(outputs, name, names)
    if not isinstance(found, tf.Tensor):
        return False
    values = tf.cast(found, tf.float32).numpy()
    return bool((values < 0).any() or (values > 1).any() or not ((values > 0) & (values < 1)).any())


def supervised(
    *,
    parts: Parts,
    loss: Any,
    metrics: Any = None,
    loss_weights: dict[str, float] | None = None,
    outputs: int | None = None,
    targets: str = TARGETS,
) -> Recipe:
    """Build the network of the config with any loss and metrics of Keras: regression, multi-label, dense prediction.

    A final softmax or sigmoid is removed for training if the loss can take logits; a network that ends without one is
    assumed to return logits. The arguments are described in `configs/task/supervised.yaml`.
    """
    check_choice("task.targets", targets, (TARGETS, INPUTS))
    if targets == INPUTS and parts.data.preparations:
        raise UserError("task.targets=inputs received for data with several inputs. Expected one input, or targets.")
    data, reconstructs = parts.data, targets == INPUTS
    width = outputs or _width(data, losses_of(loss, {}), reconstructs=reconstructs)
    model = parts.build_model(input_shape=data.model_shape, classes=width)
    losses, listed, weights = by_output(model, loss, metrics, loss_weights)
    shapes, optimizer = output_shapes(model, data), parts.build_optimizer()
    if not reconstructs:
        first = data.train.source.gather(tf.constant(data.train.indices[:PROBED]))
        if TARGETS in first:
            given = tf.nest.map_structure(np.asarray, first[TARGETS])
            check_targets(given, losses, shapes, f"The target of data '{data.name}'")
    return recipe_of(model, optimizer, losses, listed, data, shapes, weights=weights, reconstructs=reconstructs)


def _width(data: Data, losses: Mapping[str, Loss], *, reconstructs: bool) -> int:
    """Return the number of outputs for a built-in network: one per class, or the length of a row of targets."""
    if reconstructs:
        return int(data.input_shape[-1])
    loss = losses.get(ONE)
    if data.classes:
        return 1 if loss is not None and loss.kind == BINARY and data.classes == 2 else data.classes
    example = data.train.source.gather(tf.constant(data.train.indices[:1])).get(TARGETS)
    if isinstance(example, Mapping) and loss is not None:
        each = ", ".join(f"{name}: mean_squared_error" for name in example)
        raise UserError(
            f"Data '{data.name}' has the targets {', '.join(example)}, and there is one loss. Expected "
            f"'task.loss={{{each}}}', or other losses, and a model with these outputs, by model=custom."
        )
    if not isinstance(example, tf.Tensor):
        return 1
    if loss is not None and loss.kind == SPARSE:
        raise UserError(f"loss={SPARSE} received for targets {list(example.shape[1:])}. Set task.outputs.")
    return 1 if example.shape.rank == 1 else int(example.shape[-1])
