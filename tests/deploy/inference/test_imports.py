import numpy as np

from hookline.deploy.inference.card import CARD, Card
from hookline.deploy.inference.container import PACKED, write_container
from hookline.deploy.inference.graph import Graph, Op, graph_to_json
from tests.support.workers import run_python

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
    modules, own = (set(line.split()) for line in run_python("-c", CODE)[0].splitlines())
    assert "numpy" in modules
    assert not modules & HEAVY
    assert {name for name in own if not name.startswith("hookline.deploy")} == {
        "hookline.trainer",
        "hookline.trainer.errors",
        "hookline.trainer.files",
        "hookline.trainer.input",
        "hookline.trainer.input.preparation",
    }


def test_predicting_from_a_packed_file_imports_nothing_heavy(tmp_path):
    path, inputs = tmp_path / "model.packed.safetensors", tmp_path / "x.npy"
    card = Card("model", "best", 1, (3,), ("dark", "bright", "grey"), activation="softmax")
    graph = Graph("n", "x", (3,), "y", [Op("flatten", "f", ("x",), "y")], about={CARD: card.as_json()})
    write_container(path, PACKED, graph_to_json(graph), {})
    np.save(inputs, np.array([[0.1, 0.7, 0.2]], np.float32))
    code = (
        f"import sys; from hookline.scripts.predict import main; main(['model={path}', 'images={inputs}', 'output=-']);"
        f"print({HEAVY - {'numba', 'yaml'}} & sys.modules.keys() or '')"
    )
    shown, errors = run_python("-c", code)
    assert not errors
    assert shown.splitlines()[1].startswith("0,bright,0.7")
    assert shown.splitlines()[2] == ""
