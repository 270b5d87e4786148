"""Workers from TF_CONFIG, TensorFlow's own way to describe a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hookline.trainer.errors import UserError

NAME = "TF_CONFIG"
JOBS = ("chief", "worker")
EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'


def is_there(environment: Mapping[str, str]) -> bool:
    """Return whether the variable is set."""
    return bool(environment.get(NAME, "").strip())


def read(environment: Mapping[str, str]) -> tuple[list[str], int]:
    """Return the addresses of all workers and the index of this one. A "chief" comes before the workers."""
    try:
        described = json.loads(environment[NAME])
    except ValueError as error:
        raise _wrong(f"is no JSON ({error})") from error
    cluster, task = (described.get(key) if isinstance(described, dict) else None for key in ("cluster", "task"))
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise _wrong("has no cluster or no task")
    addresses: list[str] = []
    starts: dict[str, int] = {}
    for job in JOBS:
        starts[job] = len(addresses)
        addresses += _listed(job, cluster.get(job, []))
    if unknown := sorted(set(cluster) - set(JOBS)):
        raise _wrong(f"has the job '{unknown[0]}', which training does not use")
    if not addresses:
        raise _wrong("names no workers")
    return addresses, _own_index(task, starts, cluster)


def _own_index(task: Mapping[str, Any], starts: Mapping[str, int], cluster: Mapping[str, Any]) -> int:
    kind, index = task.get("type"), task.get("index")
    if not isinstance(kind, str) or kind not in cluster or kind not in starts:
        raise _wrong(f"has a task of the type {kind!r}, but the cluster has {' and '.join(cluster)}")
    if isinstance(index, str) and index.isdecimal():
        index = int(index)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(cluster[kind]):
        raise _wrong(f"has the task {kind} {index!r}, but the cluster has {len(cluster[kind])} of them, from 0 on")
    return starts[kind] + index


def _listed(job: str, addresses: Any) -> list[str]:
    if not isinstance(addresses, list) or not all(isinstance(each, str) for each in addresses):
        raise _wrong(f"gives the job '{job}' as {addresses!r}")
    return addresses


def _wrong(what: str) -> UserError:
    return UserError(f"{NAME} {what}. Expected such as {EXAMPLE}.")
