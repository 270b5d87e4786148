"""Which hooks take part in an objective."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from trainer.hook import GraphHook
from trainer.step.context import StepContext


def takes_part(hook: GraphHook, objective: str, changes: Container[str]) -> bool:
    """Return whether the stages of training are called for a hook within an objective.

    Args:
        hook: bound to a network.
        objective: its name.
        changes: names of the networks that it changes.
    """
    return hook.network in changes and fnmatchcase(objective, hook.objective)


def taking_part(
    hooks: Iterable[GraphHook], contexts: Mapping[str, StepContext]
) -> Iterator[tuple[GraphHook, StepContext]]:
    """Yield the hooks that take part in the objective at hand, each with the context of its network.

    Args:
        hooks: in order.
        contexts: of the networks that the objective changes, by network name.
    """
    for hook in hooks:
        if hook.network in contexts and takes_part(hook, contexts[hook.network].objective, contexts):
            yield hook, contexts[hook.network]
