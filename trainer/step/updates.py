"""The runs that a step gives an objective: each on its own part of the batch, after what it begins with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import tensorflow as tf

from trainer.errors import UserError
from trainer.network import Network
from trainer.objective import Batch, Objective
from trainer.step.update_ops import checked_update


def batch_parts(objective: Objective, batch: Batch) -> Iterator[Batch]:
    """Yield the batches of an objective's runs in one step: equal parts, in order; all of it for a single run.

    What is not one entry an example goes whole into each part.

    Args:
        objective: its `updates` is the number of parts.
        batch: its number of examples is known when it is traced.

    Raises:
        UserError: the examples do not divide into so many equal parts.
    """
    if objective.updates == 1:
        yield batch
        return
    examples = tf.nest.flatten(batch["inputs"])[0].shape[0]
    if examples is None or examples % objective.updates:
        raise UserError(
            f"Objective '{objective.name}' has updates={objective.updates}, received for batches of "
            f"{examples or 'an unknown number of'} examples. Expected as many examples for each update: give a "
            f"trainer.batch_size that {objective.updates} divides, also after replicas have shared it."
        )
    size = examples // objective.updates
    for update in range(objective.updates):
        rows = slice(update * size, (update + 1) * size)
        yield tf.nest.map_structure(
            lambda each, rows=rows: each[rows] if each.shape.rank and each.shape[0] == examples else each, batch
        )


def begin_run(objective: Objective, networks: Mapping[str, Network], held_back: tf.Tensor | None) -> list[tf.Operation]:
    """Create the ops that run before an objective reads any variable, and put them into UPDATE_OPS.

    Args:
        objective: whose `begin` is called.
        networks: of the run, by name.
        held_back: bool scalar, whether a veto has held back something earlier in the step, so that this is held back,
            too; None where none can.

    Returns:
        The ops of the graph being traced that must have run.

    Raises:
        UserError: the objective returns what is no op of this step, or an op that writes nothing.
    """
    if type(objective).begin is Objective.begin:
        return []
    if held_back is None:
        operations = _begin(objective, networks)
    else:

        def run() -> tf.Tensor:
            with tf.control_dependencies(_begin(objective, networks)):
                return tf.constant(True)

        operations = [_behind(tf.cond(held_back, lambda: tf.constant(False), run).op)]
    for operation in operations:
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, operation)
    return operations


def _begin(objective: Objective, networks: Mapping[str, Network]) -> list[tf.Operation]:
    graph = tf.compat.v1.get_default_graph()
    start = len(graph.get_operations())
    returned = objective.begin(networks)
    made = graph.get_operations()[start:]
    return [_behind(checked_update(f"objective '{objective.name}'", "begin", item, made)) for item in returned]


def _behind(operation: tf.Operation) -> tf.Operation:
    """Return the branch itself for the op that hands out its result, so that the plan can look into it."""
    return operation.inputs[0].op if operation.type == "Identity" else operation
