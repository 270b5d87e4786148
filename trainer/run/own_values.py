"""What a report holds of a hook's own, under the names that the hook gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainer.hook import GraphHook, Hook
from trainer.objective import Objective
from trainer.step.taking_part import takes_part

KINDS = ("", "loss/", "metric/")


def own_values(hook: Hook, values: Mapping[str, float], objectives: Sequence[Objective]) -> list[Mapping[str, float]]:
    """Return the values of a report as a hook knows them, once for each objective that it takes part in.

    What stands before its names, of an objective among several or of a network, is left out; the other values are there
    under their full names.

    Args:
        hook: any hook.
        values: of a report, by name.
        objectives: of the run.
    """
    if not isinstance(hook, GraphHook):
        return [values]
    views: list[Mapping[str, float]] = []
    for objective in objectives:
        if takes_part(hook, objective.name, objective.changes):
            prefix = f"{objective.name}/" if len(objectives) > 1 else ""
            own = {
                kind + name.removeprefix(prefix + kind + hook.scope): value
                for kind in KINDS
                for name, value in values.items()
                if name.startswith(prefix + kind + hook.scope)
            }
            views.append({**values, **own})
    return views
