"""Derive the plan from a traced step, and estimate its memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from hookline.scripts.planning.plan import (
    HOOK,
    NETWORK,
    OPTIMIZER,
    Change,
    Held,
    Identity,
    ObjectivePlan,
    Plan,
    as_markdown,
    identities,
    list_variables,
)
from hookline.trainer.hook import GraphHook, Hook, HostHook
from hookline.trainer.input.batches import resolve_placement
from hookline.trainer.run.machine import estimated
from hookline.trainer.run.results import format_bytes
from hookline.trainer.run.run import Run
from hookline.trainer.step.stage import in_stage, takes_part
from hookline.trainer.step.trainer import Trainer
from hookline.trainer.step.writes import TRAINER, Commit, all_writes, inner_graphs

STEP = "step"
STEP_STAGES = (
    "transform_weights",
    "around_forward",
    "add_losses",
    "gradient_point",
    "transform_gradients",
    "transform_state",
    "veto",
    "batch_sums",
    "update_ops",
    "project",
    "measure",
)
PHASES = {
    "set-up": ("rebuild_model", "request_taps", "build", "advise", "on_fit_begin"),
    STEP: STEP_STAGES,
    "chunk of steps": ("on_veto", "warning", "on_chunk_end"),
    "evaluation": ("frozen_entries", "evaluate", "on_evaluation_end"),
    "pictures": ("show",),
    "end": ("on_fit_end",),
    "export": ("strip_model",),
}
"""Every stage, in the order in which they run."""


def own_stages(hook: Hook) -> list[str]:
    """Return the stages in which a hook does something: those that its class overrides."""
    found = []
    for stage in (stage for stages in PHASES.values() for stage in stages):
        base: type[Any] = next(base for base in (Hook, GraphHook, HostHook) if stage in vars(base))
        if isinstance(hook, base) and getattr(type(hook), stage) is not getattr(base, stage):
            found.append(stage)
    return found


def plan_step(trainer: Trainer, host_hooks: Iterable[HostHook], metrics: Sequence[str]) -> Plan:
    """Return the plan of a traced step, without the parts that need a run: evaluation, monitor, memory."""
    networks = list(trainer.networks.values())
    known = identities(networks, trainer.hooks)
    times = Counter(commit.objective for commit in trainer.commits)
    seen: set[tf.Operation] = set()  # objectives in one graph share a collection, and each op counts once
    written: set[Identity] = set()
    objectives = []
    for commit in trainer.commits:
        updates = []
        for operation, by in commit.added_by.items():
            if operation not in seen:
                handles = dict.fromkeys(write.handle for write in all_writes([operation]))
                found = [known[handle] for handle in handles if handle in known]
                written.update(found)
                if by == TRAINER and found:
                    _, owner, name = found[0]
                    by += ", for moving statistics" if name in trainer.networks[owner].weights else ", for seed state"
                names = []  # unique among the variables of all networks, optimizers and hooks
                for kind, owner, name in found:
                    prefix = "optimizer/" if kind == OPTIMIZER else ""
                    names.append(f"{prefix}{f'{owner}/' if len(networks) > 1 or kind == HOOK else ''}{name}")
                updates.append(Change(operation.type, by, tuple(names)))
        seen.update(commit.added_by)
        if commit.update == 0:  # the others write the same again
            objectives.append(_plan_objective(commit, updates, trainer, times[commit.objective]))
    models = {}
    for network in networks:
        before = "".join(f", trained from the logits before its {each}" for each in network.final_activations)
        models[network.name] = f"{type(network.model).__name__} '{network.model.name}'{before}"
    own = {id(hook): (hook.name, own_stages(hook)) for hook in (*trainer.hooks, *host_hooks)}.values()
    stages = {
        (phase, name): tuple(hook for hook, theirs in own if name in theirs)
        for phase, names in PHASES.items()
        for name in names
    }
    return Plan(
        stages={stage: hooks for stage, hooks in stages.items() if hooks},
        objectives=tuple(objectives),
        networks=models,
        variables=list_variables(networks, trainer.hooks, written),
        training=tuple(metrics),
    )


def _plan_objective(commit: Commit, updates: Sequence[Change], trainer: Trainer, times: int) -> ObjectivePlan:
    changes = tuple(commit.gradients)
    changed = [hook for hook in trainer.hooks if hook.network in changes]
    taking_part = [hook for hook in changed if takes_part(hook, commit.objective, changes)]
    run = [hook for hook in trainer.hooks if hook.network in commit.runs]
    concerned = {"transform_weights": run, "around_forward": run, "project": changed}
    stages = {
        stage: tuple(hook.name for hook in concerned.get(stage, taking_part) if stage in own_stages(hook))
        for stage in STEP_STAGES
    }
    applies = []
    for name, gradients in commit.gradients.items():
        trained = tuple(variable for variable, gradient in gradients.items() if gradient is not None)
        optimizer = trainer.networks[name].optimizer
        inner = getattr(optimizer, "inner_optimizer", None)
        shown = type(optimizer).__name__ + ("" if inner is None else f"({type(inner).__name__})")
        applies.append(Change("apply", f"{shown} of {name}", trained))
    projections = []
    for hook in changed:
        if "project" in own_stages(hook):
            variables = trainer.networks[hook.network].variables
            projected = tuple(name for name in variables if name in hook.declare().projected)
            projections.append(Change("project", hook.name, projected))
    hooks = {stage: names for stage, names in stages.items() if names}
    runs = tuple(commit.runs)
    changed_by = (tuple(updates), tuple(applies), tuple(projections))
    return ObjectivePlan(commit.objective, runs, changes, hooks, *changed_by, times)


def plan_run(run: Run) -> Plan:
    """Return the plan of a run."""
    plan, best = plan_step(run.trainer, run.host_hooks, run.report_names), run.best
    monitor = f"{best.monitor} of the validation split, {best.mode}imal"
    if best.since:
        monitor += f", counted from step {best.since:,} on"
    evaluation = tuple(run.held_out["validation"].names)
    advice: list[tuple[str, str]] = []
    for hook in run.hooks:
        with in_stage(hook, "advise", 0):
            advice += [(hook.name, line) for line in hook.advise(run)]
    plan = replace(plan, evaluation=evaluation, monitor=monitor, facts=_facts(run), advice=tuple(advice))
    return replace(plan, memory=estimated("The memory of the run", lambda: estimate_memory(run, plan), ()))


def _facts(run: Run) -> dict[str, str]:
    settings, training = run.settings, run.training
    epochs = settings["epochs"] or run.total_steps / run.steps_per_epoch
    every, size = settings["evaluate_every_epochs"], settings["evaluation_batch_size"]
    splits = [training.split, *(each.split for each in run.held_out.values())]
    precision = settings.get("precision", "float32")
    augments = training.augmentation.augments if training.augmentation else []
    return {
        "recipe": run.recipe,
        "steps": f"{run.total_steps:,} of {training.batch_size:,} examples: {_epochs(epochs)}",
        **replica_facts(run),
        "data": ", ".join(f"{split.size:,} {split.name}" for split in splits) + f"; on the {training.placement}",
        **({"augmentation": ", ".join(each.name for each in augments)} if augments else {}),
        "evaluation": f"every {_epochs(every) if every > 1 else 'epoch'}, {size:,} examples at a time",
        **({} if precision == "float32" else {"precision": precision}),
        "XLA": "compiles the step" if run.loop.xla else "off",
    }


def _epochs(count: float) -> str:
    return f"{count:.4g} epoch{'' if count == 1 else 's'}"


def plan_text(run: Run) -> str:
    """Return the plan of a run as Markdown."""
    return as_markdown(plan_run(run))


SAME_BUFFER = frozenset(
    {"Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "CheckNumerics"}
    | {"Bitcast", "EnsureShape"}
)
"""Ops whose output shares its input's memory."""
NO_BUFFER = frozenset({"ReadVariableOp", "Placeholder", "VarHandleOp"})
"""Ops whose output is a variable's memory, or comes from an outer graph, where it is counted."""
LOOPS = ("While", "StatelessWhile")


def live_bytes(graph: tf.Graph, *, open_size: int, leave_out: Collection[int] = ()) -> tuple[int, int]:
    """Return the peak bytes of live tensors if ops run in the order of tracing, and how many tensors are left out.

    Tensors are left out if their size is known only at run time. A tensor lives from its op to the last op that uses
    it, the output of a function to the end of the function. Branches and loops count with one pass of their largest
    graph. Scratch memory inside an op and variables are not counted.
    """
    operations = graph.get_operations()
    buffers, last_use = _buffers(operations)
    live = peak = unsized = 0
    ends: Counter[int] = Counter()  # bytes that are free after an op, by its index
    for index, operation in enumerate(operations):
        inner = [live_bytes(each, open_size=open_size, leave_out=leave_out) for each in inner_graphs(operation)]
        unsized += sum(left_out for _, left_out in inner)
        made = 0
        for tensor in operation.outputs:
            if buffers[id(tensor)] == id(tensor) and operation.type not in NO_BUFFER and id(tensor) not in leave_out:
                size = _size(tensor, open_size)
                unsized += size is None
                made += size or 0
                ends[last_use[id(tensor)]] += size or 0
        peak = max(peak, live + max([made, *(most for most, _ in inner)]))
        live += made - ends[index]
    return peak, unsized


def _buffers(operations: Sequence[tf.Operation]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the tensor that owns the memory of each tensor, and the index of the last op that uses each memory."""
    buffers: dict[int, int] = {}
    last_use: dict[int, int] = {}
    for index, operation in enumerate(operations):
        for tensor in operation.inputs:  # a loop takes lists that its gradient, traced later, creates
            last_use[buffers.setdefault(id(tensor), id(tensor))] = index
        for number, tensor in enumerate(operation.outputs):
            shares = operation.type in SAME_BUFFER and number < len(operation.inputs)
            buffers[id(tensor)] = buffers[id(operation.inputs[number])] if shares else id(tensor)
            last_use[buffers[id(tensor)]] = index
    return buffers, last_use


def _size(tensor: tf.Tensor, open_size: int) -> int | None:
    """Return the bytes of a tensor; None if they are unknown."""
    if tensor.dtype in (tf.resource, tf.variant, tf.string):
        return None if tensor.dtype == tf.variant else 0
    if tensor.shape.rank is None:
        return None
    return math.prod(open_size if each is None else each for each in tensor.shape) * tensor.dtype.size


VARIABLES = {NETWORK: "variables of the networks", OPTIMIZER: "variables of the optimizers", HOOK: "state of the hooks"}


def estimate_memory(run: Run, plan: Plan) -> tuple[Held, ...]:
    """Estimate the memory of a run on one device, item by item.

    Not counted are Python, TensorFlow and its threads, the traced graphs, compilation by XLA, batches prefetched by
    tf.data, results that an evaluation collects over a split, and pictures: 61 to 138 MiB on a CPU, and 175 MiB more
    with XLA.
    """
    settings = run.settings
    gradients = [
        [each for given in commit.gradients.values() for each in given.values() if each is not None]
        for commit in run.trainer.commits
    ]
    sizes = [sum((each.shape.num_elements() or 0) * each.dtype.size for each in given) for given in gradients]
    gradient_bytes = max(sizes, default=0)
    apart = {id(each) for given in gradients for each in given}
    activations, left_out = live_bytes(run.loop.loop_graph, open_size=settings["batch_size"], leave_out=apart)
    largest = max(run.held_out.values(), key=lambda each: each.split.size)
    size = min(settings["evaluation_batch_size"], largest.split.size)
    evaluation, _ = live_bytes(largest.graph, open_size=size)
    trains = activations + gradient_bytes >= evaluation
    unsized = f"; {left_out} lists whose length shows only later are not counted" if left_out else ""
    splits = [run.training.split, *(each.split for each in run.held_out.values())]
    sources = {id(split.source): split.source for split in splits}.values()  # splits of a source share it
    accelerated, data = bool(tf.config.list_logical_devices("GPU")), []
    for place in ("device", "host"):
        if here := [each for each in sources if resolve_placement(settings["placement"], each) == place]:
            examples = f"{sum(source.size for source in here):,} examples"
            held = sum(source.bytes for source in here)
            data.append(Held(f"data on the {place}", held, examples, place == "device" or not accelerated))
    return (
        *data,
        *(Held(text, sum(each.bytes for each in plan.variables_of(kind))) for kind, text in VARIABLES.items()),
        Held("gradients", gradient_bytes, "as the optimizers get them", trains),
        Held("activations", activations, f"of a step of {settings['batch_size']:,} examples{unsized}", trains),
        Held("an evaluation", evaluation, f"of {size:,} examples at a time, in place of a step", not trains),
    )


def replica_facts(run: Run) -> dict[str, str]:
    """Return rows of the plan about replicas; empty for a run with one."""
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
    """Return the bytes of each message that a step sums over replicas."""
    found: list[int] = []
    for operation in graph.get_operations():
        if operation.type == "CollectiveReduceV2":
            message = operation.inputs[0]
            found.append(math.prod(message.shape) * message.dtype.size)
        times = micro_batches if operation.type in LOOPS else 1
        for inner in inner_graphs(operation):
            found += replica_sums(inner, micro_batches=micro_batches) * times
    return found
