"""The trainer: one step over any networks, objectives and hooks, which computes and applies gradients separately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

import tensorflow as tf

from hookline.trainer.hook import Gradients, GraphHook
from hookline.trainer.network import Network
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch, Objective, ObjectiveOutput, check_ownership
from hookline.trainer.replicas.replica import Replica
from hookline.trainer.step import writes
from hookline.trainer.step.context import StepContext, named_scope
from hookline.trainer.step.forward import Forward, NetworkPass, read_network
from hookline.trainer.step.means import any_of_batch, average_output, check_examples, mean_counts, sample_weights
from hookline.trainer.step.metrics import (
    Computed,
    GradientNorms,
    LossScale,
    StepResult,
    SumAndCount,
    check_class_losses,
    check_optimizer,
    check_sample_weights,
    either,
    join_flags,
    join_replicas,
    mean_over_batch,
    unless,
    weigh_losses,
    when,
    with_counts,
)
from hookline.trainer.step.stage import ask, checked, in_stage, order_hooks, refuse_repeated, taking_part


@dataclass
class HalfStep:
    """The state of an objective's run between computing its gradients and applying them."""

    objective: Objective
    update: int
    batch: Batch
    forward: Forward
    computed: Computed
    contexts: dict[str, StepContext]  # of the networks that may change; `gradients` of each go to the optimizer
    begun: list[tf.Operation]  # ops from `Objective.begin`
    norms: Mapping[str, tf.Tensor]  # of the gradients before and after hooks
    sampled: tf.Tensor  # whether norms and measures are sampled in this step
    held_back: tf.Tensor | None  # whether the step was already held back; None if nothing could hold it back
    overflow: tf.Tensor | None

    @property
    def reported(self) -> dict[str, tf.Tensor]:
        """Return the losses and the metrics by their names in reports."""
        losses = {f"loss/{name}": value for name, value in self.computed.losses.items()}
        return losses | {f"metric/{name}": value for name, value in self.computed.metrics.items()}


class Trainer:
    """Build training steps.

    The order of a step: transform_weights, forward, losses, compute_gradients, transform_gradients, transform_state,
    UPDATE_OPS, apply_gradients under their control dependencies, project, measure. With several objectives, or several
    updates of one, each run of an objective follows this order: it begins with `Objective.begin`, and reads the values
    that the previous run wrote. A veto holds back its own run and all later ones in the step; earlier writes remain,
    and training ends there without a checkpoint of them.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        objectives: Sequence[Objective],
        hooks: Sequence[GraphHook],
        *,
        seed: int,
        accumulation_steps: int = 1,
        class_weights: tf.Tensor | None = None,
        loss_scale: LossScale | None = None,
        replica: Replica | None = None,
        sample_every: int = 1,
    ) -> None:
        """Order the built hooks and check that networks, with built optimizers, objectives and hooks fit together."""
        self.networks = {network.name: network for network in networks}
        self.objectives = list(objectives)  # in the order in which a step runs them
        self.hooks = order_hooks(hooks)  # in the order in which every stage calls them
        self.seed = seed
        self.accumulation_steps = accumulation_steps  # micro batches per step
        self.class_weights = class_weights  # float32 [classes], loss weights in training
        self.loss_scale = loss_scale  # for float16
        self.replica = replica or Replica()  # it trains on the part of every batch for this replica
        self.sample_every = sample_every  # steps between samples of the norms and of the hooks' measures
        self.commits: list[writes.Commit] = []  # of the latest trace, one for each run of an objective
        self.layer_losses = False  # whether layers add losses that depend on more than weights, as traced
        check_ownership(networks, self.objectives)
        if class_weights is not None:
            check_class_losses(self.objectives)
        for hook in self.hooks:
            ask(hook, "declare")
        for network in networks:
            check_optimizer(network, scaled=loss_scale is not None)

    def train_step(self, step: tf.Tensor, batch: Batch, *, sampled: tf.Tensor) -> StepResult:
        """Trace one step: every objective in order, each with its part of the batch.

        `sampled`, a bool scalar, requests a sample of the norms and of the hooks' measures even if none is due.
        """
        self.commits = []
        graph, result = tf.compat.v1.get_default_graph(), StepResult()
        for objective in self.objectives:
            prefix = f"{objective.name}/" if len(self.objectives) > 1 else ""
            for update, part in enumerate(writes.batch_parts(objective, batch)):
                start = len(graph.get_operations())
                with named_scope(*prefix.split("/")[:-1]):
                    half = self.first_half(objective, step, part, update, result.held_back, sampled=sampled)
                    run = self.second_half(half)
                with named_scope("metrics"):
                    result.add(run, prefix)
                writes.refuse_foreign(graph.get_operations()[start:], objective, self.networks, self.objectives)
        if self.loss_scale is not None and result.overflow is not None and result.held_back is not None:
            self.loss_scale.update(result.overflow, written=tf.logical_not(result.held_back))
        return result

    def first_half(
        self,
        objective: Objective,
        step: tf.Tensor,
        batch: Batch,
        update: int = 0,
        held_back: tf.Tensor | None = None,
        *,
        sampled: tf.Tensor,
    ) -> HalfStep:
        """Trace a run of an objective up to its optimizers' gradients, given whether the step was already held back."""
        with named_scope("begin"):
            begun = writes.begin_run(objective, self.networks, held_back)
        with tf.control_dependencies(begun):
            forward = self.forward(step, batch, objective=objective.name, training=True, update=update)
        computed, gradients, overflow = self._differentiate(objective, forward, batch)
        contexts = forward.contexts(objective)
        points = self._gradient_points(contexts, gradients)
        if points:
            with tf.control_dependencies(begun), named_scope("second_pass"):
                gradients, second = self._second_pass(objective, forward, points)
            overflow = None if overflow is None else tf.logical_or(overflow, second)
        norms = GradientNorms(gradients)
        for name, context in contexts.items():
            context.gradients = gradients[name]
        givers: dict[tuple[str, str], str] = {}  # hooks that replaced a gradient of None
        for hook, context in taking_part(self.hooks, contexts):
            given = context.gradients
            context.gradients = ask(hook, "transform_gradients", dict(given), context, given=context.latent)
            made = [name for name, value in context.gradients.items() if value is not None and given[name] is None]
            givers |= {(hook.network, name): hook.name for name in made}
            norms.add(hook, context.gradients)
        writes.refuse_thawed(self.hooks, contexts, givers)
        with named_scope("gradient_norms"):
            every = self.sample_every
            sampled = tf.constant(True) if every == 1 else tf.logical_or(tf.equal(step % every, 0), sampled)
            found = when(sampled, norms.compute)[1]
        return HalfStep(
            objective, update, batch, forward, computed, contexts, begun, found, sampled, held_back, overflow
        )

    def _differentiate(
        self, objective: Objective, forward: Forward, batch: Batch
    ) -> tuple[Computed, dict[str, Gradients], tf.Tensor | None]:
        """Return an objective's results, its gradients, and whether they overflowed, joined over replicas."""
        changed = {name: forward.passes[name] for name in objective.trains}
        if objective.uneven and (self.accumulation_steps > 1 or self.replica.count > 1):
            from hookline.trainer.step.accumulate import counted  # few runs need it

            batch = with_counts(counted(objective, forward, batch, self.accumulation_steps), batch, self.replica)
        if self.accumulation_steps == 1:
            computed = self.losses(objective, forward, batch)
            gradients = self.compute_gradients(computed.losses["total"], changed)
        else:
            from hookline.trainer.step.accumulate import accumulate  # few runs need it

            compute, count = partial(self.losses, objective), self.accumulation_steps
            computed, reached, upstream = accumulate(
                forward, batch, changes=changed, compute=compute, count=count, scale=self._scale
            )
            gradients = self.compute_gradients(reached, changed, upstream)
        with named_scope("join_replicas"):
            gradients = join_replicas(self.replica, gradients, forward.contexts(objective), computed)
        overflow = None
        if self.loss_scale is not None:
            with named_scope("loss_scale"):
                overflow = self.loss_scale.overflow(computed.losses["total"], gradients.values(), forward.overflows)
                (overflow,) = self.replica.any([overflow])
        return computed, gradients, overflow

    def _gradient_points(
        self, contexts: Mapping[str, StepContext], gradients: Mapping[str, Gradients]
    ) -> dict[str, dict[str, tf.Tensor]]:
        """Return the latent values at which hooks take the gradients instead, by network; empty if none does."""
        points: dict[str, dict[str, tf.Tensor]] = {}
        for hook, context in taking_part(self.hooks, contexts):
            if type(hook).gradient_point is not GraphHook.gradient_point:
                name, context.gradients = context.network.name, gradients[context.network.name]
                latent = points.get(name, context.latent)
                points[name] = ask(hook, "gradient_point", dict(latent), context, given=context.latent)
        return points

    def _second_pass(
        self, objective: Objective, first: Forward, points: Mapping[str, dict[str, tf.Tensor]]
    ) -> tuple[dict[str, Gradients], tf.Tensor | None]:
        """Return the gradients at other latent values, and whether they overflowed; the first pass is not changed."""
        copied, context = copy(self), next(iter(first.passes.values())).context
        # Attributes that hooks set while they are traced belong to the first pass.
        copied.hooks = [copy(hook) for hook in self.hooks]
        forward = copied.forward(
            context.step, context.batch, objective=objective.name, training=True, update=context.update, points=points
        )
        return copied._differentiate(objective, forward, context.batch)[1:]

    def second_half(self, half: HalfStep) -> StepResult:
        """Trace the rest of the run: state, vetoes, updates, apply, projections, measures."""
        for hook, context in taking_part(self.hooks, half.contexts):
            context.new_state = ask(hook, "transform_state", dict(context.new_state), context, given=context.new_state)
        vetoes, sums = self._vetoes(half), []
        for hook, context in taking_part(self.hooks, half.contexts):
            own = ask(hook, "batch_sums", context)
            sums += [(context, f"{hook.name}/{name}", value) for name, value in own.items()]
        vetoes = join_flags(self.replica, vetoes, sums)
        # Ops that the forward pass added in TensorFlow 1 style run along with those from `Objective.begin`.
        pending = dict.fromkeys(writes.pending_update_ops(), writes.FORWARD) | dict.fromkeys(half.begun, writes.BEGIN)
        stops = [*(each for each in (half.held_back, half.overflow) if each is not None), *vetoes.values()]
        with tf.control_dependencies(pending):
            committed, measures = unless(stops, partial(self._write, half, pending))
        sums_and_counts = self._sums(half, measures, committed)
        with named_scope("metrics"):
            left_out = tf.logical_not(committed) if stops else None
        return StepResult(sums_and_counts, vetoes, left_out, half.overflow)

    def _write(self, half: HalfStep, pending: Mapping[tf.Operation, str]) -> dict[str, tf.Tensor]:
        """Create the writes of a step, in order: UPDATE_OPS, apply, project; then measure. Record them."""
        graph, contexts = tf.compat.v1.get_default_graph(), half.contexts
        called = [name for name, each in half.forward.passes.items() if each.called]
        given = {name: dict(context.gradients) for name, context in contexts.items()}
        record = writes.Commit(half.objective.name, graph, half.update, called, given, added_by=dict(pending))
        changed_state = {name: sorted(half.forward.passes[name].changed) for name in contexts}
        writes.collect_updates(self.hooks, contexts, changed_state, record)
        with tf.control_dependencies(record.update_ops):
            start = len(graph.get_operations())
            for context in contexts.values():
                self.apply_gradients(context.network, context.gradients)
            written = writes.writes_of(graph.get_operations()[start:], writes.names_by_handle(contexts))
            trainable = {writes.label(key, name, contexts) for key, each in contexts.items() for name in each.latent}
            record.apply_ops = {name: operations for name, operations in written.items() if name in trainable}
        record.note_hooks(hook for hook, _ in taking_part(self.hooks, contexts))
        with tf.control_dependencies(record.applied):
            for hook in self.hooks:
                if hook.network in contexts:  # even if it takes no part: its guarantee is about the network
                    ask(hook, "project", contexts[hook.network])
            measures = when(half.sampled, partial(self._measure, half))[1]
        self.commits.append(record)
        return measures

    def forward(
        self,
        step: tf.Tensor,
        batch: Batch,
        *,
        objective: str,
        training: bool,
        update: int = 0,
        points: Mapping[str, dict[str, tf.Tensor]] | None = None,
    ) -> Forward:
        """Return a forward pass with the weights of every network read and transformed.

        `objective` is a name, or empty for no particular one; `points` replace values of latent variables, by network.
        """
        trains = next((each.trains for each in self.objectives if each.name == objective), tuple(self.networks))
        several = len(self.networks) > 1 or len(self.objectives) > 1
        replica, passes = self.replica if training else Replica(), {}
        for name, network in self.networks.items():
            stream = f"{name}/{objective if training else ''}/" if several else ""
            stream += f"{update}/" if update else ""
            context = StepContext(
                step, self.seed, training, objective, network, batch, update=update, stream=stream, replica=replica
            )
            latent = (points or {}).get(name)
            passes[name] = read_network(network, self.hooks, context, keeps_state=name in trains, latent=latent)
        scale = self.loss_scale.inner() if training and self.loss_scale is not None else None
        return Forward(passes, training, scale)

    def losses(self, objective: Objective, forward: Forward, batch: Batch) -> Computed:
        """Run an objective, and average its metrics and its losses, including those of layers and hooks."""
        for each in forward.passes.values():  # in an evaluation, earlier objectives have used them
            each.layer_losses, each.losses_of_batch = [], False
        with named_scope("losses"):
            output = objective.compute(forward, batch)
            check_examples("loss", output.losses, batch)
            check_examples("metric", output.metrics, batch)
            check_sample_weights(objective, output.losses, batch)
            if forward.training and self.class_weights is not None:
                output.losses = weigh_losses(objective, output.losses, batch, self.class_weights)
            losses, metrics = average_output(output, batch)
            counts, of_batch = mean_counts(output, batch), any_of_batch({**output.losses, **output.metrics})
        for name, current in forward.passes.items():
            context = current.context
            # In an evaluation, one forward pass serves many batches and all objectives.
            context.batch, context.objective = batch, objective.name
            context.outputs, context.losses = output.outputs, losses
            context.new_state = {key: current.state[key] for key in sorted(current.changed)}
            if current.layer_losses and name in objective.trains:
                summed = [tf.reduce_sum(tf.cast(loss, tf.float32)) for loss in current.layer_losses]  # as Keras does
                losses[f"layers_{name}"] = tf.add_n(summed)
                of_batch = of_batch or current.losses_of_batch
                self.layer_losses = self.layer_losses or current.losses_of_batch
        for hook, context in taking_part(self.hooks, forward.contexts(objective)):
            with in_stage(hook, "add_losses"):
                own = checked(hook, "add_losses", hook.add_losses(context), batch=batch)
                added = {hook.scope + name: value for name, value in own.items()}
                refuse_repeated(hook, "losses", added, {*losses, "total"})
                losses.update(average_output(ObjectiveOutput(added), batch)[0])
                of_batch = of_batch or any_of_batch(added)
        with named_scope("losses"):
            losses["total"] = tf.add_n(list(losses.values()))
        return Computed(losses, metrics, output.collected, counts, of_batch)

    def compute_gradients(
        self,
        loss: tf.Tensor | list[tf.Tensor],
        passes: Mapping[str, NetworkPass],
        upstream: list[tf.Tensor] | None = None,
    ) -> dict[str, Gradients]:
        """Return the gradients of a loss with respect to the latent variables that the passes read, by network.

        With `upstream`, `loss` lists the tensors through which the loss depends on these variables, and `upstream` the
        gradients with respect to these tensors, times the loss scale. `tf.gradients` honours both custom_gradient and
        gradient_override_map.
        """
        latent = [(name, key, tensor) for name, each in passes.items() for key, tensor in each.context.latent.items()]
        upstream = self._scale if upstream is None else upstream
        with named_scope("compute_gradients"):
            values = tf.gradients(loss, [tensor for _, _, tensor in latent], grad_ys=upstream)
        gradients: dict[str, Gradients] = {name: {} for name in passes}
        for (name, key, _), value in zip(latent, values, strict=True):
            gradients[name][key] = None if value is None else tf.convert_to_tensor(value)
        if self.loss_scale is None:
            return gradients
        return {name: self.loss_scale.divided(each) for name, each in gradients.items()}

    @property
    def _scale(self) -> tf.Tensor | None:
        return None if self.loss_scale is None else tf.convert_to_tensor(self.loss_scale.value)

    def apply_gradients(self, network: Network, gradients: Gradients) -> None:
        """Apply gradients by variable name with the network's optimizer; variables with gradient None stay unchanged.

        An optimizer with a loss scale divides by it, so it gets gradients times the scale; hooks get the true ones.
        """
        pairs = [(gradients[name], v) for name, v in network.trainable_variables.items() if gradients[name] is not None]
        if pairs:
            with named_scope("apply_gradients", network.name):
                scaled = [network.optimizer.scale_loss(gradient) for gradient, _ in pairs]
                network.optimizer.apply(scaled, [variable for _, variable in pairs])

    def _vetoes(self, half: HalfStep) -> dict[str, tf.Tensor]:
        """Return the hooks' vetoes, bool scalars by name; none is raised if gradients overflowed."""
        vetoes: dict[str, tf.Tensor] = {}
        for hook, context in taking_part(self.hooks, half.contexts):
            for name, flag in ask(hook, "veto", context).items():
                vetoes[hook.scope + name] = either(vetoes.get(hook.scope + name), flag)
        if half.overflow is None:
            return vetoes
        return {name: tf.logical_and(flag, tf.logical_not(half.overflow)) for name, flag in vetoes.items()}

    def _measure(self, half: HalfStep) -> dict[str, tf.Tensor]:
        measures: dict[str, tf.Tensor] = {}
        for hook, context in taking_part(self.hooks, half.contexts):
            with in_stage(hook, "measure"):
                found = checked(hook, "measure", hook.measure(context))
                own = {hook.scope + name: tf.identity(tf.cast(value, tf.float32)) for name, value in found.items()}
                refuse_repeated(hook, "measures", own, {*half.reported, *half.norms, *measures})
                measures |= own
        return measures

    def _sums(self, half: HalfStep, measures: Mapping[str, tf.Tensor], committed: tf.Tensor) -> dict[str, SumAndCount]:
        """Return all reported values of the run, as sums and counts over the steps that are written."""
        with named_scope("metrics"):
            means = mean_over_batch(self.replica, half.batch, list(measures.values()))
            count = tf.cast(committed, tf.float32)
            sums = {name: (tf.where(committed, value, 0.0), count) for name, value in half.reported.items()}
            if SAMPLE_WEIGHTS in half.batch:  # across steps, too, a metric is an average over weighted examples
                (weight,) = self.replica.sum([tf.reduce_sum(sample_weights(half.batch))])
                names = [f"metric/{name}" for name in half.computed.metrics]
                sums |= {name: (sums[name][0] * weight, count * weight) for name in names}
            counted = tf.logical_and(committed, half.sampled)
            count, samples = tf.cast(counted, tf.float32), dict(zip(measures, means, strict=True)) | {**half.norms}
            sums |= {name: (tf.where(counted, value, 0.0), count) for name, value in samples.items()}
        return sums
