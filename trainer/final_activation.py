"""The softmax or sigmoid at the end of a model: removed if the loss takes logits, and restored in exports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.graph import as_functional, graph_calls, is_graph, is_of, maker
from hookline.trainer.input.data import Data
from hookline.trainer.ops.probabilities import are_probabilities, as_logits

NAMES = {"softmax": "softmax", "softmax_v2": "softmax", "sigmoid": "sigmoid"}
"""By the name of a function or, in lower case, of a class; TensorFlow's own softmax is called `softmax_v2`."""
ACTIVATED = ("Activation", "Dense", "EinsumDense", "Conv1D", "Conv2D", "Conv3D", "SeparableConv1D", "SeparableConv2D")
"""Layers that apply their attribute `activation` last."""
RESHAPING = ("Flatten", "Identity", "Reshape")
EXAMPLES = 8


@dataclass(frozen=True)
class FinalActivation:
    """Describe a final activation that is removed for training."""

    name: str  # "softmax" or "sigmoid"
    output: int  # index of the model output that has it
    operation: Any  # the layer that has it as its `activation`, or the layer or operation that only computes it
    attribute: bool  # whether it is the layer's `activation`; otherwise the operation was removed from the graph

    def __str__(self) -> str:
        return f"final {self.name} ('{self.operation.name}')"


def take_off(model: keras.Model) -> tuple[keras.Model, tuple[FinalActivation, ...]]:
    """Return a model of the same layers that returns logits, and the final activations that were removed."""
    found = []
    for output in range(len(as_functional(model).outputs) if is_graph(model) else 0):
        operation = _last_operation(model, output)
        function = getattr(operation, "activation", None) if is_of(operation, ACTIVATED) else None
        name = _name_of(function or type(operation))
        if name is None or sum(call.operation is operation for call in graph_calls(model)) > 1:
            continue
        if function is not None:
            operation.activation = keras.activations.linear
        else:
            model = _without(model, operation)
        found.append(FinalActivation(name, output, operation, function is not None))
    return model, tuple(found)


@contextmanager
def put_back(model: keras.Model, activations: Sequence[FinalActivation]) -> Iterator[keras.Model]:
    """Yield the model with its final activations, and remove them again after the block."""
    try:
        yield with_final(model, activations)
    finally:
        for each in activations:
            if each.attribute:
                each.operation.activation = keras.activations.linear


def with_final(model: keras.Model, activations: Sequence[FinalActivation]) -> keras.Model:
    """Return the model with its final activations restored: in their layers, or after what a hook appended to these."""
    ends: dict[int, Callable[[Any], Any]] = {}
    for each in activations:
        if not each.attribute:
            ends[each.output] = each.operation
        elif _last_operation(model, each.output) is each.operation:
            each.operation.activation = getattr(keras.activations, each.name)
        else:
            name, dtype = f"{each.operation.name}_{each.name}_{each.output}", each.operation.dtype_policy
            ends[each.output] = keras.layers.Activation(each.name, name=name, dtype=dtype)
    return _change_outputs(model, ends)


def undo(model: keras.Model, activations: Sequence[FinalActivation]) -> keras.Model:
    """Return the model with its final activations inverted, so that it returns logits; masks are passed on."""

    def undoing(name: str) -> Callable[[Any], Any]:
        function = partial(as_logits, activation=name, ops=keras.ops)
        return keras.layers.Lambda(function, mask=lambda _, mask: mask, autocast=False)

    return _change_outputs(model, {each.output: undoing(each.name) for each in activations})


def check_logits(model: keras.Model, data: Data) -> None:
    """Refuse a model whose outputs are probabilities although no final activation was found."""
    if not model.built or ends_linear(model):
        return
    outputs = first_outputs(model, data)
    if isinstance(outputs, tf.Tensor) and are_probabilities(np.asarray(tf.cast(outputs, tf.float32))):
        raise UserError(
            f"The network '{model.name}' returns probabilities (on the first examples, in [0, 1] with a sum of 1), and "
            "its loss would apply a second softmax. Expected logits: leave out the final softmax, or let a functional "
            "or Sequential model end with it."
        )


def first_outputs(model: keras.Model, data: Data) -> Any:
    """Return a model's outputs for the first training examples; None if it fails on them."""
    inputs = data.train.source.gather(tf.constant(data.train.indices[:EXAMPLES]))["inputs"]
    listed = (model.trainable_variables, model.non_trainable_variables)
    trained, others = ([each.value for each in variables] for variables in listed)
    try:
        outputs, _ = model.stateless_call(trained, others, inputs)  # writes nothing: seed states do not advance
    except Exception:  # noqa: BLE001 - the first step reports the error
        return None
    return outputs


def _name_of(function: Any) -> str | None:
    """Return the activation that a function or class of Keras or TensorFlow computes, if it is a softmax or sigmoid."""
    package = (getattr(function, "__module__", None) or "").partition(".")[0]
    return NAMES.get(getattr(function, "__name__", "").lower()) if package in ("keras", "tensorflow") else None


def ends_linear(model: keras.Model, output: int = 0) -> bool:
    """Return whether an output comes from a layer with a linear activation."""
    operation = _last_operation(model, output) if is_graph(model) else None
    return is_of(operation, ACTIVATED) and getattr(operation, "activation", None) is keras.activations.linear


def _last_operation(model: keras.Model, output: int) -> Any:
    """Return the operation that computes an output's values; None if other parts of the graph use them, too."""
    tensor, node = as_functional(model).outputs[output], None
    while (node := maker(model, tensor, node)) is not None:
        if is_graph(node.operation):
            place = [each is tensor for each in node.output_tensors].index(True)
            return _last_operation(node.operation, place)
        if not _keeps_values(node):
            return node.operation
        tensor = node.input_tensors[0]
    return None


def _keeps_values(node: Any) -> bool:
    """Return whether a layer is a linear activation, or only adds or removes axes of size 1 around [batch, n]."""
    layer, output = node.operation, node.output_tensors[0].shape
    if is_of(layer, ["Activation"]):
        return layer.activation is keras.activations.linear
    given = node.input_tensors[0].shape if is_of(layer, RESHAPING) else ()
    return given[-1:] == output[-1:] and all(size == 1 for size in (*given[1:-1], *output[1:-1]))


def _without(model: keras.Model, operation: Any) -> keras.Model:
    def clone(layer: Any) -> Any:
        inside = is_graph(layer) and any(each.operation is operation for each in graph_calls(layer))
        return _without(layer, operation) if inside else layer

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        return (*args, *kwargs.values())[0] if layer is operation else layer(*args, **kwargs)

    return keras.models.clone_model(as_functional(model), clone_function=clone, call_function=call)


def _change_outputs(model: keras.Model, changes: dict[int, Callable[[Any], Any]]) -> keras.Model:
    if not changes:
        return model
    graph = as_functional(model)
    outputs = [changes[place](each) if place in changes else each for place, each in enumerate(graph.outputs)]
    return keras.Model(graph.input, keras.tree.pack_sequence_as(graph.output, outputs), name=model.name)
