"""UPDATE_OPS: what must have run before the optimizer applies gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from trainer.hook import GraphHook
from trainer.step.context import StepContext
from trainer.step.stage import in_stage

UPDATE_OPS = tf.compat.v1.GraphKeys.UPDATE_OPS


def pending_update_ops() -> list[tf.Operation]:
    """Return the ops that the graph being traced has in its UPDATE_OPS collection.

    A function graph starts with a copy of the outer graph's collection; the outer graph's ops are left out here.
    """
    graph = tf.compat.v1.get_default_graph()
    items = (getattr(item, "op", item) for item in tf.compat.v1.get_collection(UPDATE_OPS))
    return [operation for operation in items if operation.graph is graph]


def collect_state_updates(variables: dict[str, keras.Variable], new_state: dict[str, tf.Tensor]) -> None:
    """Put one assignment a state variable (moving statistics, seed state) into UPDATE_OPS.

    `stateless_call` returns the new values; without these ops nothing would write them.

    Args:
        variables: the network's state variables by name.
        new_state: the values to write, by name.
    """
    for name, value in new_state.items():
        variable = variables[name].value
        tf.compat.v1.add_to_collection(UPDATE_OPS, _operation(variable.assign(tf.cast(value, variable.dtype))))


def collect_hook_updates(hooks: Sequence[GraphHook], contexts: Mapping[str, StepContext]) -> None:
    """Put the update ops that hooks create into UPDATE_OPS, once each.

    Args:
        hooks: in order.
        contexts: what the hooks see, by network name; hooks of other networks are passed over.
    """
    for hook in hooks:
        if hook.network in contexts:
            with in_stage(hook, "update_ops"):
                for item in hook.update_ops(contexts[hook.network]):
                    if (operation := _operation(item)) not in pending_update_ops():
                        tf.compat.v1.add_to_collection(UPDATE_OPS, operation)


def _operation(item: tf.Operation | tf.Tensor) -> tf.Operation:
    """Return the operation behind an op, a tensor or the variable that an assignment returns in a function."""
    if isinstance(item, tf.Operation):
        return item
    operation = getattr(item, "op", None)
    if not isinstance(operation, tf.Operation):
        raise TypeError(
            f"update_ops received {item!r}. Expected an op or a tensor created in this step: "
            "return what assign or scatter_sub returned, called inside update_ops."
        )
    return operation
