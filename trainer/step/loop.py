"""The traced loop: k steps without leaving the graph."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainer.objective import Batch
from trainer.step.audit import audit
from trainer.step.metrics import Accumulators
from trainer.step.python_errors import python_errors
from trainer.step.trainer import Trainer

BatchFunction = Callable[[tf.Tensor], Batch]


class ChunkLoop:
    """Trace and run chunks of steps. Building it traces and audits the step; nothing is trained yet.

    Attributes:
        trainer: builds the step.
        accumulators: the sums of the training metrics.
        veto_names: of the vetoes, in the order of the flags.
        xla: whether XLA compiles the step.
        graph: in which the step itself was traced.
    """

    def __init__(self, trainer: Trainer, batch: BatchFunction, *, xla: bool) -> None:
        """Trace the loop and audit the step in it.

        Args:
            trainer: builds the step.
            batch: returns the batch of a step (int64 scalar); called inside the traced loop.
            xla: whether to compile the step (not the loop around it) with XLA.

        Raises:
            UserError: the audit refuses the step.
        """
        self.trainer = trainer
        self.graph = tf.Graph()
        self.accumulators = Accumulators()
        self.veto_names: list[str] = []
        self.xla = xla
        self._batch = batch
        self._step = tf.function(self._traced_step, autograph=False, jit_compile=True) if xla else self._traced_step
        scalar = tf.TensorSpec([], tf.int64)
        self._loop = tf.function(self._run, autograph=False).get_concrete_function(scalar, scalar)
        self.accumulators.reset()
        for commit in trainer.commits:
            audit(commit)

    @property
    def loop_graph(self) -> tf.Graph:
        """Return the graph of the whole loop; the step is in the body of its while op."""
        return self._loop.graph

    def run(self, start: int, steps: int) -> tuple[int, list[str]]:
        """Run steps until done or until one is vetoed.

        Args:
            start: steps made before.
            steps: how many to make.

        Returns:
            Steps made since the start of the run, and the names of the vetoes that held back the next one.
        """
        with python_errors():
            step, flags = self._loop(tf.constant(start, tf.int64), tf.constant(steps, tf.int64))
        raised = [name for name, flag in zip(self.veto_names, flags.numpy(), strict=True) if flag]
        return int(step) - bool(raised), raised

    def _traced_step(self, step: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the sums and counts [metrics, 2] and the veto flags [vetoes] of one step; note their names."""
        self.graph = tf.compat.v1.get_default_graph()
        result = self.trainer.train_step(step, batch)
        self.accumulators.names = list(result.sums)
        self.veto_names = list(result.vetoes)
        sums = tf.stack([tf.stack([total, count]) for total, count in result.sums.values()])
        flags = tf.stack(list(result.vetoes.values())) if result.vetoes else tf.zeros([0], tf.bool)
        return sums, flags

    def _run(self, start: tf.Tensor, steps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        end = start + steps

        def go_on(step: tf.Tensor, flags: tf.Tensor) -> tf.Tensor:
            return tf.logical_and(step < end, tf.logical_not(tf.reduce_any(flags)))

        def body(step: tf.Tensor, flags: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            del flags
            sums, flags = self._step(step, self._batch(step))
            self.accumulators.add(sums)
            return step + 1, flags

        shapes = [tf.TensorShape([]), tf.TensorShape([None])]  # how many vetoes there are shows when the body is traced
        return tf.while_loop(go_on, body, [start, tf.zeros([0], tf.bool)], shape_invariants=shapes)
