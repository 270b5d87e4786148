"""The stages that a hook's class overrides, in the order of the hook interface."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from trainer.hook import GraphHook, Hook, HostHook
from trainer.plan.stages import DECLARATIONS

INTERFACES: tuple[type[Hook], ...] = (Hook, GraphHook, HostHook)


def overridden_stages(hook_class: type[Hook]) -> list[str]:
    """Return the stages in which a hook has something to do, in the order in which `trainer/hook.py` lists them.

    Args:
        hook_class: of the hook.
    """
    return [name for name in _overridden(hook_class) if name not in DECLARATIONS]


def overridden_declarations(hook_class: type[Hook]) -> list[str]:
    """Return the methods by which a hook says something of itself that the interface does not say for it.

    Args:
        hook_class: of the hook.
    """
    return [name for name in _overridden(hook_class) if name in DECLARATIONS]


def _overridden(hook_class: type[Hook]) -> Iterator[str]:
    for interface in INTERFACES:
        for name, method in vars(interface).items():
            is_public = inspect.isfunction(method) and not name.startswith("_")
            if is_public and issubclass(hook_class, interface) and getattr(hook_class, name) is not method:
                yield name
