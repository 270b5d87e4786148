"""Evaluation of a split, and observations of hooks on its examples."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import Arrays, GraphHook
from hookline.trainer.input.batches import EvaluationBatches
from hookline.trainer.input.data import Split
from hookline.trainer.objective import Batch, ObjectiveOutput
from hookline.trainer.step.forward import Forward
from hookline.trainer.step.means import any_of_batch, average_output, example_weights, sample_weights
from hookline.trainer.step.stage import ask, checked, in_stage, python_errors, refuse_repeated, takes_part, taking_part
from hookline.trainer.step.trainer import Trainer


class Observer:
    """Collect the data that graph hooks show: their `evaluate` on some examples of a split; traced at the first run."""

    def __init__(self, trainer: Trainer, split: Split, *, batch_size: int, placement: str = "auto") -> None:
        self._trainer = trainer
        self._limits = {h.name: min(h.observed_examples, split.size) for h in trainer.hooks if h.observed_examples}
        self._batches = {
            limit: EvaluationBatches(_spread(split, limit), batch_size=batch_size, placement=placement)
            for limit in set(self._limits.values())
        }
        self._functions: dict[int, tf.types.experimental.PolymorphicFunction] = {}

    def run(self, step: int) -> dict[str, Arrays]:
        """Return the observations of each hook: arrays [examples, ...] by name."""
        observed: dict[str, Arrays] = {}
        for limit, batches in self._batches.items():
            function = self._functions.setdefault(limit, self._function(limit))
            with python_errors():
                numbers = [tf.constant(index, tf.int64) for index in range(batches.count)]
                parts = [function(tf.constant(step, tf.int64), number) for number in numbers]
            for hook, values in parts[0].items():
                observed[hook] = {name: np.concatenate([p[hook][name] for p in parts])[:limit] for name in values}
        return observed

    def _function(self, limit: int) -> tf.types.experimental.PolymorphicFunction:
        hooks = [hook for hook in self._trainer.hooks if self._limits.get(hook.name) == limit]
        batch = self._batches[limit].batch
        return tf.function(lambda step, index: self._observe(hooks, step, batch(index)), autograph=False)

    def _observe(self, hooks: list[GraphHook], step: tf.Tensor, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        values: dict[str, dict[str, tf.Tensor]] = {}
        for objective in self._trainer.objectives:  # a hook observes the first one that it takes part in
            part = [hook for hook in hooks if takes_part(hook, objective.name, objective.trains)]
            asked = [hook for hook in part if hook.name not in values]
            if asked:
                forward = self._trainer.forward(step, batch, objective=objective.name, training=False)
                self._trainer.losses(objective, forward, batch)
            for hook in asked:
                context = replace(forward.passes[hook.network].context, observing=True)
                values[hook.name] = dict(ask(hook, "evaluate", context, batch=batch).collected)
        return values


def _spread(split: Split, limit: int) -> Split:
    """Return `limit` examples of a split, evenly spaced, since image folders are ordered by class."""
    rows = np.linspace(0, split.size - 1, limit).round().astype(np.int64)
    return Split(split.name, split.source, split.indices[rows])


def _first_rows(batch: Batch, rows: int) -> Batch:
    size = batch["weights"].shape[0]
    return tf.nest.map_structure(lambda each: each[:rows] if each.shape.rank and each.shape[0] == size else each, batch)


Collected = dict[str, dict[str, tf.Tensor]]
SplitMetrics = Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]]
HOOK = "hook/"  # prefix of the names of hooks, which are keys beside objectives


class Evaluator:
    """Trace and run the evaluation of one split."""

    def __init__(self, trainer: Trainer, batch: Callable[[tf.Tensor], Batch], count: int) -> None:
        self.trainer, self.batch, self._count = trainer, batch, count
        self.names: list[str] = []  # of the values that a run returns
        self._collected: Collected = {}
        self._of_split: dict[str, tuple[GraphHook, SplitMetrics | None]] = {}
        self._of_batch = False  # whether a value is one number per batch, which padding would change
        self._run = tf.function(self._loop, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64))

    @property
    def graph(self) -> tf.Graph:
        return self._run.graph

    def of(self, trainer: Trainer) -> Evaluator:
        """Return the evaluation of the same split with other networks, objectives or hooks."""
        return Evaluator(trainer, self.batch, self._count)

    def run(self, step: int) -> dict[str, float]:
        """Return "loss/<name>" and "metric/<name>" over the split: averages, and metrics of the split as a whole."""
        with python_errors():
            values, self._collected = self._run(tf.constant(step, tf.int64))
        return {name: float(value) for name, value in zip(self.names, values.numpy(), strict=True)}

    def collected(self, objective: str) -> Arrays:
        """Return arrays that an objective collected, [examples, ...], and sampled in the latest run; {} before it."""
        return {name: tensor.numpy() for name, tensor in self._collected.get(objective, {}).items()}

    def _loop(self, step: tf.Tensor) -> tuple[tf.Tensor, Collected]:
        # Weights are read and transformed once, outside the loop over batches.
        forward = self.trainer.forward(step, self.batch(tf.constant(0, tf.int64)), objective="", training=False)
        names: list[str] = []

        def sums_of(batch: Batch) -> tuple[tf.Tensor, tf.Tensor, Collected]:
            values, sizes, collected = self._values(forward.apart(), batch)  # a pass keeps tensors of its graph
            names[:] = list(values)
            sizes = tf.stack([tf.reduce_sum(example_weights(batch)), *(sizes[name] for name in names)])
            return tf.stack(list(values.values())) * sizes[1:], sizes, collected

        @tf.function(autograph=False)  # traced once, for the first batch and for the loop over the others
        def run_batch(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, Collected]:
            return sums_of(self.batch(index))

        @tf.function(autograph=False)
        def run_last(rows: int) -> tuple[tf.Tensor, tf.Tensor, Collected]:
            batch = self.batch(tf.constant(self._count - 1, tf.int64))
            size = batch["weights"].shape[0]
            more, sizes, collected = sums_of(_first_rows(batch, rows))
            padded = tf.minimum(tf.range(size), rows - 1)
            return more, sizes, tf.nest.map_structure(lambda tensor: tf.gather(tensor, padded), collected)

        def body(index: tf.Tensor, sums: tf.Tensor, sizes: tf.Tensor, kept: dict) -> tuple:
            more, more_sizes, collected = run_batch(index)
            kept = tf.nest.map_structure(
                lambda array, tensor: array.write(tf.cast(index, tf.int32), tensor), kept, collected
            )
            return index + 1, sums + more, sizes + more_sizes, kept

        sums, sizes, collected = run_batch(tf.constant(0, tf.int64))
        kept = tf.nest.map_structure(
            lambda tensor: tf.TensorArray(tensor.dtype, self._count).write(0, tensor), collected
        )
        rows = self._rows_of_last() if self._of_batch else None
        whole_batches = self._count - (rows is not None)
        _, sums, sizes, kept = tf.while_loop(
            lambda index, *_: index < whole_batches, body, [tf.constant(1, tf.int64), sums, sizes, kept]
        )
        if rows is not None:
            more, more_sizes, collected = run_last(rows)
            sums, sizes = sums + more, sizes + more_sizes
            kept = tf.nest.map_structure(lambda array, tensor: array.write(whole_batches, tensor), kept, collected)
        whole = tf.nest.map_structure(lambda array: array.concat()[: tf.cast(sizes[0], tf.int64)], kept)
        for objective in self.trainer.objectives:
            sampled, own = objective.sample(forward.apart()), whole[objective.name]
            if repeated := own.keys() & sampled.keys():
                raise UserError(f"'{objective.name}' collects and samples {sorted(repeated)}. Expected other names.")
            own |= {name: tf.convert_to_tensor(value) for name, value in sampled.items()}
        means = self._with_totals(dict(zip(names, tf.unstack(sums / sizes[1:]), strict=True)))
        means |= self._split_metrics(whole, means)
        self.names = list(means)
        return tf.stack(list(means.values())), whole

    def _rows_of_last(self) -> int | None:
        """Return how many examples of the last batch are real; None if it is full."""
        with tf.init_scope():
            weights = self.batch(tf.constant(self._count - 1, tf.int64)).get("weights")
            real = None if weights is None else int(tf.math.count_nonzero(weights))
        return None if weights is None or self._count == 1 or real == weights.shape[0] else real

    def _with_totals(self, means: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return means with recomputed totals of losses that are means over different numbers of values."""
        for objective in (each for each in self.trainer.objectives if each.uneven):
            start = f"{self._prefix(objective.name)}loss/"
            total = start + "total"
            means[total] = tf.add_n(
                [value for name, value in means.items() if name.startswith(start) and name != total]
            )
        return means

    def _values(self, forward: Forward, batch: Batch) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor], Collected]:
        """Return means over a batch, the weight of each in the mean over batches, and the tensors to keep."""
        values: dict[str, tf.Tensor] = {}
        sizes: dict[str, tf.Tensor] = {}
        collected: Collected = {}
        examples, samples = tf.reduce_sum(example_weights(batch)), tf.reduce_sum(sample_weights(batch))
        for objective in self.trainer.objectives:
            prefix = self._prefix(objective.name)
            computed = self.trainer.losses(objective, forward, batch)
            collected[objective.name] = computed.collected
            self._of_batch = self._of_batch or computed.of_batch
            for hook, context in taking_part(self.trainer.hooks, forward.contexts(objective)):
                with in_stage(hook, "evaluate"):
                    found = checked(hook, "evaluate", hook.evaluate(context), batch=batch)
                    added = {hook.scope + name: value for name, value in found.metrics.items()}
                    refuse_repeated(hook, "metrics", added, computed.metrics)
                    computed.metrics.update(average_output(ObjectiveOutput({}, added), batch)[1])
                    self._of_batch = self._of_batch or any_of_batch(added)
                if HOOK + hook.name not in collected:  # of the first objective that it takes part in
                    collected[HOOK + hook.name] = dict(found.collected)
                    self._of_split[HOOK + hook.name] = (hook, found.split_metrics)
            for kind, size, table in (("loss", examples, computed.losses), ("metric", samples, computed.metrics)):
                for key, value in ((f"{kind}/{name}", value) for name, value in table.items()):
                    values[prefix + key] = value
                    sizes[prefix + key] = size * computed.counts[key] if key in computed.counts else size
        return values, sizes, collected

    def _split_metrics(self, collected: Collected, known: Collection[str]) -> dict[str, tf.Tensor]:
        metrics = {
            f"{self._prefix(objective.name)}metric/{name}": tf.cast(value, tf.float32)
            for objective in self.trainer.objectives
            for name, value in objective.split_metrics(collected[objective.name]).items()
        }
        for key, (hook, function) in self._of_split.items():
            if function is not None:
                with in_stage(hook, "evaluate"):
                    found = checked(hook, "split_metrics", function(collected[key]))
                    added = {f"metric/{hook.scope}{name}": tf.cast(value, tf.float32) for name, value in found.items()}
                    refuse_repeated(hook, "metrics", added, {*known, *metrics})
                    metrics |= added
        return metrics

    def _prefix(self, objective: str) -> str:
        return f"{objective}/" if len(self.trainer.objectives) > 1 else ""
