"""What a run holds in memory, estimated before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from trainer.input.batches import resolve_placement
from trainer.input.source import Source
from trainer.plan.live_bytes import live_bytes
from trainer.plan.plan import HOOK, NETWORK, OPTIMIZER, Held, Plan
from trainer.run.assembly import Assembly
from trainer.step.audit import Commit


def estimate_memory(parts: Assembly, plan: Plan, settings: Mapping[str, Any]) -> tuple[Held, ...]:
    """Return what a run holds, item by item: an estimate for one device.

    Counted are the arrays of the data; all variables; the gradients that the optimizers get; and the activations: the
    tensors of one step at this batch size that live at once, if its ops run in the order in which they were traced
    (see `live_bytes`): the batch, what the backward pass needs of the forward pass, intermediate results. An
    evaluation comes in place of a step, so only the larger of the two adds to the total.

    Not counted are Python, TensorFlow and its threads, the traced graphs, what XLA needs to compile, batches that
    tf.data prepares ahead, scratch memory inside ops, what an evaluation collects over a split, and pictures. Measured
    on a CPU, as the peak of the resident memory less that after the imports: a run took 61 MiB (recipe=baseline) and
    134 to 138 MiB (recipe=center_loss) beside the estimate, and 175 MiB more with XLA. From a batch of 64 to one of
    512, the estimate rose by 4.5 and 39.9 MiB, the measured memory by 4.5 and 44.4 MiB.

    Args:
        parts: assembled.
        plan: with the variables.
        settings: `trainer` of the config.
    """
    gradients = [list(_given(commit)) for commit in parts.trainer.commits]
    gradient_bytes = max((sum(_bytes(each) for each in given) for given in gradients), default=0)
    apart = {id(each) for given in gradients for each in given}
    step = live_bytes(parts.loop.loop_graph, open_size=settings["batch_size"], leave_out=apart)
    largest = max(parts.evaluated.values(), key=lambda each: each.split.size)
    size = min(settings["evaluation_batch_size"], largest.split.size)
    evaluation = live_bytes(largest.evaluator.graph, open_size=size).peak
    trains = step.peak + gradient_bytes >= evaluation
    unsized = f"; {step.unsized} lists whose length shows only later are not counted" if step.unsized else ""
    return (
        *_data(parts, settings["placement"]),
        Held("variables of the networks", _total(plan, NETWORK)),
        Held("variables of the optimizers", _total(plan, OPTIMIZER)),
        Held("state of the hooks", _total(plan, HOOK)),
        Held("gradients", gradient_bytes, "as the optimizers get them", trains),
        Held("activations", step.peak, f"of a step of {settings['batch_size']:,} examples{unsized}", trains),
        Held("an evaluation", evaluation, f"of {size:,} examples at a time, in place of a step", not trains),
    )


def _given(commit: Commit) -> Iterator[tf.Tensor]:
    """Yield the gradients that the optimizers got for one objective."""
    for gradients in commit.gradients.values():
        yield from (gradient for gradient in gradients.values() if gradient is not None)


def _bytes(tensor: tf.Tensor) -> int:
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def _total(plan: Plan, kind: str) -> int:
    return sum(variable.bytes for variable in plan.variables_of(kind))


def _data(parts: Assembly, placement: str) -> Iterator[Held]:
    """Yield the data by where it lies; splits of one source share its arrays."""
    splits = [parts.training.split, *(each.split for each in parts.evaluated.values())]
    sources = {id(split.source): split.source for split in splits}.values()
    accelerated = bool(tf.config.list_logical_devices("GPU"))
    for place in ("device", "host"):
        here = [source for source in sources if resolve_placement(placement, source) == place]
        if here:
            examples = f"{sum(source.size for source in here):,} examples"
            held = sum(_held_bytes(source) for source in here)
            yield Held(f"data on the {place}", held, examples, place == "device" or not accelerated)


def _held_bytes(source: Source) -> int:
    """Return how much of a source lies in memory: all of it, unless it says otherwise."""
    return getattr(source, "held_bytes", source.bytes)
