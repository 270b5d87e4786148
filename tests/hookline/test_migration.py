"""The ports of the migration page run as they are printed, and ship what it says."""

import runpy
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.support.documentation import read_page
from tests.support.images import write_mnist

PAGE = Path(__file__).parents[2] / "hookline" / "MIGRATION.md"
PORTS = [each for each in read_page(PAGE.name, PAGE.read_text()) if each.language]


def is_pruned(kernel):
    return int((kernel == 0).sum()) == round(0.8 * kernel.size)


def is_binary(kernel):
    return bool((np.abs(kernel) == 1).all())


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::UserWarning")  # advice on so short a training
@pytest.mark.parametrize(
    ("port", "model", "is_right", "others"),
    [
        (PORTS[0], "pruned.keras", is_pruned, ("pruned.tflite", "int8.tflite", "pruned.sparse.safetensors")),
        (PORTS[1], "binary.keras", is_binary, ("binary.packed.safetensors",)),
    ],
    ids=("tfmot", "larq"),
)
def test_a_port_runs(port, model, is_right, others, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_mnist(tmp_path / "mnist.npz", train=1200)
    (tmp_path / "port.py").write_text(port.text)
    keras.utils.set_random_seed(0)
    found = runpy.run_path(str(tmp_path / "port.py"))
    assert found["trainer"].evaluate(found["x_test"], found["y_test"])["accuracy"] > 0.5
    shipped = keras.models.load_model(tmp_path / model)
    assert all(is_right(each.numpy()) for each in shipped.trainable_variables if len(each.shape) > 1)
    assert all((tmp_path / each).stat().st_size > 0 for each in others)
