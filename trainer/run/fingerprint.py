"""What must be the same for a run to continue, and on all of its workers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from hookline.trainer.config.plugins import used_plugins
from hookline.trainer.input.data import Split
from hookline.trainer.objective import Batch
from hookline.trainer.run.checkpoint_files import tensors_digest
from hookline.trainer.run.directory import environment
from hookline.trainer.run.state import VariableValues, trainer_variables

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run

SAMPLES = 32
"""How many rows of a split are read."""
OWN = ("debug", "run_dir")
"""Keys of the config that may differ between workers."""


def data_fingerprint(splits: Iterable[Split]) -> str:
    """Return a sha256 of the rows that each split names, and of the contents of some of them."""
    digest = hashlib.sha256()
    for split in splits:
        rows = np.ascontiguousarray(split.indices)
        digest.update(f"{split.name} {split.source.size} {rows.size}".encode())
        digest.update(rows.data)
        places = np.unique(np.linspace(0, rows.size - 1, SAMPLES).astype(np.int64))
        batch = split.source.gather(tf.constant(rows[places]))
        digest.update(tensors_digest(_arrays(batch)).encode())
    return digest.hexdigest()


def _arrays(batch: Batch) -> dict[str, np.ndarray]:
    """Return the arrays of a batch by name; of inputs that are several, each under its own."""
    named = {name: tf.nest.flatten(value) for name, value in batch.items()}
    return {
        name if len(values) == 1 else f"{name}/{place}": value.numpy()
        for name, values in named.items()
        for place, value in enumerate(values)
    }


def facts_of(run: Run) -> dict[str, str]:
    """Return what must be equal on all workers before the start, as texts by name."""
    config, resumed = run.config, run.config["resume"] is not None
    here, variables = environment(), trainer_variables(run.trainer)
    facts = {f"the version of {name}": version for name, version in here["packages"].items()}
    facts |= {f"the version of the plugin {name}": str(here["plugins"].get(name)) for name in used_plugins(config)}
    facts |= {"the version of python": here["python"], "the commit of this project": str(here["git_commit"])}
    own = (*OWN, "init_from") if resumed else OWN
    facts |= {name: repr(value) for name, value in _flat(config, "") if name.partition(".")[0] not in own}
    facts["the data"] = run.fingerprint
    facts["the variables"] = " ".join(f"{key} {variables[key].shape}" for key in sorted(variables))
    if not resumed:  # else the chief gives the others its own
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
