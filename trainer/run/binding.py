"""Which networks each hook works on: a pattern becomes one instance for each network that matches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from trainer.errors import UserError, did_you_mean
from trainer.hook import AT, GraphHook, Hook
from trainer.network import Network
from trainer.objective import Objective

ANY = "*"


def bind_hooks(
    hooks: Sequence[Hook],
    networks: Sequence[Network],
    objectives: Sequence[Objective],
    build_again: Callable[[str], Hook],
) -> list[Hook]:
    """Return the hooks of a run, each graph hook with the name of one network.

    A hook whose pattern matches one network keeps its name. Where it matches several, there is an instance for each,
    named "<hook>@<network>". With a pattern on objectives, networks that no such objective changes do not count.

    Args:
        hooks: as the config describes them, with unique names; one that keeps its name is bound in place.
        networks: of the recipe.
        objectives: of the recipe.
        build_again: returns another hook as the config describes it, by its key.

    Raises:
        UserError: a pattern that matches no network, or no objective that changes its networks.
    """
    bound: list[Hook] = []
    for hook in hooks:
        if not isinstance(hook, GraphHook):
            bound.append(hook)
            continue
        names = _matching(hook, [network.name for network in networks], objectives)
        for name in names:
            instance = hook if len(names) == 1 else build_again(hook.key)
            assert isinstance(instance, GraphHook)
            instance.name = hook.key if len(names) == 1 else f"{hook.key}{AT}{name}"
            instance.network = name
            bound.append(instance)
    return bound


def _matching(hook: GraphHook, networks: Sequence[str], objectives: Sequence[Objective]) -> list[str]:
    """Return the names of the networks that a hook works on."""
    found = [name for name in networks if fnmatchcase(name, hook.network)]
    if not found:
        raise UserError(
            f"The hook '{hook.key}' works on the network '{hook.network}', which matches none."
            f"{did_you_mean(hook.network, networks)} Expected hooks.{hook.key}.network to be one of these, or a "
            f"pattern such as '*': {', '.join(networks)}."
        )
    if hook.objective == ANY:
        return found
    changing = {name: [each.name for each in objectives if name in each.changes] for name in found}
    taking_part = [name for name in found if any(fnmatchcase(each, hook.objective) for each in changing[name])]
    if not taking_part:
        known = list(dict.fromkeys(each for name in found for each in changing[name]))
        raise UserError(
            f"The hook '{hook.key}' takes part in the objective '{hook.objective}', but no such objective changes "
            f"{_listed(found)}.{did_you_mean(hook.objective, known)} Expected hooks.{hook.key}.objective to be one of "
            f"these, or a pattern such as '*': {', '.join(known) or 'none'}."
        )
    return taking_part


def _listed(names: Sequence[str]) -> str:
    return f"the network{'s' if len(names) > 1 else ''} {', '.join(names)}"
