"""The forward pass of a network: outputs and new state, as values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf

from hookline.trainer.errors import UserError, check_choice
from hookline.trainer.graph import as_functional, is_graph
from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network, told_in_one_line
from hookline.trainer.objective import Objective
from hookline.trainer.replicas.replica import own_seeds
from hookline.trainer.step.context import StepContext, current_scope, named_scope
from hookline.trainer.step.stage import ask, checked, in_stage


class StateScope(keras.StatelessScope):
    """The values of variables in a pass, and those that layers assign to their state.

    No gradient flows through a value that is read after it was assigned: in Keras's `fit` a variable holds it by then.
    """

    def __init__(self, values: Iterable[tuple[keras.Variable, tf.Tensor]]) -> None:
        super().__init__(list(values), collect_losses=True)
        self._assigned: dict[int, keras.Variable] = {}

    def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
        self._assigned[id(update[0])] = update[0]
        super().add_update(update)

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
        value = super().get_current_value(variable)
        return tf.stop_gradient(value) if id(variable) in self._assigned else value

    def check_assigned(self) -> None:
        """Raise an error if layers assigned variables in the pass that the optimizer also changes."""
        for variable in self._assigned.values():
            if variable.trainable:
                raise UserError(
                    f"A layer assigns '{variable.path}' in its forward pass, and the optimizer trains it: what the "
                    "layer assigns would be lost. Expected a layer that assigns only weights with trainable=False."
                )


@dataclass
class NetworkPass:
    """The values that the passes of one step through one network read and produced."""

    context: StepContext  # passed to the hooks of this network
    hooks: list[GraphHook]  # of this network, in order
    state: dict[str, tf.Tensor]  # current values of state variables; in an evaluation, as transformed by hooks
    changed: set[str] = field(default_factory=set)  # state variables for which a pass returned a new value
    layer_losses: list[tf.Tensor] = field(default_factory=list)  # of regularizers and `add_loss`
    losses_of_batch: bool = False  # whether some depend on more than weights
    called: bool = False


def read_network(
    network: Network,
    hooks: Sequence[GraphHook],
    context: StepContext,
    *,
    keeps_state: bool = True,
    latent: dict[str, tf.Tensor] | None = None,
) -> NetworkPass:
    """Read variables, with `latent` instead of the latent ones if given; let hooks transform weights and state."""
    with named_scope("read_variables", network.name):
        context.latent = {name: tf.convert_to_tensor(v.value) for name, v in network.trainable_variables.items()}
        context.state = {name: tf.convert_to_tensor(v.value) for name, v in network.state_variables.items()}
    context.latent = context.latent if latent is None else latent
    own = [hook for hook in hooks if hook.network == network.name]
    if not context.training:
        context.frozen_entries = _held_entries(own, context)
    context.weights, state = dict(context.latent), dict(context.state)
    if context.training and not keeps_state:
        state |= _seeds_of_step(network, context)
    if context.training:
        state = own_seeds(state, network.seed_names, context.replica)
    for hook in own:
        more = {} if context.training else state
        found = ask(hook, "transform_weights", dict(context.weights), context, given=context.weights, more=more)
        context.weights = {name: found[name] for name in context.latent}
        state |= {name: found[name] for name in more if name in found}
        if more:
            context.state = state  # so that later hooks see averages of statistics, too
    return NetworkPass(context, own, state)


def _seeds_of_step(network: Network, context: StepContext) -> dict[str, tf.Tensor]:
    """Return the seed state of a network that the objective does not change: drawn in each step, never written."""
    seeds = {}
    for name in network.seed_names:
        kept = context.state[name]
        drawn = tf.random.stateless_uniform(
            kept.shape, context.stateless_seed(f"seed_state/{name}"), 0, 2**31 - 1, dtype=tf.int32
        )
        seeds[name] = tf.cast(drawn, kept.dtype)
    return seeds


def _held_entries(hooks: Sequence[GraphHook], context: StepContext) -> dict[str, tf.Tensor]:
    """Return masks of the entries of each variable that any hook freezes, without variables that no hook names."""
    held: dict[str, tf.Tensor] = {}
    variables = {**context.latent, **context.state}
    for hook in hooks:
        for name, entries in ask(hook, "frozen_entries", context, given=variables).items():
            held[name] = tf.logical_or(held[name], entries) if name in held else entries
    return held


@dataclass
class Forward:
    """Run networks with their transformed weights in one step of one objective, and collect their new state.

    Calling a network twice threads its state through both calls.
    """

    passes: dict[str, NetworkPass]  # by network name
    training: bool  # whether layers run in training mode
    scale: tf.Tensor | None = None  # float32 scalar, of gradients inside a loss, see `LossScale.inner`; None for 1
    overflows: list[tf.Tensor] = field(default_factory=list)  # bool scalars, whether such gradients overflowed
    scope: str = field(default_factory=current_scope)  # in which the passes are traced

    def __call__(self, name: str, inputs: Any) -> Any:
        """Return the outputs of the network `name` for `inputs`."""
        current = self.passes[check_choice("network", name, self.passes)]
        current.called = True
        network = current.context.network
        model = tapped_model(network)
        names = {id(variable): name for name, variable in network.variables.items()}
        variables = [*model.trainable_variables, *model.non_trainable_variables]
        trainable = [current.context.weights[names[id(each)]] for each in model.trainable_variables]
        state = [current.state[names[id(each)]] for each in model.non_trainable_variables]
        with ExitStack() as stack:
            stack.enter_context(named_scope("forward", name, inside=self.scope))
            for hook in current.hooks:
                with in_stage(hook, "around_forward"):
                    around = hook.around_forward(current.context)
                    stack.enter_context(checked(hook, "around_forward", around))
            values = zip(variables, [*trainable, *state], strict=True)
            scope = stack.enter_context(StateScope(values))
            if not is_graph(model):
                stack.enter_context(told_in_one_line(f"The call of the model '{model.name}'"))
            outputs = model(inputs, **({"training": self.training} if model._call_has_training_arg else {}))
            losses = model.losses
        scope.check_assigned()
        for variable in model.non_trainable_variables:
            key, value = names[id(variable)], scope.state_mapping[id(variable)]
            if value is not current.state[key]:
                current.state[key] = tf.convert_to_tensor(value)
                current.changed.add(key)
        # A later call adds its own losses, but not those of weights again.
        current.layer_losses += scope.losses if current.layer_losses else losses
        current.losses_of_batch = current.losses_of_batch or bool(scope.losses)
        if network.taps:
            current.context.taps = outputs["taps"]
            outputs = outputs["outputs"]
        return outputs

    def apart(self) -> Forward:
        """Return a forward pass with the same weights, unaffected by the calls of this one."""
        passes = {
            name: replace(
                each,
                context=replace(each.context),
                state=dict(each.state),
                changed=set(),
                layer_losses=[],
                losses_of_batch=False,
                called=False,
            )
            for name, each in self.passes.items()
        }
        return replace(self, passes=passes, overflows=[])

    def contexts(self, objective: Objective) -> dict[str, StepContext]:
        """Return the contexts of the networks that an objective changes, by network name."""
        return {name: self.passes[name].context for name in objective.trains}

    def stateless_seed(self, salt: str) -> tf.Tensor:
        """Return the seed of a draw of the objective, int32 [2]; see `ForwardFunction.stateless_seed`."""
        return next(iter(self.passes.values())).context.objective_seed(salt)

    def gradients(self, value: tf.Tensor, sources: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
        """Return gradients that are part of the loss, float32; see `ForwardFunction.gradients`."""
        value = tf.cast(value, tf.float32)
        with named_scope("gradients_in_loss", inside=self.scope):
            found = tf.gradients(value, list(sources), grad_ys=self.scale)
        found = [None if each is None else tf.cast(each, tf.float32) for each in found]
        if self.scale is None:
            return found
        finite = [tf.reduce_all(tf.math.is_finite(each)) for each in found if each is not None]
        if finite:
            lost = tf.logical_not(tf.reduce_all(tf.stack(finite)))
            self.overflows.append(tf.logical_and(tf.math.is_finite(value), lost))
        return [None if each is None else each / self.scale for each in found]


def tapped_model(network: Network) -> keras.Model:
    """Return the model that a step calls: the network's own, with the taps, if any, as further outputs."""
    if not network.taps:
        return network.model
    if network.tapped is None:
        graph = as_functional(network.model)
        outputs = graph.output
        bare = isinstance(outputs, list | tuple) and len(outputs) == 1  # as a call of the model returns it
        outputs = {"outputs": outputs[0] if bare else outputs, "taps": dict(network.taps)}
        network.tapped = keras.Model(graph.input, outputs)
    return network.tapped
