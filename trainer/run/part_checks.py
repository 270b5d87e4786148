"""Checks of all parts that a config names, before the first of them is called: a config may come from a stranger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from trainer.config.build import bind
from trainer.config.parts import KINDS, NAMED_SECTIONS
from trainer.errors import UserError


def part_checks(config: Mapping[str, Any]) -> Iterator[Callable[[], None]]:
    """Yield a check for each part, that its path, its kind and its arguments are right; nothing is called.

    Args:
        config: validated.
    """
    for section in KINDS:
        if section not in NAMED_SECTIONS:
            yield partial(bind, config[section], group=section, plugins=config["plugins"])
            continue
        for name, node in config.get(section, {}).items():
            if node is not None:
                yield partial(_check_named, section, name, node, config["plugins"])


def _check_named(section: str, name: str, node: Mapping[str, Any], plugins: list[str]) -> None:
    from trainer.hook import Hook
    from trainer.input.augment import Augment
    from trainer.run.build_hook import split_binding

    try:
        if section == "hooks":
            kind: type = Hook
            node = split_binding(node, plugins=plugins)[0]
        else:
            kind = Augment
        bind(node, group=section, kind=kind, plugins=plugins)
    except UserError as error:
        raise UserError(f"{section}.{name}: {error}") from error
