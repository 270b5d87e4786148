"""How long a run takes to its first step, part by part."""

from __future__ import annotations

import os
import time
from pathlib import Path

COMMAND_FIELD, START_FIELD = ")", 19
"""In /proc/self/stat: the end of the command's name, and how many fields after it the start time is (proc(5))."""


def process_began() -> float:
    """Return when this process began, by the clock of `time.monotonic`; now, if the system does not say."""
    now = time.monotonic()
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(COMMAND_FIELD)[2].split()
        since_boot = int(fields[START_FIELD]) / os.sysconf("SC_CLK_TCK")
        return now - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, ValueError, IndexError, AttributeError):
        return now


class StartTime:
    """Measure the time to the first step, part by part.

    Attributes:
        parts: seconds by name, in order.
    """

    def __init__(self, began: float | None = None) -> None:
        """Begin."""
        self.parts: dict[str, float] = {}
        self._latest = time.monotonic() if began is None else began

    def end(self, part: str) -> None:
        """End a part; the next one begins now."""
        now = time.monotonic()
        self.parts[part], self._latest = now - self._latest, now

    def summary(self) -> dict[str, float]:
        """Return "seconds", all parts together, and each part by its name."""
        rounded = {name: round(seconds, 3) for name, seconds in self.parts.items()}
        return {"seconds": round(sum(self.parts.values()), 3), **rounded}
