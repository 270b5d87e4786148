"""Runs on a user's own data, read batch by batch: XLA is not in the way, and errors are one line."""

from __future__ import annotations

import numpy as np

from hookline.train import main
from tests.support.command import run_small

SMALL = "model.units=[16]"
MODULE = """
import numpy as np

class Photos:
    labels = np.arange(200) % 4

    def __init__(self, broken=-1):
        self.broken = broken

    def __len__(self):
        return 200

    def __getitem__(self, row):
        if row == self.broken:
            raise KeyError("photo")
        noise = np.random.default_rng(row).integers(0, 60, (8, 8))
        return (noise + row % 4 * 50).astype(np.uint8), row % 4
"""


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


def test_of_a_class_of_the_users_own_the_row_that_fails_is_named(tmp_path, monkeypatch, capfd) -> None:
    (tmp_path / "my_photos.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    given = ["recipe=baseline", "data=custom", "data.cache=none", "plugins=[my_photos]", "hooks.progress=null", SMALL]
    own = ["+data.source._target_=my_photos.Photos", "+data.source.broken=17", "trainer.compile=off"]
    assert main([*given, *own, "trainer.batch_size=128", "run_dir=broken"]) == 2
    assert "row 17: KeyError: 'photo' (my_photos.py:15)" in capfd.readouterr().err.strip().splitlines()[-1]
    assert main([*given, "run_dir=never"]) == 2
    assert main([*given, *own, "run_dir=never", "trainer.placement=device"]) == 2
    null, placed = capfd.readouterr().err.strip().splitlines()
    assert "data.source is null" in null
    assert "placement 'device'" in placed
    assert not (tmp_path / "never").exists()
