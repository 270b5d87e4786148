"""What replicas share a batch, and what they add up in a step."""

from __future__ import annotations

import math

import tensorflow as tf

from trainer.plan.live_bytes import FUNCTIONS, LOOP, inner_graphs
from trainer.run.assembly import Assembly
from trainer.run.results import format_bytes

SUM = "CollectiveReduceV2"
LOOPS = frozenset(kind for kind, attributes in FUNCTIONS.items() if attributes is LOOP)


def replica_facts(parts: Assembly, accumulation_steps: int) -> dict[str, str]:
    """Return rows of the plan about replicas; none for a run with one.

    Args:
        parts: assembled.
        accumulation_steps: micro batches of a step.
    """
    count = parts.trainer.replica.count
    if count == 1:
        return {}
    local = [each.replica for each in parts.loop.trainers]
    devices = ", ".join(str(each.device or "its device").lstrip("/") for each in local)
    own = ""
    if len(local) < count:
        numbers = ", ".join(str(each.index + 1) for each in local)
        own = f"{'that' if len(local) == 1 else 'those'} of this process, {numbers}, "
    sums = replica_sums(parts.loop.graph, micro_batches=accumulation_steps)
    messages = f"{len(sums):,} message{'' if len(sums) == 1 else 's'}"
    return {
        "replicas": f"{count} of {parts.training.batch_size // count:,} examples each; {own}on {devices}",
        "sums over replicas": f"{format_bytes(sum(sums))} a step, in {messages}",
    }


def replica_sums(graph: tf.Graph, *, micro_batches: int = 1) -> list[int]:
    """Return the bytes of each message that a replica's step adds up with the others.

    They are what a cost model starts from: a ring of n replicas sends 2 (n - 1) / n times as many from each.

    Args:
        graph: of the step of a replica of several, such as `ChunkLoop.graph`.
        micro_batches: how often a loop in the step runs.
    """
    found: list[int] = []
    for operation in graph.get_operations():
        if operation.type == SUM:
            message = operation.inputs[0]
            found.append(math.prod(message.shape) * message.dtype.size)
        times = micro_batches if operation.type in LOOPS else 1
        for inner in inner_graphs(operation):
            found += replica_sums(inner, micro_batches=micro_batches) * times
    return found
