"""Runs on a user's own data, read batch by batch: XLA is not in the way, and errors are one line."""

from __future__ import annotations

import numpy as np

from tests.support.command import run_small

SMALL = "model.units=[16]"


def test_rows_that_are_read_from_a_file_train_and_evaluate_beside_xla(tmp_path) -> None:
    inputs = np.random.default_rng(0).integers(0, 60, (200, 8, 8))
    inputs[np.arange(200), :, np.arange(200) % 4 * 2] += 190  # a bright column tells the class
    (tmp_path / "own").mkdir()
    np.save(tmp_path / "own" / "inputs.npy", inputs.astype(np.uint8))
    np.save(tmp_path / "own" / "targets.npy", np.arange(200) % 4)
    given = ("data=arrays", f"data.path={tmp_path / 'own'}", "data.cache=none", "trainer.compile=on", SMALL)
    summary = run_small("baseline", *given, "trainer.batch_size=16", "trainer.epochs=6", run_dir=tmp_path / "run")
    assert summary["status"] == "completed"
    assert summary["test"]["metric/accuracy"] > 0.8
    assert (tmp_path / "run" / "pictures" / "input_training_examples.png").exists()
