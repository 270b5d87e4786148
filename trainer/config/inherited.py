"""Values that were meant for another part than the one that the user chose: they are left out, and it is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override

from trainer.config.compose import Composer, with_values
from trainer.config.keys import TARGET
from trainer.config.origins import Step, chain_of, layers_of
from trainer.config.paths import children, lookup
from trainer.config.schema import NAMED
from trainer.config.values import show
from trainer.errors import UserError

PARTS = ("data", "model", "schedule", "optimizer", "task")
BINDING = ("network", "objective")
"""What the config of a hook may say whatever its constructor takes."""
RECIPES = "recipe/"


def without_leftovers(
    config: Mapping[str, Any], overrides: Sequence[Override], composer: Composer
) -> tuple[dict[str, Any], list[str]]:
    """Return a config without the values that its files set for other parts, and a line for each part that had some.

    Such a value comes from the file of the part that another `_target_` replaces, or from a recipe that chose another
    part, and the part that is built does not take it. What the user typed stays, and so do mistakes in a file; both are
    refused later.

    Args:
        config: validated.
        overrides: the user's.
        composer: composes it.
    """
    result, lines = dict(config), []
    layers = layers_of(overrides, composer)
    for path, node in _nodes(config):
        target = chain_of(f"{path}.{TARGET}", layers)[-1:]
        own = children(lookup(target[0].layer.tree, path)) if target else {}
        steps = {key: chain_of(f"{path}.{key}", layers)[-1:] for key in node if key not in own}
        foreign = {
            key: found[0] for key, found in steps.items() if found and _is_foreign(path, node, found[0], composer)
        }
        if foreign and (left := _refused(node, foreign, path.partition(".")[0], config["plugins"])):
            section, _, name = path.partition(".")
            kept = {key: value for key, value in node.items() if key not in left}
            result[section] = {**result[section], name: kept} if name else kept
            values = " and ".join(f"{path}.{key}={show(node[key])} ({foreign[key].place})" for key in left)
            lines.append(f"{values} left out: {node[TARGET]} does not take {'it' if len(left) == 1 else 'them'}.")
    return result, lines


def _nodes(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from ((name, config[name]) for name in PARTS)
    for section in NAMED:
        yield from ((f"{section}.{name}", node) for name, node in config[section].items() if node is not None)


def _is_foreign(path: str, node: Mapping[str, Any], step: Step, composer: Composer) -> bool:
    """Return whether a file set a value for a part with another target than the node has now."""
    layer, key = step.layer, step.path.rpartition(".")[2]
    meant = children(lookup(layer.tree, path))
    if TARGET not in meant and layer.option.startswith(RECIPES):
        recipe = composer.compose([f"recipe={layer.option.removeprefix(RECIPES)}"])
        meant = children(lookup(with_values(recipe, []), path))
    return key in meant and meant.get(TARGET, node[TARGET]) != node[TARGET]


def _refused(node: Mapping[str, Any], names: Mapping[str, Any], group: str, plugins: Sequence[str]) -> list[str]:
    """Return those of the arguments that a node's target does not take; none where it is not known: `bind` says why."""
    from trainer.config.build import parameters_of
    from trainer.config.resolve import resolve
    from trainer.quiet import quiet_start

    try:
        with quiet_start():  # a part of Keras needs it imported
            taken, takes_any = parameters_of(resolve(node[TARGET], group=group, plugins=plugins))
    except UserError:
        return []
    return [] if takes_any else [name for name in names if name not in (*taken, *BINDING)]
