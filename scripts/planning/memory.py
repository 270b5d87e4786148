"""An estimate of the memory of a step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from hookline.scripts.planning.plan import HOOK, NETWORK, OPTIMIZER, Held, Plan
from hookline.trainer.input.batches import resolve_placement
from hookline.trainer.run.results import format_bytes
from hookline.trainer.run.run import Run

SAME_BUFFER = frozenset(
    {"Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "CheckNumerics"}
    | {"Bitcast", "EnsureShape"}
)
"""Ops whose output shares its input's memory."""
NO_BUFFER = frozenset({"ReadVariableOp", "Placeholder", "VarHandleOp"})
"""Ops whose output is a variable's memory, or comes from an outer graph, where it is counted."""
LOOP, BRANCH, CALL = ("body", "cond"), ("then_branch", "else_branch"), ("f",)
FUNCTIONS = {
    **dict.fromkeys(("While", "StatelessWhile"), LOOP),
    **dict.fromkeys(("If", "StatelessIf"), BRANCH),
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), CALL),
}
"""Ops that run other graphs, with the attributes that name them."""


class LiveBytes(NamedTuple):
    """An estimate."""

    peak: int  # bytes of the tensors that live at once
    unsized: int  # how many tensors are left out, because their size is known only at run time


def live_bytes(graph: tf.Graph, *, open_size: int, leave_out: Collection[int] = ()) -> LiveBytes:
    """Return how many bytes of tensors live at once, if the ops run in the order in which they were traced.

    A tensor lives from its op to the last op that takes it; what a function returns, to its end. Branches and loops
    count with one pass of their largest graph. Several ops may run at the same time (more), an op may write over its
    input and XLA may fuse ops (less). Scratch memory inside an op and variables are not counted.
    """
    operations = graph.get_operations()
    buffers, last_use = _buffers(operations)
    live = peak = unsized = 0
    ends: Counter[int] = Counter()  # bytes that are free after an op, by its index
    for index, operation in enumerate(operations):
        inner = [live_bytes(each, open_size=open_size, leave_out=leave_out) for each in inner_graphs(operation)]
        unsized += sum(each.unsized for each in inner)
        made = 0
        for tensor in operation.outputs:
            if buffers[id(tensor)] == id(tensor) and operation.type not in NO_BUFFER and id(tensor) not in leave_out:
                size = _size(tensor, open_size)
                unsized += size is None
                made += size or 0
                ends[last_use[id(tensor)]] += size or 0
        peak = max(peak, live + max([made, *(each.peak for each in inner)]))
        live += made - ends[index]
    return LiveBytes(peak, unsized)


def _buffers(operations: Sequence[tf.Operation]) -> tuple[dict[int, int], dict[int, int]]:
    """Return which tensor each one shares its memory with, and the index of the op that last uses that, by identity.

    A tensor with memory of its own shares it with itself.
    """
    buffers: dict[int, int] = {}
    last_use: dict[int, int] = {}
    for index, operation in enumerate(operations):
        for tensor in operation.inputs:  # a loop takes lists that its gradient, traced later, makes
            last_use[buffers.setdefault(id(tensor), id(tensor))] = index
        for number, tensor in enumerate(operation.outputs):
            shares = operation.type in SAME_BUFFER and number < len(operation.inputs)
            buffers[id(tensor)] = buffers[id(operation.inputs[number])] if shares else id(tensor)
            last_use[buffers[id(tensor)]] = index
    return buffers, last_use


def _size(tensor: tf.Tensor, open_size: int) -> int | None:
    """Return the bytes of a tensor; None if they cannot be known."""
    if tensor.dtype in (tf.resource, tf.variant, tf.string):
        return None if tensor.dtype == tf.variant else 0
    if tensor.shape.rank is None:
        return None
    return math.prod(open_size if each is None else each for each in tensor.shape) * tensor.dtype.size


def inner_graphs(operation: tf.Operation) -> Iterator[tf.Graph]:
    """Yield the graphs that an op runs."""
    for attribute in FUNCTIONS.get(operation.type, ()):
        function = operation.graph._get_function(operation.get_attr(attribute).name)
        if (graph := getattr(function, "graph", None)) is not None:
            yield graph


def estimate_memory(run: Run, plan: Plan) -> tuple[Held, ...]:
    """Return what a run holds, item by item: an estimate for one device.

    Activations are the tensors of one step that live at once (see `live_bytes`): the batch, what the backward pass
    needs of the forward pass, intermediate results. An evaluation takes the place of a step, so only the larger of the
    two adds to the total.

    Not counted are Python, TensorFlow and its threads, the traced graphs, what XLA needs to compile, batches that
    tf.data prepares ahead, what an evaluation collects over a split, and pictures: on a CPU 61 to 138 MiB, and 175 MiB
    more with XLA.
    """
    settings = run.settings
    gradients = [
        [each for given in commit.gradients.values() for each in given.values() if each is not None]
        for commit in run.trainer.commits
    ]
    sizes = [sum((each.shape.num_elements() or 0) * each.dtype.size for each in given) for given in gradients]
    gradient_bytes = max(sizes, default=0)
    apart = {id(each) for given in gradients for each in given}
    step = live_bytes(run.loop.loop_graph, open_size=settings["batch_size"], leave_out=apart)
    largest = max(run.held_out.values(), key=lambda each: each.split.size)
    size = min(settings["evaluation_batch_size"], largest.split.size)
    evaluation = live_bytes(largest.graph, open_size=size).peak
    trains = step.peak + gradient_bytes >= evaluation
    unsized = f"; {step.unsized} lists whose length shows only later are not counted" if step.unsized else ""
    splits = [run.training.split, *(each.split for each in run.held_out.values())]
    sources = {id(split.source): split.source for split in splits}.values()  # splits of one share its arrays
    accelerated, data = bool(tf.config.list_logical_devices("GPU")), []
    for place in ("device", "host"):
        if here := [each for each in sources if resolve_placement(settings["placement"], each) == place]:
            examples = f"{sum(source.size for source in here):,} examples"
            held = sum(getattr(source, "held_bytes", source.bytes) for source in here)  # all of it, or what it says
            data.append(Held(f"data on the {place}", held, examples, place == "device" or not accelerated))
    return (
        *data,
        Held("variables of the networks", _total(plan, NETWORK)),
        Held("variables of the optimizers", _total(plan, OPTIMIZER)),
        Held("state of the hooks", _total(plan, HOOK)),
        Held("gradients", gradient_bytes, "as the optimizers get them", trains),
        Held("activations", step.peak, f"of a step of {settings['batch_size']:,} examples{unsized}", trains),
        Held("an evaluation", evaluation, f"of {size:,} examples at a time, in place of a step", not trains),
    )


def _total(plan: Plan, kind: str) -> int:
    return sum(variable.bytes for variable in plan.variables_of(kind))


def replica_facts(run: Run) -> dict[str, str]:
    """Return rows of the plan about replicas; none for a run with one."""
    count = run.trainer.replica.count
    if count == 1:
        return {}
    local = [each.replica for each in run.loop.trainers]
    devices = ", ".join(str(each.device or "its device").lstrip("/") for each in local)
    own = ""
    if len(local) < count:
        numbers = ", ".join(str(each.index + 1) for each in local)
        own = f"{'that' if len(local) == 1 else 'those'} of this process, {numbers}, "
    sums = replica_sums(run.loop.graph, micro_batches=run.settings["accumulation_steps"])
    messages = f"{len(sums):,} message{'' if len(sums) == 1 else 's'}"
    return {
        "replicas": f"{count} of {run.training.batch_size // count:,} examples each; {own}on {devices}",
        "sums over replicas": f"{format_bytes(sum(sums))} a step, in {messages}",
    }


def replica_sums(graph: tf.Graph, *, micro_batches: int = 1) -> list[int]:
    """Return the bytes of each message that a replica's step adds up with the others.

    They are what a cost model starts from: a ring of n replicas sends 2 (n - 1) / n times as many from each.
    """
    found: list[int] = []
    for operation in graph.get_operations():
        if operation.type == "CollectiveReduceV2":
            message = operation.inputs[0]
            found.append(math.prod(message.shape) * message.dtype.size)
        times = micro_batches if FUNCTIONS.get(operation.type) is LOOP else 1
        for inner in inner_graphs(operation):
            found += replica_sums(inner, micro_batches=micro_batches) * times
    return found
