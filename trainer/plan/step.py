"""The plan of a traced step: from the trainer, its hooks and the records of what it writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import tensorflow as tf

from trainer.hook import Gradients, GraphHook, HostHook
from trainer.network import Network
from trainer.order import first_instances
from trainer.plan.plan import HOOK, NETWORK, OPTIMIZER, Apply, Metrics, ObjectivePlan, Plan, Projection, Update
from trainer.plan.stages import STEP_STAGES, own_stages, stages_of
from trainer.plan.variables import Identity, identities, list_variables
from trainer.step.audit import TRAINER, Commit
from trainer.step.taking_part import takes_part
from trainer.step.trainer import Trainer
from trainer.step.writes import all_writes


def plan_step(trainer: Trainer, host_hooks: Iterable[HostHook], metrics: Sequence[str]) -> Plan:
    """Return the plan of a traced step, without what only a run knows: evaluation, monitor, memory.

    Args:
        trainer: after the step was traced.
        host_hooks: in order.
        metrics: names that training reports.
    """
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
    """Return a name that tells a variable from those of other networks, optimizers and hooks."""
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
    read = dict.fromkeys(("transform_weights", "transform_statistics", "around_forward"), run)
    # The other stages: those of hooks that take part.
    concerned = {"transform_batch": first_instances(trainer.hooks), **read, "project": changed}
    stages: dict[str, tuple[str, ...]] = {}
    for stage in STEP_STAGES:
        if names := tuple(hook.name for hook in concerned.get(stage, hooks) if stage in own_stages(hook)):
            stages[stage] = names
    return ObjectivePlan(
        name=commit.objective,
        runs=tuple(commit.runs),
        changes=changes,
        hooks=stages,
        updates=tuple(updates),
        applies=tuple(
            Apply(name, _optimizer_name(trainer.networks[name]), _given(gradients))
            for name, gradients in commit.gradients.items()
        ),
        projections=tuple(_projection(hook, trainer) for hook in changed if "project" in own_stages(hook)),
    )


def _given(gradients: Gradients) -> tuple[str, ...]:
    return tuple(name for name, gradient in gradients.items() if gradient is not None)


def _projection(hook: GraphHook, trainer: Trainer) -> Projection:
    projected = hook.projected()
    order = [name for name in trainer.networks[hook.network].variables if name in projected]
    return Projection(hook.name, hook.network, tuple(order))


def _optimizer_name(network: Network) -> str:
    optimizer = network.optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    outer = type(optimizer).__name__
    return outer if inner is None else f"{outer}({type(inner).__name__})"
