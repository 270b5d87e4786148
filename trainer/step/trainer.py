"""The trainer: one step over any networks, objectives and hooks, with its two halves in the open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import tensorflow as tf

from trainer.errors import UserError
from trainer.hook import Gradients, GraphHook
from trainer.network import Network
from trainer.objective import Batch, Objective, ObjectiveOutput
from trainer.order import order_hooks
from trainer.step.accumulate import accumulate
from trainer.step.audit import Commit
from trainer.step.commit import commit_step, commit_unless_vetoed
from trainer.step.context import StepContext
from trainer.step.forward import Forward, NetworkPass, read_network
from trainer.step.metrics import Computed, SumAndCount, average_output
from trainer.step.stage import in_stage
from trainer.step.update_ops import pending_update_ops


@dataclass
class StepResult:
    """Hold what one traced step hands out.

    Attributes:
        sums: metric name to (sum, count).
        vetoes: veto name to bool scalar; True held the step back.
    """

    sums: dict[str, SumAndCount] = field(default_factory=dict)
    vetoes: dict[str, tf.Tensor] = field(default_factory=dict)


class Trainer:
    """Build training steps.

    The order of a step: transform_batch, transform_weights, transform_statistics, forward, losses, compute_gradients,
    transform_gradients, transform_state, UPDATE_OPS, apply_gradients under their control dependencies, project,
    measure.

    Attributes:
        networks: by name.
        objectives: in the order in which a step runs them.
        hooks: in the order in which every stage calls them.
        accumulation_steps: micro batches in which a step computes its batch.
        commits: records of the latest trace, one for each objective, for the audit and the plan.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        objectives: Sequence[Objective],
        hooks: Sequence[GraphHook],
        *,
        seed: int,
        accumulation_steps: int = 1,
    ) -> None:
        """Order the hooks and check that networks, objectives and hooks fit together.

        Args:
            networks: with unique names, their optimizers built.
            objectives: with unique names.
            hooks: built.
            seed: the run's seed, for the hooks' draws.
            accumulation_steps: micro batches in which a step computes its batch, see `accumulate`; 1 for all at once.
        """
        self.networks = {network.name: network for network in networks}
        self.objectives = list(objectives)
        self.hooks = order_hooks(hooks)
        self.seed = seed
        self.accumulation_steps = accumulation_steps
        self.commits: list[Commit] = []
        self._check_names()
        for network in networks:
            _refuse_accumulation(network)

    def _check_names(self) -> None:
        for objective in self.objectives:
            for name in objective.changes:
                if name not in self.networks:
                    known = ", ".join(self.networks)
                    raise UserError(f"Objective '{objective.name}' changes the network '{name}'. Expected: {known}.")
        for hook in self.hooks:
            if hook.network not in self.networks:
                known = ", ".join(self.networks)
                raise UserError(f"The hook '{hook.name}' works on the network '{hook.network}'. Expected: {known}.")

    def train_step(self, step: tf.Tensor, batch: Batch) -> StepResult:
        """Trace one step: every objective in order.

        Args:
            step: int64 scalar, steps made before this one.
            batch: as the input gives it.
        """
        self.commits = []
        batch = self.transform_batch(step, batch)
        result = StepResult()
        for objective in self.objectives:
            prefix = f"{objective.name}/" if len(self.objectives) > 1 else ""
            part = self._objective_step(objective, step, batch)
            result.sums |= {prefix + name: value for name, value in part.sums.items()}
            result.vetoes |= {prefix + name: value for name, value in part.vetoes.items()}
        return result

    def transform_batch(self, step: tf.Tensor, batch: Batch) -> Batch:
        """Return the batch that the hooks make of it for training.

        Args:
            step: int64 scalar.
            batch: as the input gives it.
        """
        for hook in self.hooks:
            with in_stage(hook, "transform_batch"):
                context = self._context(hook.network, step, batch, objective="", training=True)
                batch = hook.transform_batch(batch, context)
        return batch

    def forward(self, step: tf.Tensor, batch: Batch, *, objective: str, training: bool) -> Forward:
        """Return a forward pass with the weights of every network read and transformed.

        Args:
            step: int64 scalar.
            batch: what hooks see; the forward pass itself gets its inputs when it is called.
            objective: name of the objective.
            training: whether layers run in training mode.
        """
        passes = {}
        for name, network in self.networks.items():
            context = self._context(name, step, batch, objective=objective, training=training)
            passes[name] = read_network(network, self.hooks, context)
        return Forward(passes, training)

    def _context(self, network: str, step: tf.Tensor, batch: Batch, *, objective: str, training: bool) -> StepContext:
        return StepContext(step, self.seed, training, objective, self.networks[network], batch)

    def losses(self, objective: Objective, forward: Forward, batch: Batch) -> Computed:
        """Run an objective, and average its losses and metrics.

        Args:
            objective: what to compute.
            forward: the networks.
            batch: the batch.
        """
        output = objective.compute(forward, batch)
        losses, metrics = average_output(output, batch)
        for name, current in forward.passes.items():
            # In an evaluation, one forward pass serves many batches and all objectives.
            current.context.batch, current.context.objective = batch, objective.name
            current.context.outputs = output.outputs
            current.context.losses = losses
            current.context.new_state = {key: current.state[key] for key in sorted(current.changed)}
            if current.layer_losses and name in objective.changes:
                losses[f"layers_{name}"] = tf.add_n([tf.cast(loss, tf.float32) for loss in current.layer_losses])
        for hook in self.hooks:
            if hook.network in objective.changes:
                with in_stage(hook, "add_losses"):
                    output.losses = hook.add_losses(forward.passes[hook.network].context)
                    added, _ = average_output(output, batch)
                if repeated := added.keys() & losses.keys():
                    raise UserError(
                        f"The hook '{hook.name}' adds losses named {sorted(repeated)}, which exist already."
                    )
                losses.update(added)
        losses["total"] = tf.add_n(list(losses.values()))
        if not forward.training:
            metrics |= self._evaluated(objective, forward, batch, metrics)
        return Computed(losses, metrics, output.collected)

    def _evaluated(
        self, objective: Objective, forward: Forward, batch: Batch, known: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Return the metrics that hooks add to an evaluation, averaged."""
        found: dict[str, tf.Tensor] = {}
        for hook in self.hooks:
            if hook.network in objective.changes:
                with in_stage(hook, "evaluate"):
                    metrics = hook.evaluate(forward.passes[hook.network].context)
                    if repeated := metrics.keys() & {*known, *found}:
                        raise UserError(
                            f"The hook '{hook.name}' adds metrics named {sorted(repeated)}, which exist already."
                        )
                    found |= average_output(ObjectiveOutput({}, metrics), batch)[1]
        return found

    def compute_gradients(
        self,
        loss: tf.Tensor | list[tf.Tensor],
        passes: Mapping[str, NetworkPass],
        upstream: list[tf.Tensor] | None = None,
    ) -> dict[str, Gradients]:
        """Return the gradients of a loss with respect to the latent variables that the passes read.

        `tf.gradients` honours both custom_gradient and gradient_override_map.

        Args:
            loss: scalar; or, with `upstream`, the tensors by which the loss depends on the latent variables.
            passes: of the networks that may change, by name.
            upstream: the loss's gradients with respect to these tensors.

        Returns:
            By network name, then by variable name; None where the loss does not depend on the variable.
        """
        latent = [(name, key, tensor) for name, each in passes.items() for key, tensor in each.context.latent.items()]
        values = tf.gradients(loss, [tensor for _, _, tensor in latent], grad_ys=upstream)
        gradients: dict[str, Gradients] = {name: {} for name in passes}
        for (name, key, _), value in zip(latent, values, strict=True):
            gradients[name][key] = None if value is None else tf.convert_to_tensor(value)
        return gradients

    def apply_gradients(self, network: Network, gradients: Gradients) -> None:
        """Let the network's optimizer apply gradients; variables whose gradient is None stay.

        Args:
            network: whose variables move.
            gradients: by variable name.
        """
        pairs = [(gradients[name], v) for name, v in network.trainable_variables.items() if gradients[name] is not None]
        if pairs:
            network.optimizer.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])

    def _objective_step(self, objective: Objective, step: tf.Tensor, batch: Batch) -> StepResult:
        forward = self.forward(step, batch, objective=objective.name, training=True)
        changed = {name: forward.passes[name] for name in objective.changes}
        compute = partial(self.losses, objective)
        if self.accumulation_steps == 1:
            computed = compute(forward, batch)
            gradients = self.compute_gradients(computed.losses["total"], changed)
        else:
            computed, reached, upstream = accumulate(
                forward, batch, changes=changed, compute=compute, count=self.accumulation_steps
            )
            gradients = self.compute_gradients(reached, changed, upstream)
        contexts = {name: each.context for name, each in changed.items()}
        self._transform_gradients(gradients, contexts)
        self._transform_state(contexts)
        vetoes = self._vetoes(contexts)
        values = {f"loss/{name}": value for name, value in computed.losses.items()}
        values |= {f"metric/{name}": value for name, value in computed.metrics.items()}
        pending = pending_update_ops()  # added the classic way while the forward pass was traced
        with tf.control_dependencies(pending):
            committed, measures = commit_unless_vetoed(vetoes, lambda: self._commit(objective, forward, pending))
        values |= measures
        count = tf.cast(committed, tf.float32)
        return StepResult({name: (tf.where(committed, value, 0.0), count) for name, value in values.items()}, vetoes)

    def _commit(self, objective: Objective, forward: Forward, pending: list[tf.Operation]) -> dict[str, tf.Tensor]:
        passes = {name: forward.passes[name] for name in objective.changes}
        contexts = {name: each.context for name, each in passes.items()}
        changed_state = {name: sorted(each.changed) for name, each in passes.items()}
        record, measures = commit_step(
            objective.name, contexts, self.hooks, self.apply_gradients, changed_state, pending
        )
        record.runs = [name for name, each in forward.passes.items() if each.called]
        self.commits.append(record)
        return measures

    def _transform_gradients(self, gradients: dict[str, Gradients], contexts: dict[str, StepContext]) -> None:
        for name, context in contexts.items():
            context.gradients = gradients[name]
        for hook in self.hooks:
            if hook.network in contexts:
                context = contexts[hook.network]
                with in_stage(hook, "transform_gradients"):
                    after = hook.transform_gradients(context.gradients, context)
                    if after.keys() != context.gradients.keys():
                        raise ValueError("transform_gradients must keep the names; None stands for no gradient.")
                context.gradients = after

    def _transform_state(self, contexts: dict[str, StepContext]) -> None:
        for hook in self.hooks:
            if hook.network in contexts:
                context = contexts[hook.network]
                with in_stage(hook, "transform_state"):
                    after = hook.transform_state(context.new_state, context)
                    if unknown := after.keys() - context.new_state.keys():
                        raise ValueError(f"transform_state may leave names out, not add any. Added: {sorted(unknown)}.")
                context.new_state = after

    def _vetoes(self, contexts: dict[str, StepContext]) -> dict[str, tf.Tensor]:
        vetoes: dict[str, tf.Tensor] = {}
        for hook in self.hooks:
            if hook.network in contexts:
                with in_stage(hook, "veto"):
                    vetoes |= hook.veto(contexts[hook.network])
        return vetoes


def _refuse_accumulation(network: Network) -> None:
    """Refuse an optimizer that applies only every so many steps: hooks and schedules would count the others, too."""
    optimizer = getattr(network.optimizer, "inner_optimizer", network.optimizer)
    if steps := optimizer.gradient_accumulation_steps:
        raise UserError(
            f"The optimizer of '{network.name}' has gradient_accumulation_steps={steps}: hooks would update with every "
            f"batch, the optimizer would not. Expected trainer.accumulation_steps={steps} in its place, with the whole "
            "batch as trainer.batch_size."
        )
