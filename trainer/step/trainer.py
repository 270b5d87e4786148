"""The trainer: one step over any networks, objectives and hooks, with computing and applying gradients kept apart."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import Gradients, GraphHook
from hookline.trainer.network import Network
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch, Objective
from hookline.trainer.order import first_instances, order_hooks
from hookline.trainer.replicas.replica import Replica
from hookline.trainer.step.accumulate import accumulate, refuse_accumulation
from hookline.trainer.step.audit import BEGIN, FORWARD, Commit, check_ownership, find_objective
from hookline.trainer.step.commit import (
    commit_step,
    commit_unless_vetoed,
    join_flags_and_sums,
    join_replicas,
    mean_over_batch,
)
from hookline.trainer.step.context import Draws, StepContext
from hookline.trainer.step.forward import Forward, NetworkPass, read_network
from hookline.trainer.step.hook_stages import add_losses, add_metrics, transform_gradients, transform_state, vetoes_of
from hookline.trainer.step.losses import LossScale, check_class_losses, refuse_second_scale, weigh_losses
from hookline.trainer.step.metrics import Computed, average_output, check_sample_weights, sample_weights
from hookline.trainer.step.returned import check_declared, checked
from hookline.trainer.step.stage import in_stage, named_scope
from hookline.trainer.step.step_result import HalfStep, StepResult
from hookline.trainer.step.updates import batch_parts, begin_run, pending_update_ops
from hookline.trainer.step.writes import Writes


class Trainer:
    """Build training steps.

    The order of a step: transform_batch, transform_weights, transform_statistics, forward, losses, compute_gradients,
    transform_gradients, transform_state, UPDATE_OPS, apply_gradients under their control dependencies, project,
    measure. With several objectives, or several updates of one, that is the order of each run of one: it begins with
    `Objective.begin`, and reads what the run before left. A veto holds back its own run and all that comes after it in
    the step; what came before stays written, and the run ends there without a checkpoint of it.

    Attributes:
        networks: by name.
        objectives: in the order in which a step runs them.
        hooks: in the order in which every stage calls them.
        accumulation_steps: micro batches in which a step computes its batch.
        class_weights: float32 [classes], how much the losses of each class weigh in training; None for all alike.
        loss_scale: multiplies the loss for the gradients of float16; None for none.
        replica: whose part of every batch it trains on.
        norms_every: steps from one sample of the norms of gradients to the next.
        commits: records of the latest trace, one for each run of an objective, for the audit and the plan.
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
        norms_every: int = 1,
    ) -> None:
        """Order the hooks and check that networks, objectives and hooks fit together.

        Args:
            networks: with unique names, their optimizers built.
            objectives: with unique names.
            hooks: built.
            seed: the run's seed, for the hooks' draws.
            accumulation_steps: micro batches in which a step computes its batch, see `accumulate`; 1 for all at once.
            class_weights: float32 [classes], see `weigh_losses`; None for all alike.
            loss_scale: for networks that compute in float16; a step whose gradients overflow for it is left out, and
                the loop continues. None to differentiate the loss as it is.
            replica: whose part of every batch it trains on; None for the only one.
            norms_every: steps from one sample of the norms of gradients to the next, see `GradientNorms`.
        """
        self.networks = {network.name: network for network in networks}
        self.objectives = list(objectives)
        self.hooks = order_hooks(hooks)
        self.seed = seed
        self.accumulation_steps = accumulation_steps
        self.class_weights = class_weights
        self.loss_scale = loss_scale
        self.replica = replica or Replica()
        self.norms_every = norms_every
        self.commits: list[Commit] = []
        check_ownership(networks, self.objectives)
        if class_weights is not None:
            check_class_losses(self.objectives)
        self._check_hooks()
        for network in networks:
            refuse_accumulation(network)
            if loss_scale is not None:
                refuse_second_scale(network)

    def _check_hooks(self) -> None:
        for hook in self.hooks:
            if hook.network not in self.networks:
                known = ", ".join(self.networks)
                raise UserError(f"The hook '{hook.name}' works on the network '{hook.network}'. Expected: {known}.")
            check_declared(hook)

    def train_step(self, step: tf.Tensor, batch: Batch) -> StepResult:
        """Trace one step: every objective in order.

        Args:
            step: int64 scalar, steps made before this one.
            batch: as the input gives it.
        """
        self.commits = []
        graph, writes = tf.compat.v1.get_default_graph(), Writes(self.networks.values(), self.objectives)
        start = len(graph.get_operations())
        batch = self.transform_batch(step, batch)
        writes.refuse_foreign(graph.get_operations()[start:], None)
        result = StepResult()
        for objective in self.objectives:
            prefix = f"{objective.name}/" if len(self.objectives) > 1 else ""
            for update, part in enumerate(batch_parts(objective, batch)):
                start = len(graph.get_operations())
                with named_scope(*prefix.split("/")[:-1]):
                    run = self._objective_step(objective, step, part, update, result.held_back)
                with named_scope("metrics"):
                    result.add(run, prefix)
                writes.refuse_foreign(graph.get_operations()[start:], objective)
        if self.loss_scale is not None and result.overflow is not None and result.held_back is not None:
            self.loss_scale.update(result.overflow, written=tf.logical_not(result.held_back))
        return result

    def transform_batch(self, step: tf.Tensor, batch: Batch) -> Batch:
        """Return the batch after the hooks' `transform_batch`, for training.

        Args:
            step: int64 scalar.
            batch: as the input gives it.
        """
        for hook in first_instances(self.hooks):
            with in_stage(hook, "transform_batch"):
                context = self._context(hook.network, step, batch, objective="", training=True)
                batch = checked(hook, "transform_batch", hook.transform_batch(dict(batch), context), given=batch)
        return batch

    def forward(self, step: tf.Tensor, batch: Batch, *, objective: str, training: bool, update: int = 0) -> Forward:
        """Return a forward pass with the weights of every network read and transformed.

        Args:
            step: int64 scalar.
            batch: what hooks see; the forward pass itself gets its inputs when it is called.
            objective: name of the objective; empty for none in particular.
            training: whether layers run in training mode.
            update: which of the objective's runs in this step.
        """
        passes = {}
        changes = find_objective(objective, self.objectives).trains if objective else tuple(self.networks)
        for name, network in self.networks.items():
            context = self._context(name, step, batch, objective=objective, training=training, update=update)
            passes[name] = read_network(network, self.hooks, context, keeps_state=name in changes)
        draws = Draws(self.seed, step, objective, update, training, replica=self.replica.index)
        scale = self.loss_scale.inner() if training and self.loss_scale is not None else None
        return Forward(passes, training, draws, scale)

    def _context(
        self, network: str, step: tf.Tensor, batch: Batch, *, objective: str, training: bool, update: int = 0
    ) -> StepContext:
        several = len(self.networks) > 1 or len(self.objectives) > 1
        stream = f"{network}/{objective if training else ''}/" if several else ""
        return StepContext(
            step,
            self.seed,
            training,
            objective,
            self.networks[network],
            batch,
            update=update,
            stream=stream + (f"{update}/" if update else ""),
            replica=self.replica if training else Replica(),
        )

    def losses(self, objective: Objective, forward: Forward, batch: Batch) -> Computed:
        """Run an objective, and average its losses and metrics.

        Args:
            objective: what to compute.
            forward: the networks.
            batch: the batch.
        """
        with named_scope("losses"):
            output = objective.compute(forward, batch)
            check_sample_weights(objective, output.losses, batch)
            if forward.training and self.class_weights is not None:
                output.losses = weigh_losses(objective, output.losses, batch, self.class_weights)
            losses, metrics = average_output(output, batch)
        for name, current in forward.passes.items():
            # In an evaluation, one forward pass serves many batches and all objectives.
            current.context.batch, current.context.objective = batch, objective.name
            current.context.outputs = output.outputs
            current.context.losses = losses
            current.context.new_state = {key: current.state[key] for key in sorted(current.changed)}
            if current.layer_losses and name in objective.trains:
                losses[f"layers_{name}"] = tf.add_n([tf.cast(loss, tf.float32) for loss in current.layer_losses])
        contexts = _contexts(objective, forward)
        add_losses(self.hooks, contexts, batch, losses)
        with named_scope("losses"):
            losses["total"] = tf.add_n(list(losses.values()))
        if not forward.training:
            add_metrics(self.hooks, contexts, batch, metrics)
        return Computed(losses, metrics, output.collected)

    def compute_gradients(
        self,
        loss: tf.Tensor | list[tf.Tensor],
        passes: Mapping[str, NetworkPass],
        upstream: list[tf.Tensor] | None = None,
    ) -> dict[str, Gradients]:
        """Return the gradients of a loss with respect to the latent variables that the passes read.

        `tf.gradients` honours both custom_gradient and gradient_override_map.

        Under a loss scale, that of scale * loss is computed, and divided by the scale.

        Args:
            loss: scalar; or, with `upstream`, the tensors through which the loss depends on the latent variables.
            passes: of the networks that may change, by name.
            upstream: the gradients with respect to these tensors of the loss, times the scale where there is one.

        Returns:
            By network name, then by variable name; None if the loss does not depend on the variable.
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
        """Let the network's optimizer apply gradients; variables whose gradient is None stay.

        Args:
            network: whose variables move.
            gradients: by variable name.
        """
        pairs = [(gradients[name], v) for name, v in network.trainable_variables.items() if gradients[name] is not None]
        if pairs:
            with named_scope("apply_gradients", network.name):
                network.optimizer.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])

    def _objective_step(
        self, objective: Objective, step: tf.Tensor, batch: Batch, update: int, held_back: tf.Tensor | None
    ) -> StepResult:
        """Trace one run of an objective; where the step was `held_back` before, so is the run."""
        return self.second_half(self.first_half(objective, step, batch, update, held_back))

    def first_half(
        self, objective: Objective, step: tf.Tensor, batch: Batch, update: int = 0, held_back: tf.Tensor | None = None
    ) -> HalfStep:
        """Trace a run of an objective up to the gradients that its optimizers get: after every `transform_gradients`.

        Args:
            objective: whose loss is minimised.
            step: int64 scalar, steps made before this one.
            batch: after every `transform_batch`.
            update: which of the objective's runs in this step.
            held_back: bool scalar, whether the step was held back before; None where nothing could.
        """
        with named_scope("begin"):
            begun = begin_run(objective, self.networks, held_back)
        with tf.control_dependencies(begun):
            forward = self.forward(step, batch, objective=objective.name, training=True, update=update)
        computed, gradients = self._differentiated(objective, forward, batch)
        contexts = _contexts(objective, forward)
        with named_scope("join_replicas"):
            gradients = join_replicas(self.replica, gradients, contexts, computed)
        overflow = None
        if self.loss_scale is not None:
            with named_scope("loss_scale"):
                overflow = self.loss_scale.overflow(computed.losses["total"], gradients.values(), forward.overflows)
                (overflow,) = self.replica.any([overflow])
        norms_on_the_way = transform_gradients(self.hooks, gradients, contexts)
        with named_scope("gradient_norms"):
            norms, sampled = norms_on_the_way.sample(step, self.norms_every)
        return HalfStep(
            objective, update, batch, forward, computed, contexts, begun, norms, sampled, held_back, overflow
        )

    def second_half(self, half: HalfStep) -> StepResult:
        """Trace the rest of the run: state, vetoes, updates, apply, projections, measures.

        Args:
            half: as `first_half` returned it, perhaps with other gradients.
        """
        objective, forward, batch, contexts = half.objective, half.forward, half.batch, half.contexts
        computed, held_back, overflow = half.computed, half.held_back, half.overflow
        norms, sampled = half.norms, half.sampled
        transform_state(self.hooks, contexts)
        vetoes = join_flags_and_sums(self.replica, vetoes_of(self.hooks, contexts, overflow), self.hooks, contexts)
        values = {f"loss/{name}": value for name, value in computed.losses.items()}
        values |= {f"metric/{name}": value for name, value in computed.metrics.items()}
        # Ops added in the classic way while the forward pass was traced join those that the run began with.
        pending = dict.fromkeys(pending_update_ops(), FORWARD) | dict.fromkeys(half.begun, BEGIN)
        stops = [*(each for each in (held_back, overflow) if each is not None), *vetoes.values()]
        with tf.control_dependencies(pending):
            committed, measures = commit_unless_vetoed(
                stops, lambda: self._commit(objective, forward, pending, half.update)
            )
        _refuse_taken(measures, {*values, *norms})
        with named_scope("metrics"):
            values |= dict(zip(measures, mean_over_batch(self.replica, batch, list(measures.values())), strict=True))
            count = tf.cast(committed, tf.float32)
            sums = {name: (tf.where(committed, value, 0.0), count) for name, value in values.items()}
            if SAMPLE_WEIGHTS in batch:  # across steps, too, a metric is an average over weighted examples
                (weight,) = self.replica.sum([tf.reduce_sum(sample_weights(batch))])
                names = [f"metric/{name}" for name in computed.metrics]
                sums |= {name: (sums[name][0] * weight, count * weight) for name in names}
            counted = tf.logical_and(committed, sampled)
            sums |= {name: (tf.where(counted, norm, 0.0), tf.cast(counted, tf.float32)) for name, norm in norms.items()}
            left_out = tf.logical_not(committed) if stops else None
        return StepResult(sums, vetoes, left_out, overflow)

    def _differentiated(
        self, objective: Objective, forward: Forward, batch: Batch
    ) -> tuple[Computed, dict[str, Gradients]]:
        """Return losses and metrics of a batch, and the gradients, at once or in micro batches."""
        changed = {name: forward.passes[name] for name in objective.trains}
        compute = partial(self.losses, objective)
        if self.accumulation_steps == 1:
            computed = compute(forward, batch)
            return computed, self.compute_gradients(computed.losses["total"], changed)
        computed, reached, upstream = accumulate(
            forward, batch, changes=changed, compute=compute, count=self.accumulation_steps, scale=self._scale
        )
        return computed, self.compute_gradients(reached, changed, upstream)

    def _commit(
        self, objective: Objective, forward: Forward, pending: Mapping[tf.Operation, str], update: int
    ) -> dict[str, tf.Tensor]:
        contexts = _contexts(objective, forward)
        changed_state = {name: sorted(forward.passes[name].changed) for name in objective.trains}
        record, measures = commit_step(
            objective.name, contexts, self.hooks, self.apply_gradients, changed_state, pending
        )
        record.runs = [name for name, each in forward.passes.items() if each.called]
        record.update = update
        self.commits.append(record)
        return measures


def _contexts(objective: Objective, forward: Forward) -> dict[str, StepContext]:
    """Return the contexts of the networks that an objective changes, by network name."""
    return {name: forward.passes[name].context for name in objective.trains}


def _refuse_taken(measures: Iterable[str], reported: Container[str]) -> None:
    """Refuse measures of hooks under names that the trainer itself reports."""
    if taken := [name for name in measures if name in reported]:
        raise UserError(
            f"A hook measures {', '.join(taken)}, which the trainer reports. Expected names under the hook's own."
        )
