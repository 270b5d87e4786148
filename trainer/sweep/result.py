"""How a job of a sweep ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Result:
    """Hold how one job ended.

    Attributes:
        overrides: the job's, one value each.
        summary: what its summary.json holds; empty when the job did not end well.
    """

    overrides: Sequence[str]
    summary: Mapping[str, Any] = field(default_factory=dict)
