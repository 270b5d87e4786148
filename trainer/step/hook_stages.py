"""The stages that hand something from hook to hook, each over all hooks that take part in an objective."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import tensorflow as tf

from trainer.errors import UserError
from trainer.hook import Gradients, GraphHook
from trainer.objective import Batch, ObjectiveOutput
from trainer.step.context import StepContext
from trainer.step.gradient_norms import GradientNorms
from trainer.step.metrics import average_output
from trainer.step.returned import checked
from trainer.step.stage import in_stage
from trainer.step.taking_part import taking_part


def add_losses(
    hooks: Iterable[GraphHook], contexts: Mapping[str, StepContext], batch: Batch, losses: dict[str, tf.Tensor]
) -> None:
    """Add the losses of hooks, averaged over the examples.

    Args:
        hooks: in order.
        contexts: of the networks that the objective changes, by network name.
        batch: the batch.
        losses: scalars by name; the hooks' come to these.

    Raises:
        UserError: a hook gives a loss a name that another has.
    """
    for hook, context in taking_part(hooks, contexts):
        with in_stage(hook, "add_losses"):
            own = checked(hook, "add_losses", hook.add_losses(context), batch=batch)
            added = {hook.scope + name: value for name, value in own.items()}
            _refuse_repeated(hook, "losses", added, {*losses, "total"})
            losses.update(average_output(ObjectiveOutput(added), batch)[0])


def add_metrics(
    hooks: Iterable[GraphHook], contexts: Mapping[str, StepContext], batch: Batch, metrics: dict[str, tf.Tensor]
) -> None:
    """Add the metrics of hooks to those of an evaluation, averaged over the examples.

    Args:
        hooks: in order.
        contexts: of the networks that the objective changes, by network name.
        batch: the batch.
        metrics: scalars by name; the hooks' come to these.

    Raises:
        UserError: a hook gives a metric a name that another has.
    """
    for hook, context in taking_part(hooks, contexts):
        with in_stage(hook, "evaluate"):
            own = checked(hook, "evaluate", hook.evaluate(context), batch=batch)
            added = {hook.scope + name: value for name, value in own.items()}
            _refuse_repeated(hook, "metrics", added, metrics)
            metrics.update(average_output(ObjectiveOutput({}, added), batch)[1])


def _refuse_repeated(hook: GraphHook, kind: str, added: Iterable[str], taken: Container[str]) -> None:
    if repeated := sorted(name for name in added if name in taken):
        raise UserError(f"The hook '{hook.name}' adds {kind} named {repeated}, which exist already.")


def transform_gradients(
    hooks: Iterable[GraphHook], gradients: Mapping[str, Gradients], contexts: Mapping[str, StepContext]
) -> GradientNorms:
    """Hand the gradients from hook to hook, into `gradients` of the contexts, and return their norms on the way.

    Args:
        hooks: in order.
        gradients: as computed, by network name, then by variable name.
        contexts: of the same networks, by name.
    """
    norms = GradientNorms(gradients)
    for name, context in contexts.items():
        context.gradients = gradients[name]
    for hook, context in taking_part(hooks, contexts):
        with in_stage(hook, "transform_gradients"):
            after = hook.transform_gradients(dict(context.gradients), context)
            checked(hook, "transform_gradients", after, given=context.latent)
        norms.add(hook.network, hook, after)
        context.gradients = after
    return norms


def transform_state(hooks: Iterable[GraphHook], contexts: Mapping[str, StepContext]) -> None:
    """Hand the new values of the state from hook to hook, into `new_state` of the contexts.

    Args:
        hooks: in order.
        contexts: of the networks that the objective changes, by name.
    """
    for hook, context in taking_part(hooks, contexts):
        with in_stage(hook, "transform_state"):
            after = hook.transform_state(dict(context.new_state), context)
            context.new_state = checked(hook, "transform_state", after, given=context.new_state)


def vetoes_of(
    hooks: Iterable[GraphHook], contexts: Mapping[str, StepContext], overflow: tf.Tensor | None
) -> dict[str, tf.Tensor]:
    """Return the hooks' vetoes, bool scalars by name; none is raised where gradients overflowed, an ordinary event.

    Args:
        hooks: in order.
        contexts: of the networks that the objective changes, by name.
        overflow: bool scalar, whether they did; None without a scale of the loss.
    """
    vetoes: dict[str, tf.Tensor] = {}
    for hook, context in taking_part(hooks, contexts):
        with in_stage(hook, "veto"):
            for name, flag in checked(hook, "veto", hook.veto(context)).items():
                known = vetoes.get(hook.scope + name)  # another hook's, perhaps on another network
                vetoes[hook.scope + name] = flag if known is None else tf.logical_or(known, flag)
    if overflow is None:
        return vetoes
    return {name: tf.logical_and(flag, tf.logical_not(overflow)) for name, flag in vetoes.items()}
