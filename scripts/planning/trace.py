"""Read the plan off a traced step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from hookline.scripts.planning.memory import estimate_memory, replica_facts
from hookline.scripts.planning.plan import (
    HOOK,
    NETWORK,
    OPTIMIZER,
    Apply,
    Identity,
    Metrics,
    ObjectivePlan,
    Plan,
    Projection,
    Stage,
    Update,
    identities,
    list_variables,
)
from hookline.scripts.planning.text import as_markdown
from hookline.trainer.hook import GraphHook, Hook, HostHook
from hookline.trainer.network import Network
from hookline.trainer.run.machine import estimated
from hookline.trainer.run.run import Run
from hookline.trainer.step.stage import in_stage, takes_part
from hookline.trainer.step.trainer import Trainer
from hookline.trainer.step.writes import TRAINER, Commit, all_writes

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
DECLARATIONS = frozenset({"declare", "summary", "shipped_bits", "next_step", "state_dict", "load_state_dict"})
"""Public methods by which hooks describe themselves; they are not stages."""


def own_stages(hook: Hook) -> list[str]:
    """Return the stages in which a hook does something: those that its class overrides."""
    found = []
    for stage in (stage for stages in PHASES.values() for stage in stages):
        base: type[Any] = next(base for base in (Hook, GraphHook, HostHook) if stage in vars(base))
        if isinstance(hook, base) and getattr(type(hook), stage) is not getattr(base, stage):
            found.append(stage)
    return found


def stages_of(graph_hooks: Sequence[GraphHook], host_hooks: Iterable[HostHook]) -> tuple[Stage, ...]:
    """Return the stages in which at least one hook has something to do, in the order in which they run."""
    hooks = {id(hook): (hook.name, own_stages(hook)) for hook in (*graph_hooks, *host_hooks)}.values()
    return tuple(
        Stage(phase, stage, names)
        for phase, stages in PHASES.items()
        for stage in stages
        if (names := tuple(name for name, own in hooks if stage in own))
    )


def plan_step(trainer: Trainer, host_hooks: Iterable[HostHook], metrics: Sequence[str]) -> Plan:
    """Return the plan of a traced step, without what only a run has: evaluation, monitor, memory."""
    networks = list(trainer.networks.values())
    known = identities(networks, trainer.hooks)
    updates = _updates(trainer.commits)
    written = {known[handle] for each in updates for _, handles, _ in each for handle in handles if handle in known}
    times = Counter(commit.objective for commit in trainer.commits)
    objectives = [
        replace(
            _plan_objective(commit, [_as_update(each, known, trainer.networks) for each in own], trainer),
            times=times[commit.objective],
        )
        for commit, own in zip(trainer.commits, updates, strict=True)
        if commit.update == 0  # the others write the same once more
    ]
    return Plan(
        stages=stages_of(trainer.hooks, host_hooks),
        objectives=tuple(objectives),
        networks={each.name: _describe(each) for each in networks},
        variables=list_variables(networks, trainer.hooks, written),
        metrics=Metrics(training=tuple(metrics)),
    )


def _describe(network: Network) -> str:
    before = "".join(f", trained from the logits before its {each}" for each in network.final_activations)
    return f"{type(network.model).__name__} '{network.model.name}'{before}"


_Op = tuple[tf.Operation, tuple[int, ...], str]  # op, handles that it writes, who added it


def _updates(commits: Iterable[Commit]) -> list[list[_Op]]:
    """Return the update ops of each record; objectives in one graph share a collection, and each op counts once."""
    seen: set[tf.Operation] = set()
    found = []
    for commit in commits:
        own = {operation: by for operation, by in commit.added_by.items() if operation not in seen}
        seen |= own.keys()
        found.append([(operation, _written(operation), by) for operation, by in own.items()])
    return found


def _written(operation: tf.Operation) -> tuple[int, ...]:
    """Return the handles of the variables that an op writes, or what it calls: a branch may stand for many writes."""
    return tuple(dict.fromkeys(write.handle for write in all_writes([operation])))


def _as_update(item: _Op, known: Mapping[int, Identity], networks: Mapping[str, Network]) -> Update:
    operation, handles, by = item
    found = [known[handle] for handle in handles if handle in known]
    if by == TRAINER and found:
        _, owner, name = found[0]
        by += ", for moving statistics" if name in networks[owner].weights else ", for seed state"
    return Update(operation.type, tuple(_label(*each, several=len(networks) > 1) for each in found), by)


def _label(kind: str, owner: str, name: str, *, several: bool) -> str:
    """Return a name that distinguishes a variable from those of other networks, optimizers and hooks."""
    prefix = {
        NETWORK: f"{owner}/" if several else "",
        OPTIMIZER: f"optimizer/{owner}/" if several else "optimizer/",
        HOOK: f"{owner}/",
    }
    return f"{prefix[kind]}{name}"


def _plan_objective(commit: Commit, updates: Sequence[Update], trainer: Trainer) -> ObjectivePlan:
    changes = tuple(commit.gradients)
    changed = [hook for hook in trainer.hooks if hook.network in changes]
    hooks = [hook for hook in changed if takes_part(hook, commit.objective, changes)]
    run = [hook for hook in trainer.hooks if hook.network in commit.runs]
    read = dict.fromkeys(("transform_weights", "around_forward"), run)
    # The other stages: those of hooks that take part.
    concerned = {**read, "project": changed}
    stages: dict[str, tuple[str, ...]] = {}
    for stage in STEP_STAGES:
        if names := tuple(hook.name for hook in concerned.get(stage, hooks) if stage in own_stages(hook)):
            stages[stage] = names
    return ObjectivePlan(
        name=commit.objective,
        runs=tuple(commit.runs),
        trains=changes,
        hooks=stages,
        updates=tuple(updates),
        applies=tuple(
            Apply(
                name,
                _optimizer_name(trainer.networks[name]),
                tuple(variable for variable, gradient in gradients.items() if gradient is not None),
            )
            for name, gradients in commit.gradients.items()
        ),
        projections=tuple(
            Projection(
                hook.name,
                hook.network,
                tuple(name for name in trainer.networks[hook.network].variables if name in hook.declare().projected),
            )
            for hook in changed
            if "project" in own_stages(hook)
        ),
    )


def _optimizer_name(network: Network) -> str:
    optimizer = network.optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    outer = type(optimizer).__name__
    return outer if inner is None else f"{outer}({type(inner).__name__})"


def plan_run(run: Run) -> Plan:
    """Return the plan of a run."""
    plan, best = plan_step(run.trainer, run.host_hooks, run.report_names), run.best
    monitor = f"{best.monitor} of the validation split, {best.mode}imal"
    if best.since:
        monitor += f", counted from step {best.since:,} on"
    metrics = Metrics(plan.metrics.training, tuple(run.held_out["validation"].names), monitor)
    plan = replace(plan, metrics=metrics, facts=_facts(run), advice=_advice(run))
    return replace(plan, memory=estimated("The memory of the run", lambda: estimate_memory(run, plan), ()))


def _advice(run: Run) -> tuple[tuple[str, str], ...]:
    found = []
    for hook in run.hooks:
        with in_stage(hook, "advise", 0):
            found += [(hook.name, line) for line in hook.advise(run)]
    return tuple(found)


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
