"""The order of hooks: from their declarations, then from the priority, then from the name."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from hookline.trainer.errors import UserError
from hookline.trainer.hook import GraphHook, Hook, HostHook

AnyHook = TypeVar("AnyHook", bound=Hook)


def order_hooks(hooks: Sequence[AnyHook]) -> list[AnyHook]:
    """Return the hooks in the order in which every stage calls them."""
    for hook in hooks:
        _refuse_attributes(hook)
    named = {hook.name: hook for hook in hooks}
    if len(named) < len(hooks):
        raise UserError(f"Two hooks share a name. Received: {sorted(hook.name for hook in hooks)}. Give each its own.")
    _refuse_conflicts(named)
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, followers in _edges(named).items():
        sorter.add(name)
        for each in followers:
            sorter.add(each, name)
    try:
        sorter.prepare()
    except CycleError as error:
        raise UserError(
            f"The hooks {', '.join(sorted(error.args[1][1:]))} ask to run before and after one another. "
            "Expected declarations without a cycle: change `before`, `after` or `reads` of one of them."
        ) from error
    ready: list[tuple[int, str]] = []
    ordered: list[AnyHook] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(ready, (named[name].priority, name))
        _, name = heapq.heappop(ready)
        ordered.append(named[name])
        sorter.done(name)
    return ordered


def declared_followers(hooks: Sequence[Hook]) -> dict[str, set[str]]:
    """Return for each of ordered hooks the names of those that must come later, also over others in between."""
    named = {hook.name: hook for hook in hooks}
    followers = _edges(named)
    for name in reversed(named):  # those that come later are complete already
        followers[name] |= {far for near in followers[name] for far in followers[near]}
    return followers


def _refuse_attributes(hook: Hook) -> None:
    """Refuse declarations of another type, such as a name, whose letters would be taken for names."""
    for attribute in ("before", "after", "conflicts", "reads"):
        names = getattr(hook, attribute, ())
        if not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(name, str) for name in names):
            raise UserError(f"The hook '{hook.name}' declares {attribute}={names!r}. Expected names, such as ('ema',).")


def _refuse_conflicts(named: Mapping[str, Hook]) -> None:
    for hook in named.values():
        for other in named.values():
            # Graph hooks on different networks do not conflict.
            apart = isinstance(hook, GraphHook) and isinstance(other, GraphHook) and hook.network != other.network
            watching = isinstance(hook, HostHook) or isinstance(other, HostHook)
            if other.key in hook.conflicts and (watching or not apart):
                raise UserError(f"Hooks '{hook.name}' and '{other.name}' cannot run together: hooks.{other.key}=null.")


def _edges(named: Mapping[str, Hook]) -> dict[str, set[str]]:
    """Return for each hook the names of those that must come later; a declaration speaks of all instances of a hook."""
    followers: dict[str, set[str]] = {name: set() for name in named}
    instances: dict[str, list[str]] = {}
    for name, hook in named.items():
        instances.setdefault(hook.key, []).append(name)
    for hook in named.values():
        reads = tuple(key.partition("/")[0] for key in hook.reads) if isinstance(hook, GraphHook) else ()
        for later in hook.before:
            followers[hook.name].update(instances.get(later, ()))
        for earlier in (*hook.after, *reads):
            for name in instances.get(earlier, ()):
                followers[name].add(hook.name)
    return followers
