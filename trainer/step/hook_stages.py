"""The stages of a step that hooks take part in, called in order."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import Gradients, GraphHook
from hookline.trainer.objective import Batch, ObjectiveOutput
from hookline.trainer.step.context import StepContext
from hookline.trainer.step.metrics import average_output
from hookline.trainer.step.returned import checked
from hookline.trainer.step.stage import in_stage, taking_part

BEFORE, AFTER = "grad_norm/before", "grad_norm/after"
SAMPLED_EVERY = 7
"""Steps from one norm to the next, at most. Reading every gradient once more in every step costs a small network a few
percent; a seventh of that is not noticeable. A prime avoids resonance with masks and schedules, whose periods are
mostly multiples of ten."""


def norms_every(report_every: float) -> int:
    """Return the steps from one sample of the norms to the next, so that every whole report has one."""
    return max(1, min(SAMPLED_EVERY, int(report_every)))


class GradientNorms:
    """Note the gradients of one run of an objective as hooks pass them on, and return their norms.

    A norm is the L2 norm of all gradients of a network together, sqrt(sum_i ||g_i||^2), in float32; a variable without
    a gradient adds nothing. "grad_norm/before" is that of what `Trainer.compute_gradients` gave: of the whole batch,
    over all micro batches and replicas, without the scale of the loss. "grad_norm/after/<hook>" is that of what a hook
    passed on, for each hook that overrides `transform_gradients`, in their order, and "grad_norm/after" that of what
    the optimizer gets, where there is such a hook. Gradients that a hook stops within the forward pass are in none of
    them. Replicas find the same norms: they are taken of joined gradients.

    They are taken only at every n-th step: 0, n, 2n and so on. A gradient that a hook passed on unchanged is not read
        again.
    """

    def __init__(self, gradients: Mapping[str, Gradients]) -> None:
        """Note what was computed."""
        self._several = len(gradients) > 1
        self._noted: dict[str, list[tf.Tensor]] = {}
        for network, each in gradients.items():
            self._note(network, BEFORE, each)

    def add(self, network: str, hook: GraphHook, gradients: Gradients) -> None:
        """Note what a hook passed on."""
        if type(hook).transform_gradients is not GraphHook.transform_gradients:
            self._note(network, f"{AFTER}/{hook.key}", gradients)
            self._note(network, AFTER, gradients)

    def _note(self, network: str, name: str, gradients: Gradients) -> None:
        name = f"{network}/{name}" if self._several else name
        self._noted.pop(name, None)  # the last one goes last
        self._noted[name] = [value for value in gradients.values() if value is not None]

    def sample(self, step: tf.Tensor, every: int) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Return the norms by name, float32 scalars, and whether this step has them; they are 0 where it has not."""
        if every == 1:
            return dict(zip(self._noted, self._norms(), strict=True)), tf.constant(True)
        sampled = tf.equal(step % every, 0)
        norms = tf.cond(sampled, self._norms, lambda: [tf.constant(0.0)] * len(self._noted))
        return dict(zip(self._noted, norms, strict=True)), sampled

    def _norms(self) -> list[tf.Tensor]:
        squares: dict[int, tf.Tensor] = {}
        for value in (value for values in self._noted.values() for value in values):
            if id(value) not in squares:
                squares[id(value)] = _squared_norm(value)
        return [
            tf.sqrt(tf.add_n([squares[id(value)] for value in values])) if values else tf.constant(0.0)
            for values in self._noted.values()
        ]


def _squared_norm(value: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    """Return the sum of squares, float32; rows that slices name several times count as their sum."""
    return 2.0 * tf.nn.l2_loss(tf.cast(tf.convert_to_tensor(value), tf.float32))


def add_losses(
    hooks: Iterable[GraphHook], contexts: Mapping[str, StepContext], batch: Batch, losses: dict[str, tf.Tensor]
) -> None:
    """Add the losses of hooks, averaged over the examples."""
    for hook, context in taking_part(hooks, contexts):
        with in_stage(hook, "add_losses"):
            own = checked(hook, "add_losses", hook.add_losses(context), batch=batch)
            added = {hook.scope + name: value for name, value in own.items()}
            _refuse_repeated(hook, "losses", added, {*losses, "total"})
            losses.update(average_output(ObjectiveOutput(added), batch)[0])


def add_metrics(
    hooks: Iterable[GraphHook], contexts: Mapping[str, StepContext], batch: Batch, metrics: dict[str, tf.Tensor]
) -> None:
    """Add the metrics of hooks to those of an evaluation, averaged over the examples."""
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
    """Hand the gradients from hook to hook, into `gradients` of the contexts, and return their norms on the way."""
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
    """Hand the new values of the state from hook to hook, into `new_state` of the contexts."""
    for hook, context in taking_part(hooks, contexts):
        with in_stage(hook, "transform_state"):
            after = hook.transform_state(dict(context.new_state), context)
            context.new_state = checked(hook, "transform_state", after, given=context.new_state)


def vetoes_of(
    hooks: Iterable[GraphHook], contexts: Mapping[str, StepContext], overflow: tf.Tensor | None
) -> dict[str, tf.Tensor]:
    """Return the hooks' vetoes, bool scalars by name; none is raised where gradients overflowed, an ordinary event."""
    vetoes: dict[str, tf.Tensor] = {}
    for hook, context in taking_part(hooks, contexts):
        with in_stage(hook, "veto"):
            for name, flag in checked(hook, "veto", hook.veto(context)).items():
                known = vetoes.get(hook.scope + name)  # another hook's, perhaps on another network
                vetoes[hook.scope + name] = flag if known is None else tf.logical_or(known, flag)
    if overflow is None:
        return vetoes
    return {name: tf.logical_and(flag, tf.logical_not(overflow)) for name, flag in vetoes.items()}
