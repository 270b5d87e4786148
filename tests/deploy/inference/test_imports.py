from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {"tensorflow", "keras", "hydra", "omegaconf", "rich", "numba", "scipy", "matplotlib", "h5py", "yaml"}
CODE = """
import importlib, pkgutil, sys
import hookline.deploy.inference
for each in pkgutil.iter_modules(hookline.deploy.inference.__path__):
    if each.name != "compiled":
        importlib.import_module(f"hookline.deploy.inference.{each.name}")
print(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
print(" ".join(sorted(name for name in sys.modules if name.startswith("hookline."))))
"""


def test_inference_imports_numpy_and_nothing_heavy():
    run = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    modules, own = (set(line.split()) for line in run.stdout.splitlines())
    assert "numpy" in modules
    assert not modules & HEAVY
    assert {name for name in own if not name.startswith("hookline.deploy")} == {
        "hookline.trainer",
        "hookline.trainer.errors",
        "hookline.trainer.files",
        "hookline.trainer.input",
        "hookline.trainer.input.preparation",
    }


def test_predicting_imports_nothing_heavy():
    heavy = HEAVY - {"numba", "h5py", "yaml"}
    names = "predict, prediction.examples, prediction.model, prediction.results"
    modules = [f"hookline.scripts.{name}" for name in names.split(", ")]
    modules += ["hookline.recipes.data.images", "hookline.deploy.formats"]
    code = f"import sys, {', '.join(modules)}; print({heavy} & sys.modules.keys() or '')"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "\n"
