"""Gradient accumulation: one step over several micro batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch, Objective, ObjectiveOutput
from hookline.trainer.ops.graph_walk import ancestors
from hookline.trainer.step.forward import Forward, NetworkPass
from hookline.trainer.step.means import Parts, example_weights, sample_weights
from hookline.trainer.step.metrics import Computed
from hookline.trainer.step.writes import written_variables

Compute = Callable[[Forward, Batch], Computed]
Key = tuple[str, str]  # network and name of a state variable


class MicroBatches(Parts):
    """The micro batches of a step, and the share of each in a mean."""

    def __init__(self, batch: Batch, count: int) -> None:
        super().__init__(batch, count, f"trainer.accumulation_steps={count}")
        # float32 [count]: the share of each part in a mean over the batch's examples, and in a sample-weighted one.
        self.shares = self.metric_shares = self._shares(example_weights(batch))
        if SAMPLE_WEIGHTS in batch:
            self.metric_shares = self._shares(sample_weights(batch))

    def _shares(self, weights: tf.Tensor) -> tf.Tensor:
        sums = tf.reduce_sum(self.cut(weights), axis=1)
        total = tf.reduce_sum(sums)
        return tf.where(total > 0, tf.math.divide_no_nan(sums, total), 1.0 / self.count)


def accumulate(
    forward: Forward,
    batch: Batch,
    *,
    changes: Iterable[str],
    compute: Compute,
    count: int,
    scale: tf.Tensor | None = None,
) -> tuple[Computed, list[tf.Tensor], list[tf.Tensor]]:
    """Run an objective on a batch in `count` micro batches, and set the contexts as a single pass over it would.

    Micro batches run one after another in a traced loop, so that the activations of only one are in memory. Losses,
    metrics and gradients are means over all examples; a loss of shape [] counts as the mean of its micro batch. State
    is passed from each micro batch to the next and written once, but state that does not depend on examples ("steady",
    such as a layer's call counter) advances once per step. Seed state is passed on, so that draws differ.

    Returns:
        The results of the objective; the tensors through which the loss depends on the latent variables; the gradients
        of the loss, times the scale, with respect to these tensors.
    """
    micro = MicroBatches(batch, count)
    step = _MicroStep(forward, micro, changes, compute, scale)
    sums, state, kept = step.run_all()
    for name, values in step.steady_state(batch).items():
        state[name] |= values
    for name, each in forward.passes.items():
        context = each.context
        context.losses, context.new_state = sums["losses"], state[name]
        context.outputs, context.taps = kept.get("outputs"), kept["taps"][name]
        each.changed |= state[name].keys()
        each.called = name in step.called
    forward.overflows += [count > 0.0 for count in sums["overflows"]]
    return Computed(sums["losses"], sums["metrics"], {}), step.reached, sums["gradients"]


def counted(objective: Objective, forward: Forward, batch: Batch, count: int) -> ObjectiveOutput:
    """Return an output with the `counts` of a whole batch, using the random draws of its `count` micro batches."""
    if count == 1:
        return objective.compute(forward.apart(), batch)
    micro, before = MicroBatches(batch, count), _state_of(forward)
    outputs: list[ObjectiveOutput] = []
    seeds = [(name, key) for name, each in forward.passes.items() for key in each.context.network.seed_names]

    def counts_of(index: tf.Tensor, values: list[tf.Tensor]) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        part = _forward_of(forward, index, before | dict(zip(seeds, values, strict=True)))
        outputs.append(objective.compute(part, micro.part(index)))
        return outputs[0].counts, [part.passes[name].state[key] for name, key in seeds]

    values, counts = [before[key] for key in seeds], []
    # A function without other outputs: ops that the counts do not depend on never run.
    function = tf.function(counts_of, autograph=False).get_concrete_function(tf.constant(0), values)
    for index in range(count):
        found, values = function(tf.constant(index), values)
        counts.append(found)
    return replace(outputs[0], counts={name: tf.concat([each[name] for each in counts], 0) for name in counts[0]})


def _state_of(forward: Forward) -> dict[Key, tf.Tensor]:
    return {(name, key): value for name, each in forward.passes.items() for key, value in each.state.items()}


def _forward_of(forward: Forward, index: tf.Tensor | None, state: Mapping[Key, tf.Tensor]) -> Forward:
    """Return the forward pass of micro batch `index`, or of the whole batch if None, with another state."""
    passes = {}
    for name, each in forward.passes.items():
        context = replace(each.context, micro_batch=index)
        passes[name] = NetworkPass(context, each.hooks, {key: state[name, key] for key in each.state})
    return Forward(passes, forward.training, forward.scale)


class _MicroStep:
    """The computation of one micro batch, traced once as a function of its index and of the state before it."""

    def __init__(
        self, forward: Forward, micro: MicroBatches, changes: Iterable[str], compute: Compute, scale: tf.Tensor | None
    ) -> None:
        self._forward, self._micro, self._compute, self._scale = forward, micro, compute, scale
        self._latent = {tensor.op for name in changes for tensor in forward.passes[name].context.latent.values()}
        self._before = _state_of(forward)
        self.reached: list[tf.Tensor] = []  # captured tensors between the latent variables and the loss
        self.called: set[str] = set()  # networks that were run
        self.steady: set[Key] = set()  # state variables whose new values do not depend on the examples
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self._before.values()]
        traced = tf.function(self._run, autograph=False)
        self._function = traced.get_concrete_function(tf.TensorSpec([], tf.int32), specs)

    def run_all(self) -> tuple[dict[str, Any], dict[str, dict[str, tf.Tensor]], dict[str, Any]]:
        """Return the sums, the final state by network and name, and the kept tensors, joined over the micro batches."""
        given = self._function.structured_outputs
        names = list(self._before)
        changed = {(name, key) for name, new in given["state"].items() for key in new} - self.steady

        def body(index: tf.Tensor, sums: Any, state: Any, kept: Any) -> tuple:
            values = [state[n][k] if (n, k) in changed else self._before[n, k] for n, k in names]
            found = self._function(index, values)
            sums = tf.nest.map_structure(tf.add, sums, found["sums"])
            kept = tf.nest.map_structure(lambda array, tensor: array.write(index, tensor), kept, found["kept"])
            return index + 1, sums, found["state"], kept

        zeros = tf.nest.map_structure(lambda each: tf.zeros(each.shape, each.dtype), given["sums"])
        state = {name: {key: self._before[name, key] for key in new} for name, new in given["state"].items()}
        arrays = tf.nest.map_structure(
            lambda each: tf.TensorArray(each.dtype, self._micro.count, element_shape=each.shape), given["kept"]
        )
        _, sums, state, arrays = tf.while_loop(
            lambda index, *_: index < self._micro.count,
            body,
            [tf.constant(0), zeros, state, arrays],
            parallel_iterations=1,
        )
        return sums, state, tf.nest.map_structure(_joined, arrays)

    def steady_state(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        """Return the values that a pass over the whole batch would write to steady state, by network and name."""
        if not self.steady:
            return {}

        def whole() -> dict[str, dict[str, tf.Tensor]]:
            forward = _forward_of(self._forward, None, self._before)
            self._compute(forward, batch)
            new = {name: each.context.new_state for name, each in forward.passes.items()}
            return {name: {key: new[name][key] for at, key in sorted(self.steady) if at == name} for name in new}

        # A function without other outputs: ops that depend on examples never run.
        return tf.function(whole, autograph=False).get_concrete_function()()

    def _run(self, index: tf.Tensor, state: list[tf.Tensor]) -> dict[str, Any]:
        before = dict(zip(self._before, state, strict=True))
        forward = _forward_of(self._forward, index, before)
        computed = self._compute(forward, self._micro.part(index))
        self.called = {name for name, each in forward.passes.items() if each.called}
        _refuse_writes(self._micro.count)
        share, metric_share = self._micro.shares[index], self._micro.metric_shares[index]
        sums: dict[str, Any] = {
            "losses": {name: value * share for name, value in computed.losses.items()},
            "metrics": {name: value * metric_share for name, value in computed.metrics.items()},
        }
        contexts = {name: each.context for name, each in forward.passes.items()}
        new_state = {name: context.new_state for name, context in contexts.items()}
        after = {(name, key): value for name, new in new_state.items() for key, value in new.items()}
        seeds = {(name, key) for name, context in contexts.items() for key in context.network.seed_names}
        self.steady = _independent_of(index, before, after) - seeds
        kept: dict[str, Any] = {"taps": {name: context.taps for name, context in contexts.items()}}
        outputs = next(iter(contexts.values())).outputs
        if outputs is not None:
            kept["outputs"] = outputs
        sums["overflows"] = [tf.cast(each, tf.float32) for each in forward.overflows]
        sums["gradients"] = self._gradients(sums["losses"]["total"])
        return {"sums": sums, "state": new_state, "kept": tf.nest.map_structure(_with_examples, kept)}

    def _gradients(self, loss: tf.Tensor) -> list[tf.Tensor]:
        """Set `reached`, and return the gradients of a loss with respect to it.

        Every path from a latent variable into this function passes through a captured tensor.
        """
        captured = [pair for pair in tf.compat.v1.get_default_graph().captures if self._is_trained(pair[0])]
        found = tf.gradients(loss, [inner for _, inner in captured], grad_ys=self._scale)
        pairs = [(outer, each) for (outer, _), each in zip(captured, found, strict=True) if each is not None]
        self.reached = [outer for outer, _ in pairs]
        return [tf.convert_to_tensor(each) for _, each in pairs]

    def _is_trained(self, tensor: tf.Tensor) -> bool:
        """Return whether a captured tensor depends on a latent variable."""
        operation = getattr(tensor, "op", None)  # an eager tensor has none
        return operation is not None and not self._latent.isdisjoint({operation, *ancestors(operation)})


def _independent_of(source: tf.Tensor, before: Mapping[Key, tf.Tensor], after: Mapping[Key, tf.Tensor]) -> set[Key]:
    """Return the keys of new values that depend neither on `source` nor on old values of variables that do."""
    operations = tf.compat.v1.get_default_graph().get_operations()
    reached = {source.op}
    while True:
        for operation in operations:  # in order of creation: the inputs of an op come before it
            if any(each.op in reached for each in operation.inputs) or not reached.isdisjoint(operation.control_inputs):
                reached.add(operation)
        dependent = {key for key, value in after.items() if value.op in reached}
        if all(before[key].op in reached for key in dependent):
            return after.keys() - dependent
        reached |= {before[key].op for key in dependent}


def _joined(array: tf.TensorArray) -> tf.Tensor:
    """Return the results of the micro batches as [examples, ...], in the order of the batch."""
    stacked = array.stack()
    return tf.reshape(stacked, tf.concat([[-1], tf.shape(stacked)[2:]], axis=0))


def _with_examples(value: Any) -> tf.Tensor:
    tensor = tf.convert_to_tensor(value)
    if tensor.shape.rank == 0:
        raise UserError(f"Outputs or taps hold a scalar ({tensor.name}). Expected trainer.accumulation_steps=1.")
    return tensor


def _refuse_writes(count: int) -> None:
    """Raise an error if the forward pass writes variables itself: it would do so in every micro batch."""
    operations = tf.compat.v1.get_default_graph().get_operations()
    if names := [each.name for each in operations if written_variables(each)]:
        raise UserError(
            f"The forward pass writes variables itself ({', '.join(names)}): {count} times a step, with "
            f"trainer.accumulation_steps={count}. Expected layers that keep such values in Keras variables which are "
            "not trainable, or trainer.accumulation_steps=1."
        )
