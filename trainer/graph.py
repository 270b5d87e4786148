"""Selection of a model's layers by patterns on their paths, and queries on the graph of a functional model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import keras

from hookline.trainer.errors import UserError, did_you_mean

Fact = TypeVar("Fact")
MOST_LISTED = 40
_MOVES = ("Flip", "Rotation", "Translation", "Zoom", "Shear", "Perspective", "Erasing")
_COLORS = ("Contrast", "Brightness", "ColorJitter", "Hue", "Saturation", "Sharpness", "Grayscale", "Invert")
AUGMENTING = {f"Random{change}" for change in (*_MOVES, *_COLORS, "GaussianBlur")}
"""Keras layers that change images in training only."""


def layer_paths(model: keras.Model) -> dict[str, keras.Layer]:
    """Return all layers of a built model, nested ones too, by path, in the order of `model.layers`, containers first.

    The path joins the names of nested models and of layers that hold layers with "/", such as "encoder/dense_1".
    Repeated paths get the suffixes "_1", "_2", ... in order. A layer that occurs in several places is listed once.
    """
    found: dict[str, keras.Layer] = {}
    _collect(model, "", found, {id(model)})
    return found


def _collect(parent: keras.Layer, prefix: str, found: dict[str, keras.Layer], seen: set[int]) -> None:
    # Layers that are not models hold layers too (wrappers, blocks), but have no public list of them.
    inner = (
        parent.layers
        if isinstance(parent, keras.Model)
        else parent._flatten_layers(include_self=False, recursive=False)
    )
    for layer in inner:
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        path = unique_name(prefix + layer.name, found)
        found[path] = layer
        _collect(layer, path + "/", found, seen)


def unique_name(name: str, taken: Container[str]) -> str:
    """Return a name, with the suffix "_1", "_2", ... if it is taken."""
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
    return next(each for each in names if each not in taken)


def select_layers(
    model: keras.Model,
    patterns: str | Sequence[str],
    *,
    accept: Callable[[keras.Layer], bool] | None = None,
    kind: str = "layer",
) -> dict[str, keras.Layer]:
    """Return the layers that match any pattern, by path, in the order of `layer_paths`.

    Args:
        model: any built Keras model.
        patterns: one or more case-sensitive shell patterns ("*", "conv_?", "encoder/*"), each compared with the whole
            path and with the layer's own name.
        accept: returns whether a layer may be selected, such as one with a kernel; all layers by default.
        kind: what error messages call these layers, such as "kernel layer".

    Raises:
        UserError: no pattern was given, or one of them matches nothing; the message lists the paths.
    """
    offered = {path: layer for path, layer in layer_paths(model).items() if accept is None or accept(layer)}
    names: dict[str, tuple[str, ...]] = {path: (path, layer.name) for path, layer in offered.items()}
    return {path: offered[path] for path in _matches(patterns, names, kind)}


def _matches(patterns: str | Sequence[str], names: dict[str, tuple[str, ...]], kind: str) -> list[str]:
    """Return the paths with a name that matches any of the patterns; every pattern must match something."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not patterns:
        raise UserError(f"No {kind} pattern was given. Expected one or more, such as '*'.")
    chosen: set[str] = set()
    for pattern in patterns:
        matched = {path for path, each in names.items() if any(fnmatchcase(name, pattern) for name in each)}
        if not matched:
            raise _no_match(pattern, names, kind)
        chosen |= matched
    return [path for path in names if path in chosen]


def _no_match(pattern: str, names: dict[str, tuple[str, ...]], kind: str) -> UserError:
    if not names:
        return UserError(f"The pattern '{pattern}' matches no {kind}: the model has none.")
    hint = did_you_mean(pattern, dict.fromkeys(name for each in names.values() for name in each))
    listed = list(names)[:MOST_LISTED]
    more = f", and {len(names) - len(listed)} more" if len(names) > len(listed) else ""
    return UserError(f"The pattern '{pattern}' matches no {kind}.{hint} Expected one of: {', '.join(listed)}{more}.")


def graph_calls(model: keras.Model) -> list[Any]:
    """Return every call in a model's graph in topological order; nested models whose graph is known are expanded.

    A call is a Keras node with `operation` (a layer or another operation), `input_tensors` and `output_tensors`.
    """
    calls: list[Any] = []
    for node in nodes_in_order(model):
        calls += graph_calls(node.operation) if is_graph(node.operation) else [node]
    return calls


def nodes_in_order(model: keras.Model) -> list[Any]:
    """Return the nodes of a model's own graph in topological order, without inputs."""
    return [node for node in _nodes(model) if not node.is_input]


def walk(model: keras.Model, start: Fact, visit: Callable[[Any, list[Fact], list[Any]], Fact]) -> Any:
    """Propagate facts instead of tensors through a model's graph, nested models included; return those of its outputs.

    `visit(operation, facts, constants)` returns the fact about the outputs of an operation; `constants` are its
    arguments that are not facts.
    """

    def call(operation: Any, *args: Any, **kwargs: Any) -> Any:
        given = keras.tree.flatten((args, kwargs))
        facts = [each for each in given if isinstance(each, type(start))]
        if is_graph(operation):
            return run(operation, facts)
        found = visit(operation, facts, [each for each in given if not isinstance(each, type(start))])
        return [found] * len(keras.tree.flatten(operation.output))

    def run(graph: keras.Model, inputs: list[Fact]) -> Any:
        # Keras itself clones and calls functional models with this method; it accepts any values.
        return as_functional(graph)._run_through_graph(inputs, call_fn=call)

    return run(model, [start for _ in model.inputs])


def is_of(layer: Any, names: Iterable[str]) -> bool:
    """Return whether a layer is an instance of one of the named Keras classes."""
    return isinstance(layer, tuple(getattr(keras.layers, name) for name in names))


def is_graph(layer: Any) -> bool:
    """Return whether a layer is a model with a known graph: built, Sequential or functional, with Keras's `call`."""
    if not isinstance(layer, keras.Model) or type(layer).call.__module__.partition(".")[0] != "keras":
        return False
    return layer.built if isinstance(layer, keras.Sequential) else hasattr(layer, "_run_through_graph")


def as_functional(model: keras.Model) -> keras.Model:
    """Return a functional model of the same layers for a Sequential; return a functional model unchanged."""
    if not isinstance(model, keras.Sequential):
        return model
    # With the lists `inputs` and `outputs`, the new model would expect a list and warn about every bare tensor.
    return keras.Model(model.inputs[0], model.outputs[0], name=model.name)


def layer_input(model: keras.Model, layer: keras.Layer) -> Any:
    """Return the input tensor of a layer in a model's own graph."""
    return _single(_node(model, layer).input_tensors, layer, "inputs")


def layer_output(model: keras.Model, layer: keras.Layer) -> Any:
    """Return the output tensor of a layer in a model's own graph."""
    return _single(_node(model, layer).output_tensors, layer, "outputs")


def maker(model: keras.Model, tensor: Any, taker: Any = None) -> Any:
    """Return the node of a model's own graph that produces a tensor; None if a node other than `taker` consumes it."""
    nodes = _nodes(model)
    if any(each is tensor for node in nodes if node is not taker for each in node.input_tensors):
        return None
    return next(node for node in nodes if any(each is tensor for each in node.output_tensors))


def _node(model: keras.Model, layer: keras.Layer) -> Any:
    if not is_graph(model):
        raise UserError(
            f"The model '{model.name}' is a {type(model).__name__}. Expected a functional or Sequential model."
        )
    nodes = [node for node in _nodes(model) if node.operation is layer]
    if len(nodes) != 1:
        found = f"is called {len(nodes)} times in" if nodes else "is not a direct part of"
        raise UserError(f"The layer '{layer.name}' {found} the model '{model.name}'. Expected one that is called once.")
    return nodes[0]


def _nodes(model: keras.Model) -> list[Any]:
    """Return the nodes of a model's own graph in topological order, inputs included."""
    functional = model._functional if isinstance(model, keras.Sequential) else model
    levels = functional._nodes_by_depth
    return [node for depth in sorted(levels, reverse=True) for node in levels[depth]]


def _single(tensors: list[Any], layer: keras.Layer, what: str) -> Any:
    if len(tensors) != 1:
        raise UserError(f"The layer '{layer.name}' has {len(tensors)} {what}. Expected one that has one.")
    return tensors[0]


CONVOLUTIONS = ("Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
FOLDING = ("Dense", *CONVOLUTIONS, "DepthwiseConv1D", "DepthwiseConv2D")


def folded_norms(model: keras.Model) -> list[tuple[keras.Layer, keras.Layer]]:
    """Return pairs of a linear layer that is called once and the batch norm that is the only consumer of its output."""
    pairs = []
    for graph in (each for each in model._flatten_layers() if is_graph(each)):
        nodes = _nodes(graph)
        for node in (each for each in nodes if is_of(each.operation, ["BatchNormalization"])):
            source = maker(graph, node.input_tensors[0], node)
            layer = None if source is None else source.operation
            once = [sum(each.operation is part for each in nodes) for part in (node.operation, layer)] == [1, 1]
            tensor, norm = node.input_tensors[0], node.operation
            inner = not any(each is tensor for each in graph.outputs)
            if once and is_linear(layer) and inner and norm.axis in (-1, len(tensor.shape) - 1):
                pairs.append((layer, norm))
    return pairs


def is_linear(layer: Any) -> bool:
    """Return whether a layer only multiplies by a kernel and adds an optional bias."""
    return is_of(layer, FOLDING) and layer.activation is keras.activations.linear


def fold_shape(layer: keras.Layer, kernel: Any) -> tuple[int, ...]:
    """Return the shape in which one factor per output channel broadcasts against a layer's kernel."""
    if is_of(layer, ["DepthwiseConv1D", "DepthwiseConv2D"]):
        return tuple(kernel.shape[-2:])
    return (-1, 1) if type(layer).__name__.endswith("Transpose") else (-1,)
