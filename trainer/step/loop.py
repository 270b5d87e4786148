"""The traced loop of k steps inside the graph, the choice of XLA for the step, and the step's graph for viewing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.graph import unique_name
from hookline.trainer.hook import GraphHook
from hookline.trainer.input.batches import BatchQueue
from hookline.trainer.input.data import HOST
from hookline.trainer.objective import Batch
from hookline.trainer.step.context import named_scope
from hookline.trainer.step.metrics import Accumulators
from hookline.trainer.step.stage import python_errors
from hookline.trainer.step.trainer import Trainer
from hookline.trainer.step.writes import READING_OPS, audit

BatchFunction = Callable[[tf.Tensor], Batch]
StepFunction = Callable[[tf.Tensor, Batch, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


class ChunkLoop:
    """Trace and run chunks of steps. The constructor traces and audits the step; nothing is trained yet.

    Several replicas in one process run each step side by side. Each is traced separately, with its own variables; only
    sums over the replicas connect them. If their steps shared a resource, TensorFlow would run them sequentially, and
    the first would wait forever for the sums of the second.
    """

    def __init__(
        self, trainer: Trainer | Sequence[Trainer], batch: BatchFunction | Sequence[BatchFunction], *, xla: bool
    ) -> None:
        self.trainers = [trainer] if isinstance(trainer, Trainer) else list(trainer)  # one for each replica
        self.trainer = self.trainers[0]  # its metrics are kept
        self.graph = tf.Graph()  # in which the step itself is traced
        self.accumulators = Accumulators()
        self.veto_names: list[str] = []  # in the order of the flags
        self.xla = xla
        # Seconds that the latest chunk waited for batches: from the last write of a step until every tensor of the next
        # batch is ready. On an accelerator, which is asynchronous, it counts from when the step is enqueued.
        self.waited = 0.0
        self._batches = [batch] if callable(batch) else list(batch)
        self._steps = [self._step_of(each) for each in self.trainers]
        scalar = tf.TensorSpec([], tf.int64)
        self._loop = tf.function(self._run, autograph=False).get_concrete_function(scalar, scalar)
        self.accumulators.reset()
        for commit in (commit for each in self.trainers for commit in each.commits):
            audit(commit)

    @property
    def loop_graph(self) -> tf.Graph:
        """Return the graph of the whole loop; the step is in the body of its while op."""
        return self._loop.graph

    def run(self, start: int, steps: int) -> tuple[int, list[str]]:
        """Run steps until done or until one is vetoed; return the total steps made, and the names of raised vetoes."""
        queues = [each for each in self._batches if isinstance(each, BatchQueue)]
        for queue in queues:
            queue.seek(start)
        with python_errors():
            step, flags, waited = self._loop(tf.constant(start, tf.int64), tf.constant(steps, tf.int64))
        self.waited = float(waited)
        for queue in queues:
            queue.position = int(step)
        raised = [name for name, flag in zip(self.veto_names, flags.numpy(), strict=True) if flag]
        return int(step) - bool(raised), raised

    def _step_of(self, trainer: Trainer) -> StepFunction:
        """Return the function for a replica's step, with a graph of its own if XLA or several replicas need one."""
        step = partial(self._traced_step, trainer)
        if self.xla:
            return tf.function(step, autograph=False, jit_compile=True)
        return tf.function(step, autograph=False) if len(self.trainers) > 1 else step

    def _traced_step(
        self, trainer: Trainer, step: tf.Tensor, batch: Batch, sampled: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the sums and counts [metrics, 2] and the veto flags [vetoes] of one step; record their names."""
        with tf.device(trainer.replica.device):
            result = trainer.train_step(step, batch, sampled=sampled)
        if trainer is self.trainer:
            self.graph = tf.compat.v1.get_default_graph()
            self.accumulators.names = list(result.sums)
            self.veto_names = list(result.vetoes)
        with named_scope("metrics"):
            sums = tf.stack([tf.stack([total, count]) for total, count in result.sums.values()])
            flags = tf.stack(list(result.vetoes.values())) if result.vetoes else tf.zeros([0], tf.bool)
        return sums, flags

    def _run(self, start: tf.Tensor, steps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        end = start + steps

        def go_on(step: tf.Tensor, flags: tf.Tensor, waited: tf.Tensor) -> tf.Tensor:
            return tf.logical_and(step < end, tf.logical_not(tf.reduce_any(flags)))

        def body(step: tf.Tensor, flags: tf.Tensor, waited: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            # Ops that are ready are queued, so these dependencies make the clock run before the work.
            asked = _time_after([waited])
            with tf.control_dependencies([asked]), named_scope("batch"):
                batches = [batch(tf.identity(step)) for batch in self._batches]
            ready = _time_after(tf.nest.flatten(batches))
            with tf.control_dependencies([ready]), named_scope("batch"):
                batches = tf.nest.map_structure(tf.identity, batches)
            before = len(tf.compat.v1.get_default_graph().get_operations())
            with tf.control_dependencies([ready]), named_scope("metrics"):
                first = self.accumulators.is_empty()  # so that a report of few steps has a sample
            results = [make(step, batch, first) for make, batch in zip(self._steps, batches, strict=True)]
            if len(results) > 1:
                _refuse_shared(tf.compat.v1.get_default_graph().get_operations()[before:])
            sums, flags = results[0]
            with named_scope("metrics"):
                self.accumulators.add(sums)
            done = [*_writes_since(before), *(each for each, _ in results)]
            with tf.device(HOST), tf.control_dependencies(done), named_scope("clock"):
                waited += ready - asked
            return step + 1, flags, waited

        shapes = [tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([])]  # tracing shows the number of vetoes
        initial = [start, tf.zeros([0], tf.bool), tf.constant(0.0, tf.float64)]
        return tf.while_loop(go_on, body, initial, shape_invariants=shapes)


def _time_after(done: list[tf.Operation | tf.Tensor]) -> tf.Tensor:
    """Return the time after ops have run and tensors are ready, in seconds: float64 scalar."""
    with tf.device(HOST), tf.control_dependencies(done), named_scope("clock"):
        return tf.timestamp()


def _refuse_shared(calls: list[tf.Operation]) -> None:
    """Raise an error if steps of several replicas share a resource: TensorFlow would run them sequentially."""
    seen: set[int] = set()
    for tensor in (each for call in calls for each in {id(t): t for t in call.inputs}.values()):
        if tensor.dtype == tf.resource and id(tensor) in seen:
            raise ValueError(
                f"Replicas share a variable or another resource ({tensor.name}), so that their steps would wait for "
                "each other forever. Expected one of its own for each: build it in the hook, not in its module."
            )
        seen.add(id(tensor))


def _writes_since(count: int) -> list[tf.Operation]:
    """Return the ops that may write a variable in the graph being traced, without its first `count` ops."""
    operations = tf.compat.v1.get_default_graph().get_operations()[count:]
    return [each for each in operations if each.op_def.is_stateful and each.type not in READING_OPS]


PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def use_xla(mode: str, hooks: Iterable[GraphHook], *, replicas: int = 1) -> bool:
    """Return whether to compile the step with XLA.

    "auto" compiles on a GPU but not on a CPU, where TensorFlow's own kernels were faster in measurements: 1.2 to 2.5
    times for products, up to 100 times for convolutions.
    """
    blocking = [hook.name for hook in hooks if not hook.supports_xla]
    if mode == "on" and blocking:
        raise UserError(
            f"trainer.compile=on received, but XLA cannot compile {', '.join(blocking)}. Use trainer.compile=auto."
        )
    if mode == "on" and replicas > 1:
        raise UserError(
            f"trainer.compile=on received with {replicas} replicas, whose sums XLA does not compile. Use "
            "trainer.compile=auto."
        )
    if mode != "auto" or replicas > 1:
        return mode == "on"
    pays = bool(tf.config.list_physical_devices("GPU"))
    if pays and blocking:
        warnings.warn(f"XLA stays off: it cannot compile {', '.join(blocking)}.", stacklevel=2)
    return pays and not blocking


def python_ops(graph: tf.Graph) -> list[str]:
    """Return the names of the ops that call Python, such as `tf.numpy_function`, which XLA cannot compile."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    return list(dict.fromkeys(node.name for node in nodes if node.op in PYTHON_OPS))


def keep_xla_off(mode: str, ops: Sequence[str]) -> None:
    """Warn that XLA stays off because ops in the step call Python; raise an error if mode is "on"."""
    reason = f"the step calls Python at {ops[0]}{f' and {len(ops) - 1} more ops' if len(ops) > 1 else ''}"
    if mode == "on":
        raise UserError(
            f"trainer.compile=on received, but XLA cannot compile the step: {reason} (tf.numpy_function or "
            "tf.py_function). Use trainer.compile=auto, or TensorFlow ops instead."
        )
    warnings.warn(f"XLA stays off: {reason}, which it cannot compile.", stacklevel=2)


VARIABLES = "variables"
MEASURES = "metrics"
"""Scope in which the outputs of a branch are shown, as they are added to the sums of the metrics."""
LOOP = "while/"
"""The prefix that TensorFlow gives all names in the body of a loop."""


def step_graph(
    graph: tf.Graph, commits: Iterable[tf.Graph], variables: Mapping[str, tf.Variable]
) -> tf.compat.v1.GraphDef:
    """Return the ops of a traced step in one graph, before compilation or optimization, without dead ops.

    The branch that writes is inlined, and its writing ops get a control dependency on the deciding op. Each variable is
    one node, "variables/<name>".
    """
    handles = {id(variable.handle): f"{VARIABLES}/{name}" for name, variable in variables.items()}
    branches = [each for each in dict.fromkeys(commits) if each is not graph]
    nodes = _Nodes([graph, *branches], handles)
    traced = {each: each.as_graph_def(add_shapes=True) for each in (graph, *branches)}
    for function, definition in traced.items():
        nodes.add(function, definition)
    for branch in branches:
        nodes.join(branch)
    # Values that a loop's body passes to its next iteration are not part of the step.
    is_body = any(operation.name.startswith(LOOP) for operation in graph.get_operations())
    nodes.keep_ancestors([] if is_body else [_tensor_name(each) for each in getattr(graph, "outputs", ())])
    return nodes.definition(traced[graph])


class _Nodes:
    """The nodes of functions that are merged into one graph, by their names in these functions."""

    def __init__(self, functions: Sequence[tf.Graph], handles: Mapping[int, str]) -> None:
        self.found: dict[str, tf.compat.v1.NodeDef] = {}
        self.same: dict[str, str] = {}  # tensors of a function to those of another, or to variables, as input names
        self.shown: dict[str, str] = {}  # displayed names that differ from the actual ones
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
        """Return the input name of a captured tensor; None for a value from outside the step."""
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
        """Replace the outputs of the op that has this branch by those of the branch; keep only the op's condition."""
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
        """Return the name of the input's original source; `same` has no control inputs."""
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
        """Return unique names to show, without the prefixes of the loop and of branches."""
        names: dict[str, str] = {}
        taken: set[str] = set()
        for name in sorted(self.found, key=lambda each: each in self.shown):
            short = self.shown.get(name, name).removeprefix(LOOP)
            names[name] = unique_name(short, taken)
            taken.add(names[name])
        return names


def _tensor_name(tensor: tf.Tensor) -> str:
    """Return the name of a tensor in the form of a node's input."""
    return tensor.name.removesuffix(":0")


def _node_name(name: str) -> str:
    """Return the node that an input comes from."""
    return name.removeprefix("^").partition(":")[0]


def _renamed(name: str, names: Mapping[str, str]) -> str:
    node = _node_name(name)
    return name.replace(node, names.get(node, node), 1)
