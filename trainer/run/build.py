"""From a config to parts, hooks and augmentations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from hookline.trainer.config.build import build, parameters_of, resolve
from hookline.trainer.config.schema import TARGET
from hookline.trainer.errors import UserError, did_you_mean
from hookline.trainer.hook import AT, GraphHook, Hook
from hookline.trainer.input.augment import Augment
from hookline.trainer.network import Network
from hookline.trainer.objective import Objective

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
    changing = {name: [each.name for each in objectives if name in each.trains] for name in found}
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


Part = TypeVar("Part")


def build_part(
    key: str, node: Mapping[str, Any], kind: type[Part], *, plugins: Sequence[str] = (), **injected: Any
) -> Part:
    """Return what a section of the config builds."""
    part = build(node, group=key, plugins=plugins, **injected)
    if not isinstance(part, kind):
        raise UserError(
            f"{key}._target_={node[TARGET]} returned a value of type {type(part).__name__}. "
            f"Expected {kind.__module__.partition('.')[0]}'s {kind.__name__}."
        )
    return part


GROUP = "hooks"
BINDING = ("network", "objective")
"""Attributes of every graph hook that its config may set, whether or not its constructor names them."""


def build_hook(name: str, node: Mapping[str, Any], *, plugins: Sequence[str] = ()) -> Hook:
    """Return the hook that a node of the config describes."""
    if AT in name:
        raise UserError(f"hooks.{name}: '{AT}' stands between a hook and its network. Expected a name without it.")
    try:
        arguments, binding = split_binding(node, plugins=plugins)
        hook = build(arguments, group=GROUP, kind=Hook, plugins=plugins)
        if not isinstance(hook, Hook):
            raise UserError(f"a {type(hook).__name__} received. Expected a GraphHook or a HostHook.")
        for key, pattern in binding.items():
            if not isinstance(hook, GraphHook):
                raise UserError(f"{key}={pattern} received, but it changes no step. Expected no {key}.")
            setattr(hook, key, pattern)
        for key in BINDING if isinstance(hook, GraphHook) else ():
            if not isinstance(pattern := getattr(hook, key), str) or not pattern:
                raise UserError(f"{key}={pattern!r} received. Expected a name, or a pattern such as '*'.")
    except UserError as error:
        raise UserError(f"hooks.{name}: {error}") from error
    hook.name = name
    return hook


def split_binding(node: Mapping[str, Any], *, plugins: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the target of a node with its constructor's arguments, and the settings that bind the hook."""
    parameters, takes_any = parameters_of(resolve(node[TARGET], group=GROUP, plugins=plugins))
    binding = {key: node[key] for key in BINDING if key in node and key not in parameters and not takes_any}
    return {key: value for key, value in node.items() if key not in binding}, binding


def build_augments(nodes: Mapping[str, Any], plugins: Sequence[str]) -> list[Augment]:
    """Return the augmentations of a config, without those that were removed."""
    augments = []
    for name, node in nodes.items():
        if node is not None:
            try:
                augment = build(node, group="augment", kind=Augment, plugins=plugins)
            except UserError as error:
                raise UserError(f"augment.{name}: {error}") from error
            if not isinstance(augment, Augment):
                raise UserError(f"augment.{name} builds a {type(augment).__name__}. Expected an Augment.")
            augment.name = name
            augments.append(augment)
    return augments
