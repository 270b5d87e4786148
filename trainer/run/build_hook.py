"""From a hook's part of the config to the hook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.config.build import build, parameters_of
from trainer.config.parts import TARGET
from trainer.config.resolve import resolve
from trainer.errors import UserError
from trainer.hook import AT, GraphHook, Hook

GROUP = "hooks"
BINDING = ("network", "objective")
"""Attributes of every graph hook that its config may set, whether or not its constructor names them."""


def build_hook(name: str, node: Mapping[str, Any], *, plugins: Sequence[str] = ()) -> Hook:
    """Return the hook that a node of the config describes.

    Args:
        name: its key under `hooks`.
        node: `_target_`, the arguments of its constructor, and what binds it.
        plugins: packages that the user allows beside this project and Keras.

    Raises:
        UserError: names the key and what is wrong with it.
    """
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
    """Return the target of a node with what its constructor takes, and what binds the hook from outside.

    Args:
        node: of a hook.
        plugins: packages that the user allows beside this project and Keras.
    """
    parameters, takes_any = parameters_of(resolve(node[TARGET], group=GROUP, plugins=plugins))
    binding = {key: node[key] for key in BINDING if key in node and key not in parameters and not takes_any}
    return {key: value for key, value in node.items() if key not in binding}, binding
