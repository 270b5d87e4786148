"""Variables that two write in one step, without an order between them that somebody declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from trainer.errors import UserError
from trainer.hook import GraphHook
from trainer.order import declared_followers
from trainer.step.audit import written_variables
from trainer.step.context import StepContext


def refuse_double_writes(
    hooks: Sequence[GraphHook],
    contexts: Mapping[str, StepContext],
    made: Mapping[str, Sequence[tf.Operation]],
) -> None:
    """Refuse update ops of which the last to run would decide, by chance of a name, what a variable holds.

    One hook may write a variable several times, and two hooks whose order is declared may write one after the other.

    Args:
        hooks: in order.
        contexts: by network name; with the state that the step itself writes.
        made: for each hook, the ops that its `update_ops` created.

    Raises:
        UserError: names the variable and who writes it.
    """
    step_writes = {
        id(context.network.variables[name].value.handle) for context in contexts.values() for name in context.new_state
    }
    names = _names(hooks, contexts)
    followers = declared_followers(hooks)
    writers: dict[int, str] = {}
    for hook, operations in made.items():
        for handle in (handle for operation in operations for handle in written_variables(operation)):
            name, first = names.get(handle, "a variable"), writers.setdefault(handle, hook)
            if handle in step_writes:
                raise UserError(
                    f"The hook '{hook}' writes '{name}' in update_ops, and so does the step itself, with what the "
                    "forward pass gives. Return the value from transform_state instead."
                )
            if first != hook and hook not in followers[first]:
                raise UserError(
                    f"The hooks '{first}' and '{hook}' both write '{name}' in one step, and nothing says which comes "
                    f"first. Declare it in '{hook}', with `before` or `after`."
                )
            writers[handle] = hook


def _names(hooks: Sequence[GraphHook], contexts: Mapping[str, StepContext]) -> dict[int, str]:
    """Return what variables are called, by the identity of their handles."""
    of_networks = {
        id(variable.value.handle): name
        for context in contexts.values()
        for name, variable in context.network.variables.items()
    }
    of_hooks = {id(variable.handle): f"{hook.name}/{name}" for hook in hooks for name, variable in hook.state().items()}
    return of_networks | of_hooks
