from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

from hookline.trainer.network import Network
from hookline.trainer.run.run import Run
from tests.support.runs import seen_run


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    """Return a function that creates a run of a small network; fields can be overridden."""

    def make(**fields: Any) -> Run:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="dense")], name="net")
        directory = tmp_path / "run"
        directory.mkdir(exist_ok=True)
        values = {
            "directory": directory,
            "recipe": "bnn",
            "config": {"recipe": "bnn", "optimizer": {"learning_rate": 0.001}},
            "networks": {"model": Network("model", model, keras.optimizers.Adam())},
            "batch_size": 64,
            "plan": "| stage | hooks |\n|---|---|\n| project | bnn |\n",
        }
        return seen_run(**(values | fields))

    return make


@pytest.fixture
def summary() -> dict[str, Any]:
    """Return a summary as a completed run writes it."""
    best = {"loss/total": 0.1334, "metric/accuracy": 0.9703}
    ended = {"recipe": "bnn", "status": "completed", "stop_reason": None, "steps": 1200, "epochs": 30.0}
    return {
        **ended,
        "seconds": 83.4,
        "images_per_second": 12345.6,
        "hooks": {"progress": {"host_seconds": 0.1}},
        "final": {"loss/total": 0.0512, "loss/center": 0.01, "metric/accuracy": 0.9981, "opt/learning_rate": 0.001},
        "best": {"monitor": "metric/accuracy", "value": 0.9703, "step": 1080, "values": best},
        "test": {"weights": "best", "loss/total": 0.1111, "metric/accuracy": 0.9722},
        "params": {"total": 93556, "trainable": 93088},
        "bytes": {"float32": 374224, "deployed": 13508},
    }
