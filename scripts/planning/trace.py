"""Read the plan off a traced step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from hookline.scripts.planning.memory import estimate_memory, replica_facts
from hookline.scripts.planning.plan import (
    HOOK,
    OPTIMIZER,
    Change,
    Identity,
    ObjectivePlan,
    Plan,
    Stage,
    as_markdown,
    identities,
    list_variables,
)
from hookline.trainer.hook import GraphHook, Hook, HostHook
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


def plan_step(trainer: Trainer, host_hooks: Iterable[HostHook], metrics: Sequence[str]) -> Plan:
    """Return the plan of a traced step, without what only a run has: evaluation, monitor, memory."""
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
                names = []  # that distinguish a variable from those of other networks, optimizers and hooks
                for kind, owner, name in found:
                    prefix = "optimizer/" if kind == OPTIMIZER else ""
                    names.append(f"{prefix}{f'{owner}/' if len(networks) > 1 or kind == HOOK else ''}{name}")
                updates.append(Change(operation.type, by, tuple(names)))
        seen.update(commit.added_by)
        if commit.update == 0:  # the others write the same once more
            objectives.append(_plan_objective(commit, updates, trainer, times[commit.objective]))
    models = {}
    for network in networks:
        before = "".join(f", trained from the logits before its {each}" for each in network.final_activations)
        models[network.name] = f"{type(network.model).__name__} '{network.model.name}'{before}"
    own = {id(hook): (hook.name, own_stages(hook)) for hook in (*trainer.hooks, *host_hooks)}.values()
    stages = []
    for phase, name in ((phase, name) for phase, names in PHASES.items() for name in names):
        if taking_part := tuple(hook for hook, theirs in own if name in theirs):
            stages.append(Stage(phase, name, taking_part))
    return Plan(
        stages=tuple(stages),
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
