"""The plan of a step as Markdown: stages with their hooks, update ops, variables, metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from trainer.hook import GraphHook, Hook, HostHook
from trainer.network import Network
from trainer.step.trainer import Trainer

GRAPH_STAGES = (
    "rebuild_model",
    "transform_batch",
    "transform_weights",
    "around_forward",
    "add_losses",
    "transform_gradients",
    "transform_state",
    "veto",
    "update_ops",
    "project",
    "measure",
    "evaluate",
    "observe",
)
HOST_STAGES = ("on_fit_begin", "on_chunk_end", "on_evaluation_end", "before_save", "on_exception", "on_fit_end")


def overridden_stages(hook: Hook, base: type[Hook], stages: Sequence[str]) -> list[str]:
    """Return the stages that a hook's class defines itself.

    Args:
        hook: any hook.
        base: GraphHook or HostHook.
        stages: names of methods of `base`.
    """
    return [stage for stage in stages if getattr(type(hook), stage) is not getattr(base, stage)]


def describe_plan(trainer: Trainer, host_hooks: Iterable[HostHook], metrics: Sequence[str]) -> str:
    """Return the plan of a traced step.

    Args:
        trainer: after the step was traced.
        host_hooks: in order.
        metrics: names that training reports.
    """
    sections = [
        "## Stages\n\n" + _table(("stage", "hooks in order"), _stage_rows(trainer.hooks, list(host_hooks))),
        "## Update ops, all run before the apply\n\n" + _table(("objective", "op", "writes"), _update_rows(trainer)),
    ]
    for network in trainer.networks.values():
        rows = _variable_rows(network, trainer.hooks)
        sections.append(f"## Variables of {network.name}\n\n" + _table(("variable", "shape", "bytes", "role"), rows))
    sections.append("## Training metrics\n\n" + "\n".join(f"- {name}" for name in metrics))
    return "\n\n".join(sections) + "\n"


def _stage_rows(graph_hooks: Sequence[GraphHook], host_hooks: Sequence[HostHook]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for base, hooks, stages in ((GraphHook, graph_hooks, GRAPH_STAGES), (HostHook, host_hooks, HOST_STAGES)):
        for stage in stages:
            names = [hook.name for hook in hooks if stage in overridden_stages(hook, base, stages)]
            if names:
                rows.append((stage, ", ".join(names)))
    return rows


def _update_rows(trainer: Trainer) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for commit in trainer.commits:
        hooks = {
            id(operation): f"{hook}/{name}"
            for hook, declared in commit.hook_writes.items()
            for name, operations in declared.items()
            for operation in operations
        }
        for operation, written in zip(commit.update_ops, commit.update_writes, strict=True):
            rows.append((commit.objective, operation.type, written or hooks.get(id(operation), "")))
    return rows


def _variable_rows(network: Network, hooks: Sequence[GraphHook]) -> list[tuple[str, ...]]:
    own = [hook for hook in hooks if hook.network == network.name]
    frozen = {name for hook in own for name in hook.frozen()}
    projected = {name: hook.name for hook in own for name in hook.projected()}
    rows: list[tuple[str, ...]] = []
    for name, variable in network.variables.items():
        role = "trainable" if name in network.trainable_variables else "state"
        role = "frozen" if name in frozen else role
        role += f", projected by {projected[name]}" if name in projected else ""
        size = math.prod(variable.shape) * variable.value.dtype.size
        rows.append((name, str(tuple(variable.shape)), str(size), role))
    return rows


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
