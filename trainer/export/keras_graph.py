"""The graph of a Keras model as operations of packed files."""

from __future__ import annotations

from typing import Any

import keras

from trainer.errors import UserError
from trainer.export.layer_ops import NoOperationError, Step, layer_steps
from trainer.export.node import Node
from trainer.graph import as_functional, is_graph
from trainer.inference.graph import Op


class _Value:
    """Stand for a tensor in a walk through a graph.

    Attributes:
        name: of the value.
    """

    def __init__(self, name: str) -> None:
        self.name = name


class _Walk:
    """Collect the operations of a model, those of the models inside it among them."""

    def __init__(self, model: keras.Model) -> None:
        self.nodes: list[Node] = []
        self.problems: list[str] = []
        self.names: set[str] = set()
        self.input = self._new_name(str(model.inputs[0].name))
        self.output = self._run(model, [_Value(self.input)], "")[0].name

    def _run(self, model: keras.Model, inputs: list[_Value], prefix: str) -> list[_Value]:
        def interpret(operation: Any, *args: Any, **kwargs: Any) -> Any:
            given = keras.tree.flatten((args, kwargs))
            values = [each for each in given if isinstance(each, _Value)]
            if kwargs.get("training"):  # dropout, or statistics of the batch, in evaluations too
                self.problems.append(f"{prefix}{operation.name} ({type(operation).__name__}: training=True)")
            if is_graph(operation):
                found = self._run(operation, values, f"{prefix}{operation.name}/")
            else:
                constants = [each for each in given if not isinstance(each, _Value) and each is not None]
                found = self._add(operation, values, constants, f"{prefix}{operation.name}")
            return keras.tree.pack_sequence_as(operation.output, found)

        # The walk that Keras itself clones and calls functional models with; it takes any values.
        outputs = as_functional(model)._run_through_graph(inputs, call_fn=interpret)
        return [each for each in keras.tree.flatten(outputs) if isinstance(each, _Value)]

    def _add(self, operation: Any, values: list[_Value], constants: list[Any], path: str) -> list[_Value]:
        """Return the values of a layer's outputs, in their order."""
        count = len(keras.tree.flatten(operation.output))
        try:
            if any(not isinstance(each, bool) for each in constants):
                raise NoOperationError("an argument that is no tensor of the network")
            steps = layer_steps(operation)
        except NoOperationError as problem:
            why = f": {problem}" if str(problem) else ""
            self.problems.append(f"{path} ({type(operation).__name__}{why})")
            return values[:1] * count
        if not steps:
            return values[:count]
        return [self._add_steps(steps, values, path)]

    def _add_steps(self, steps: list[Step], values: list[_Value], path: str) -> _Value:
        for step in steps:
            output = _Value(self._new_name(path if step is steps[-1] else f"{path}/{step.op}"))
            fields = {key: value for key, value in step.fields.items() if value is not None}
            op = Op(step.op, path, tuple(each.name for each in values), output.name, fields)
            self.nodes.append(Node(op, step.arrays, step.call))
            values = [output]
        return values[0]

    def _new_name(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self.names:
            count += 1
            name = f"{wanted}:{count}"
        self.names.add(name)
        return name


def keras_graph(model: keras.Model) -> tuple[str, list[Node], str]:
    """Return the name of a model's input, its operations in order, and the name of its output.

    Models inside it are taken apart. Layers that work in training alone, such as dropout, are left out.

    Args:
        model: with the values in its variables that the file shall hold.

    Raises:
        UserError: there is no graph, more than one input or output, or a layer that no operation stands for.
    """
    if not is_graph(model):
        raise UserError(
            f"format=packed needs a network whose graph is known. '{model.name}' is a {type(model).__name__}. "
            "Expected a functional or Sequential model, or format=saved_model."
        )
    if (len(model.inputs), len(model.outputs)) != (1, 1):
        raise UserError(
            f"'{model.name}' has {len(model.inputs)} inputs and {len(model.outputs)} outputs. Expected one of each for "
            "format=packed, or format=keras."
        )
    if None in model.inputs[0].shape[1:]:
        raise UserError(
            f"'{model.name}' takes inputs of the shape {model.inputs[0].shape[1:]}. Expected one that is known for "
            "format=packed, or format=keras."
        )
    walk = _Walk(model)
    if walk.problems:
        raise UserError(
            f"format=packed has no operation for {', '.join(walk.problems)} of '{model.name}'. Expected a network "
            "without, or format=saved_model."
        )
    return walk.input, walk.nodes, walk.output
