"""TensorBoard as a server on this machine alone, and what its tabs must show of a run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TABS = {
    "timeseries": ("train", "Settings"),
    "scalars": ("loss", "metric"),
    "custom_scalars": ("Losses", "Gradient norms", "Time"),
    "images": ("filters",),
    "graphs": ("forward",),
    "distributions": ("weights",),
    "histograms": ("weights",),
    "text": ("run/config", "run/plan", "run/environment", "run/summary"),
    "projector": ("Points",),
    "hparams": ("recipe", "best_validation"),
}
"""The tabs, each with words that stand in it once it shows something."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Start TensorBoard over a folder on the loopback device, and give its address.

    Args:
        folder: of runs.
    """
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1", "--port", "0"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"at (http://\S+?)/? ", line):
                yield found[1]
                break
        else:
            raise RuntimeError(f"TensorBoard did not start: {' '.join(lines)}")
    finally:
        process.terminate()
        process.wait(30)
        process.stderr.close()
