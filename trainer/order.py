"""The order of hooks: from their declarations, then from the priority, then from the name."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import TypeVar

from trainer.errors import UserError
from trainer.hook import GraphHook, Hook

AnyHook = TypeVar("AnyHook", bound=Hook)


def order_hooks(hooks: Sequence[AnyHook]) -> list[AnyHook]:
    """Return the hooks in the order in which every stage calls them.

    Args:
        hooks: with unique names.

    Raises:
        UserError: two hooks of one name, a declared conflict, or declarations that form a cycle.
    """
    named = {hook.name: hook for hook in hooks}
    if len(named) < len(hooks):
        raise UserError(f"Two hooks share a name. Received: {sorted(hook.name for hook in hooks)}. Give each its own.")
    _refuse_conflicts(named)
    followers = _edges(named)
    waiting = dict.fromkeys(named, 0)
    for successors in followers.values():
        for name in successors:
            waiting[name] += 1
    ready = [(named[name].priority, name) for name, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    ordered: list[AnyHook] = []
    while ready:
        _, name = heapq.heappop(ready)
        ordered.append(named[name])
        for successor in followers[name]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                heapq.heappush(ready, (named[successor].priority, successor))
    if len(ordered) < len(named):
        stuck = sorted(set(named) - {hook.name for hook in ordered})
        raise UserError(
            f"The hooks {', '.join(stuck)} ask to run before and after one another. "
            "Expected declarations without a cycle: change `before`, `after` or `reads` of one of them."
        )
    return ordered


def declared_followers(hooks: Sequence[Hook]) -> dict[str, set[str]]:
    """Return for each hook the names of those that must come later by declarations, also over others in between.

    Args:
        hooks: with unique names, as `order_hooks` returned them.
    """
    named = {hook.name: hook for hook in hooks}
    followers = _edges(named)
    for name in reversed(named):  # those that come later are complete already
        followers[name] |= {far for near in followers[name] for far in followers[near]}
    return followers


def _refuse_conflicts(named: Mapping[str, Hook]) -> None:
    for hook in named.values():
        for other in hook.conflicts:
            if other in named:
                raise UserError(
                    f"The hooks '{hook.name}' and '{other}' cannot run together. "
                    f"Remove one of them, for example with hooks.{other}=null."
                )


def _edges(named: Mapping[str, Hook]) -> dict[str, set[str]]:
    """Return for each hook the names of those that must come later."""
    followers: dict[str, set[str]] = {name: set() for name in named}
    for hook in named.values():
        reads = tuple(key.partition("/")[0] for key in hook.reads) if isinstance(hook, GraphHook) else ()
        for later in hook.before:
            if later in named:
                followers[hook.name].add(later)
        for earlier in (*hook.after, *reads):
            if earlier in named:
                followers[earlier].add(hook.name)
    return followers
