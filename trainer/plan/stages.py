"""The stages of hooks, by the phase of a run in which they are called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainer.hook import GraphHook, Hook, HostHook
from trainer.plan.plan import Stage

STEP = "step"
STEP_STAGES = (
    "transform_batch",
    "transform_weights",
    "transform_statistics",
    "around_forward",
    "add_losses",
    "transform_gradients",
    "transform_state",
    "veto",
    "batch_sums",
    "update_ops",
    "project",
    "measure",
)
PHASES = {
    "set-up": ("rebuild_model", "request_taps", "build", "on_resume", "advise", "on_fit_begin"),
    STEP: STEP_STAGES,
    "chunk of steps": ("on_veto", "warning", "on_chunk_end"),
    "evaluation": ("held", "evaluate", "collect", "split_metrics", "on_evaluation_end"),
    "pictures": ("observe", "pictures", "embeddings", "distributions"),
    "checkpoint": ("before_save",),
    "end": ("on_exception", "on_fit_end"),
    "export": ("strip_model",),
}
"""Every stage, in the order in which they run."""
DECLARATIONS = frozenset(
    {"state", "writes", "frozen", "projected", "settled_at", "summary"}
    | {"stored_bits", "weight_bits", "input_bits"}
    | {"next_step", "state_dict", "load_state_dict"}
)
"""The public methods of hooks by which they say something; they are no stages."""


def own_stages(hook: Hook) -> list[str]:
    """Return the stages in which a hook has something to do: those that its class defines itself.

    Args:
        hook: any hook.
    """
    stages = [stage for stages in PHASES.values() for stage in stages]
    return [stage for stage in stages if _has(hook, stage)]


def stages_of(graph_hooks: Sequence[GraphHook], host_hooks: Iterable[HostHook]) -> tuple[Stage, ...]:
    """Return the stages in which at least one hook has something to do, in the order in which they run.

    Args:
        graph_hooks: in order.
        host_hooks: in order; a hook of both kinds stands in both lists, and is called where the graph hooks are.
    """
    hooks = list({id(hook): hook for hook in (*graph_hooks, *host_hooks)}.values())
    found = []
    for phase, stages in PHASES.items():
        for stage in stages:
            if names := tuple(hook.name for hook in hooks if _has(hook, stage)):
                found.append(Stage(phase, stage, names))
    return tuple(found)


def _base(stage: str) -> type[Hook]:
    """Return the class of the interface that brings a stage."""
    return next(base for base in (Hook, GraphHook, HostHook) if stage in vars(base))


def _has(hook: Hook, stage: str) -> bool:
    base = _base(stage)
    return isinstance(hook, base) and getattr(type(hook), stage) is not getattr(base, stage)
