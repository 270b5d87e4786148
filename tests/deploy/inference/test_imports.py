from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {"tensorflow", "keras", "hydra", "omegaconf", "rich", "scipy", "matplotlib"}
CODE = """
import importlib, pkgutil, sys
import hookline.deploy.inference
for each in pkgutil.iter_modules(hookline.deploy.inference.__path__):
    if each.name != "compiled":
        importlib.import_module(f"hookline.deploy.inference.{each.name}")
print(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
print(" ".join(sorted(name for name in sys.modules if name.startswith("hookline."))))
from hookline.deploy import formats
from hookline.recipes.data import images
from hookline.scripts import predict
from hookline.scripts.prediction import examples, model, results
print(" ".join(sys.modules))
"""


def test_inference_imports_numpy_alone_and_predicting_nothing_heavy():
    run = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    modules, own, predicting = (set(line.split()) for line in run.stdout.splitlines())
    assert "numpy" in modules
    assert not modules & (HEAVY | {"numba", "h5py", "yaml"})
    assert {name for name in own if not name.startswith("hookline.deploy")} == {
        "hookline.trainer",
        "hookline.trainer.errors",
        "hookline.trainer.files",
        "hookline.trainer.input",
        "hookline.trainer.input.preparation",
    }
    assert not predicting & HEAVY
