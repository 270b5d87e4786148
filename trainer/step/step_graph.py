"""The graph of one traced step, for viewing: branches and loop bodies are inlined into a single graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from hookline.trainer.select import unique_name
from hookline.trainer.step.writes import READING_OPS

VARIABLES = "variables"
MEASURES = "metrics"
"""Where the outputs of a branch are shown: they go into the sums of the metrics."""
LOOP = "while/"
"""The prefix that TensorFlow gives all names in the body of a loop."""


def step_graph(
    graph: tf.Graph, commits: Iterable[tf.Graph], variables: Mapping[str, tf.Variable]
) -> tf.compat.v1.GraphDef:
    """Return the ops of a traced step in one graph, before anything compiles or optimizes them, without dead ones.

    The branch that writes is inlined, and its writing ops wait for the deciding op. A variable is one node,
    "variables/<name>".
    """
    handles = {id(variable.handle): f"{VARIABLES}/{name}" for name, variable in variables.items()}
    branches = [each for each in dict.fromkeys(commits) if each is not graph]
    nodes = _Nodes([graph, *branches], handles)
    traced = {each: each.as_graph_def(add_shapes=True) for each in (graph, *branches)}
    for function, definition in traced.items():
        nodes.add(function, definition)
    for branch in branches:
        nodes.join(branch)
    # What a loop's body passes to its next iteration is no part of the step.
    is_body = any(operation.name.startswith(LOOP) for operation in graph.get_operations())
    nodes.keep_ancestors([] if is_body else [_tensor_name(each) for each in getattr(graph, "outputs", ())])
    return nodes.definition(traced[graph])


class _Nodes:
    """The nodes of functions that are joined into one graph, by their names in these functions."""

    def __init__(self, functions: Sequence[tf.Graph], handles: Mapping[int, str]) -> None:
        self.found: dict[str, tf.compat.v1.NodeDef] = {}
        self.same: dict[str, str] = {}  # tensors of a function to those of another, or to variables, as input names
        self.shown: dict[str, str] = {}  # names to show where they differ
        self.roots: list[str] = []  # nodes that may change a variable
        self._functions = functions
        self._handles = handles

    def add(self, function: tf.Graph, definition: tf.compat.v1.GraphDef) -> None:
        """Add the nodes of a function, without the placeholders of its captures."""
        for outer, inner in getattr(function, "captures", ()):
            if (source := self._source(outer)) is not None:
                self.same[_tensor_name(inner)] = source
        for node in definition.node:
            if node.name not in self.same:
                self.found[node.name] = node
        for operation in function.get_operations():
            if operation.type not in READING_OPS and any(each.dtype == tf.resource for each in operation.inputs):
                self.roots.append(operation.name)

    def _source(self, tensor: tf.Tensor) -> str | None:
        """Return the input name of what was captured; None for a value from outside the step."""
        if tf.is_symbolic_tensor(tensor):
            graph = tensor.graph
            if graph in self._functions:
                return _tensor_name(tensor)
            outer = {id(inner): each for each, inner in getattr(graph, "captures", ())}
            return self._source(outer[id(tensor)]) if id(tensor) in outer else None
        name = self._handles.get(id(tensor))
        if name is not None:
            self.found.setdefault(name, tf.compat.v1.NodeDef(name=name, op="VarHandleOp"))
        return name

    def join(self, branch: tf.Graph) -> None:
        """Replace the outputs of the op with this branch by those of the branch; only its condition stays."""
        node = next(
            each
            for each in self.found.values()
            if "then_branch" in each.attr and each.attr["then_branch"].func.name == branch.name
        )
        for index, tensor in enumerate(branch.outputs):
            self.same[f"{node.name}:{index}" if index else node.name] = _tensor_name(tensor)
        before, parent = f"{node.name}/", node.name.rpartition("/")[0]
        for name in (each.name for each in branch.get_operations()):
            if name in self.found:
                inside = name.removeprefix(before)
                stage = "" if "/" in inside else f"{MEASURES}/"
                self.shown[name] = f"{parent}/{stage}{inside}".lstrip("/")
                if name in self.roots:
                    self.found[name].input.append(f"^{node.name}")
        del node.input[1:]
        for attribute in ("then_branch", "else_branch"):
            del node.attr[attribute]  # a function that is shown nowhere

    def _followed(self, name: str) -> str:
        """Return the name of the node that an input really comes from; `same` has no control inputs."""
        while name in self.same:
            name = self.same[name]
        return name

    def keep_ancestors(self, outputs: Iterable[str]) -> None:
        """Connect the functions, and drop the nodes that lead to neither a write nor an output."""
        for node in self.found.values():
            node.input[:] = [self._followed(name) for name in node.input]
        waiting = [*self.roots, *(_node_name(self._followed(name)) for name in outputs)]
        kept: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in self.found and name not in kept:
                kept.add(name)
                waiting += [_node_name(each) for each in self.found[name].input]
        self.found = {name: node for name, node in self.found.items() if name in kept}

    def definition(self, traced: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
        """Return the nodes as a graph, with the functions that they call."""
        names = self._short_names()
        graph = tf.compat.v1.GraphDef(versions=traced.versions)
        for name, node in self.found.items():
            node.name = names[name]
            node.input[:] = [_renamed(each, names) for each in node.input]
            node.attr.pop("_class", None)  # colocation, by the former name
            graph.node.append(node)
        called = {each.func.name for node in graph.node for each in node.attr.values() if each.HasField("func")}
        graph.library.function.extend(each for each in traced.library.function if each.signature.name in called)
        return graph

    def _short_names(self) -> dict[str, str]:
        """Return the names to show, each once: without those of the loop and of branches."""
        names: dict[str, str] = {}
        taken: set[str] = set()
        for name in sorted(self.found, key=lambda each: each in self.shown):
            short = self.shown.get(name, name).removeprefix(LOOP)
            names[name] = unique_name(short, taken)
            taken.add(names[name])
        return names


def _tensor_name(tensor: tf.Tensor) -> str:
    """Return the name of a tensor as the input of a node."""
    return tensor.name.removesuffix(":0")


def _node_name(name: str) -> str:
    """Return the node that an input comes from."""
    return name.removeprefix("^").partition(":")[0]


def _renamed(name: str, names: Mapping[str, str]) -> str:
    node = _node_name(name)
    return name.replace(node, names.get(node, node), 1)
