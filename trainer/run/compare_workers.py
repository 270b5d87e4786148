"""What must be equal on all workers of a run before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hookline.trainer.config.plugins import used_plugins
from hookline.trainer.run.assembly import Assembly
from hookline.trainer.run.checkpoint_files import tensors_digest
from hookline.trainer.run.directory import environment
from hookline.trainer.run.fingerprint import data_fingerprint
from hookline.trainer.run.state import VariableValues, trainer_variables

OWN = ("debug", "run_dir")
"""Keys of the config that may differ between workers."""


def facts_of(config: Mapping[str, Any], parts: Assembly) -> dict[str, str]:
    """Return what must be equal, as texts by name."""
    here = environment()
    variables = trainer_variables(parts.trainer)
    facts = {f"the version of {name}": version for name, version in here["packages"].items()}
    facts |= {f"the version of the plugin {name}": str(here["plugins"].get(name)) for name in used_plugins(config)}
    facts |= {"the version of python": here["python"], "the commit of this project": str(here["git_commit"])}
    facts |= {name: repr(value) for name, value in _flat(config, "") if name.partition(".")[0] not in OWN}
    splits = [parts.training.split, *(each.split for each in parts.evaluated.values())]
    facts["the data"] = data_fingerprint(splits)
    facts["the variables"] = " ".join(f"{key} {variables[key].shape}" for key in sorted(variables))
    if config["resume"] is None:  # else the chief gives the others its own
        facts["the initial values of the variables"] = tensors_digest(VariableValues(variables))
    return facts


def first_difference(facts: Sequence[Mapping[str, str]]) -> str | None:
    """Return one line on the first worker that differs from the chief; None if all are equal."""
    for worker, theirs in enumerate(facts):
        for name in dict.fromkeys([*facts[0], *theirs]):
            was, is_ = facts[0].get(name, "missing"), theirs.get(name, "missing")
            if was != is_:
                values = f": {is_} there, {was} on worker 0" if len(was) + len(is_) < 120 else ""
                return (
                    f"Worker {worker} differs from worker 0 in {name}{values}. Expected the same project, config and "
                    "data on all workers."
                )
    return None


def _flat(node: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield every value of a config with its key."""
    if isinstance(node, Mapping) and node:
        for name, child in node.items():
            yield from _flat(child, f"{where}.{name}" if where else str(name))
    else:
        yield where, node
