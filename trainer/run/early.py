"""Checks and settings before TensorFlow is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from hookline.trainer.config.build import resolve
from hookline.trainer.config.preflight import Job
from hookline.trainer.config.schema import PARTS, TARGET
from hookline.trainer.deferred import NeedsFramework, run_precheck, without_frameworks
from hookline.trainer.replicas.cluster import NONE


def check_early(job: Job, *, directories: bool = True) -> None:
    """Check what needs neither TensorFlow nor Keras; constructors of hooks and augmentations check their arguments."""
    config, plugins = job.config, job.config["plugins"]
    with without_frameworks():
        from hookline.trainer.run.blueprint import build_augments, part_checks

        checks: list[Callable[[], Any]] = [partial(_check_directories, config, job.recipe)] if directories else []
        checks += part_checks(config)
        checks += [partial(_precheck, part, config[part], plugins) for part in PARTS]
        checks += [partial(build_augments, {name: node}, plugins) for name, node in config.get("augment", {}).items()]
        checks.append(partial(_build_hooks, config["hooks"], plugins))
        for check in checks:
            _unless_it_needs_frameworks(check)


def _unless_it_needs_frameworks(check: Callable[[], Any]) -> Any:
    """Return the result of a check; None if it has to wait for TensorFlow or Keras."""
    before = set(sys.modules)
    try:
        return check()
    except NeedsFramework:
        for name in sorted(set(sys.modules) - before):  # a package before its modules
            above = name.rpartition(".")[0]
            if above and above not in sys.modules:  # a later import would not bind the module to its package
                del sys.modules[name]
        return None


def _check_directories(config: Mapping[str, Any], recipe: str) -> None:
    """Check where a run writes and what it starts from, and the devices of this machine."""
    from hookline.trainer.replicas.strategy import check_number
    from hookline.trainer.run.directory import check_initial, choose_directory

    if config["resume"] is None:  # else its directory has been read
        choose_directory(config["run_dir"], recipe, datetime.now())
        if config["init_from"] is not None:
            check_initial(config["init_from"])
    settings = config["trainer"]
    check_number(settings.get("strategy", NONE), settings.get("replicas"))


def _precheck(part: str, node: Mapping[str, Any], plugins: Sequence[str]) -> None:
    target = resolve(node[TARGET], group=part, plugins=plugins)
    run_precheck(target, {name: each for name, each in node.items() if name != TARGET})


def _build_hooks(nodes: Mapping[str, Any], plugins: Sequence[str]) -> None:
    """Construct every hook, and look for conflicts among those that could be constructed."""
    from hookline.trainer.order import order_hooks
    from hookline.trainer.run.blueprint import build_hook

    named = [(name, node) for name, node in nodes.items() if node is not None]
    found = [_unless_it_needs_frameworks(partial(build_hook, *each, plugins=plugins)) for each in named]
    order_hooks([hook for hook in found if hook is not None])
