"""The traced loop, k steps without leaving the graph, and whether XLA compiles the step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import GraphHook
from hookline.trainer.input.batches import BatchQueue
from hookline.trainer.input.source import HOST
from hookline.trainer.objective import Batch
from hookline.trainer.step.metrics import Accumulators
from hookline.trainer.step.stage import named_scope, python_errors
from hookline.trainer.step.trainer import Trainer
from hookline.trainer.step.writes import READING_OPS, audit

BatchFunction = Callable[[tf.Tensor], Batch]
StepFunction = Callable[[tf.Tensor, Batch, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


class ChunkLoop:
    """Traces and runs chunks of steps. Building it traces and audits the step; nothing is trained yet.

    Several replicas of one process make each step side by side, each traced for itself, with variables of its own; only
    sums over the replicas join them. If their steps shared a resource, TensorFlow would run them one after the other,
    and the first would wait forever for the second's sums.
    """

    def __init__(
        self,
        trainer: Trainer | Sequence[Trainer],
        batch: BatchFunction | Sequence[BatchFunction],
        *,
        xla: bool,
    ) -> None:
        self.trainers = [trainer] if isinstance(trainer, Trainer) else list(trainer)  # one for each replica
        self.trainer = self.trainers[0]  # its metrics are kept
        self.graph = tf.Graph()  # in which the step itself is traced
        self.accumulators = Accumulators()
        self.veto_names: list[str] = []  # in the order of the flags
        self.xla = xla
        # Seconds that the latest chunk waited for batches: from when a step has written everything until every tensor
        # of the next batch is ready. An accelerator is asynchronous: there it counts from when the step is handed over.
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
        """Run steps until done or until one is vetoed; return the steps made so far, and the vetoes."""
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
        """Return the function that makes a replica's step: a graph of its own if XLA or several replicas need it."""
        step = partial(self._traced_step, trainer)
        if self.xla:
            return tf.function(step, autograph=False, jit_compile=True)
        return tf.function(step, autograph=False) if len(self.trainers) > 1 else step

    def _traced_step(
        self, trainer: Trainer, step: tf.Tensor, batch: Batch, sampled: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the sums and counts [metrics, 2] and the veto flags [vetoes] of one step; note their names."""
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
            del waited
            return tf.logical_and(step < end, tf.logical_not(tf.reduce_any(flags)))

        def body(step: tf.Tensor, flags: tf.Tensor, waited: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            del flags
            # Each op takes its turn among those that are ready, so these dependencies keep the clock before the work.
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

        shapes = [tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([])]  # the trace shows how many vetoes
        initial = [start, tf.zeros([0], tf.bool), tf.constant(0.0, tf.float64)]
        return tf.while_loop(go_on, body, initial, shape_invariants=shapes)


def _time_after(done: list[tf.Operation | tf.Tensor]) -> tf.Tensor:
    """Return the clock when ops have run and tensors are there, in seconds: float64 scalar."""
    with tf.device(HOST), tf.control_dependencies(done), named_scope("clock"):
        return tf.timestamp()


def _refuse_shared(calls: list[tf.Operation]) -> None:
    """Refuse steps of several replicas that TensorFlow would run one after the other."""
    seen: set[int] = set()
    for tensor in (each for call in calls for each in {id(t): t for t in call.inputs}.values()):
        if tensor.dtype == tf.resource and id(tensor) in seen:
            raise ValueError(
                f"Replicas share a variable or another resource ({tensor.name}), so that their steps would wait for "
                "each other forever. Expected one of its own for each: build it in the hook, not in its module."
            )
        seen.add(id(tensor))


def _writes_since(count: int) -> list[tf.Operation]:
    """Return what may write a variable among the ops of the graph being traced, without its first `count` ones."""
    operations = tf.compat.v1.get_default_graph().get_operations()[count:]
    return [each for each in operations if each.op_def.is_stateful and each.type not in READING_OPS]


PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def use_xla(mode: str, hooks: Iterable[GraphHook], *, replicas: int = 1) -> bool:
    """Return whether to compile the step with XLA.

    "auto" compiles on a GPU, and not on a CPU: there TensorFlow's own kernels were measured faster, for products 1.2 to
    2.5 times, for convolutions up to 100 times.
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
    """Say that XLA stays off because of ops in the step that call Python."""
    reason = f"the step calls Python at {ops[0]}{f' and {len(ops) - 1} more ops' if len(ops) > 1 else ''}"
    if mode == "on":
        raise UserError(
            f"trainer.compile=on received, but XLA cannot compile the step: {reason} (tf.numpy_function or "
            "tf.py_function). Use trainer.compile=auto, or TensorFlow ops in its place."
        )
    warnings.warn(f"XLA stays off: {reason}, which it cannot compile.", stacklevel=2)
