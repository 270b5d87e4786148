"""The export command: files with the weights that the run's evaluation uses, or a one-line error."""

import copy
import os
import shutil
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from hookline.deploy.formats import FORMATS
from hookline.hooks import catalogue
from hookline.scripts.export import EMA, evaluate_averages, is_ema, main
from hookline.trainer.errors import UserError
from hookline.trainer.run.checkpoint import CheckpointStore
from tests.support.command import run_small
from tests.support.refusals import assert_one_line, assert_refused
from tests.support.workers import run_python

# Code of a user who has the file and Keras, but not this project.
ELSEWHERE = """
import sys
class Hidden:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "hookline":
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Hidden)
import keras, numpy
inputs = numpy.load("inputs.npy")
for number, path in enumerate(sys.argv[1:]):
    numpy.save(f"{number}.npy", keras.saving.load_model(path)(inputs))
"""
INPUTS = np.random.default_rng(0).uniform(size=(16, 8, 8, 1)).astype(np.float32)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small_bnn: Path) -> Path:
    """Return a directory with two runs and their exports."""
    directory = tmp_path_factory.mktemp("export")
    shutil.copytree(small_bnn, directory / "bnn")
    averages = ("optimizer.use_ema=true", "optimizer.ema_momentum=0.9", "hooks.advisor=null")
    run_small("frozen_mask", *averages, run_dir=directory / "frozen_mask")
    for name in ("bnn", "frozen_mask"):
        assert main([f"run={directory / name}"]) == 0
    return directory


def kernels_of(path: Path) -> dict[str, np.ndarray]:
    model = keras.saving.load_model(path)
    return {layer.name: layer.kernel.numpy() for layer in model.layers if hasattr(layer, "kernel")}


def latent_kernels(run: Path, tag: str = "best") -> dict[str, np.ndarray]:
    tensors = CheckpointStore(run / "checkpoints").load(tag).tensors
    return {key.split("/")[-2]: value for key, value in tensors.items() if key.endswith("/kernel") and "network" in key}


def test_keras_file_loads_without_hookline_and_gives_the_same_outputs(runs: Path, tmp_path):
    np.save(tmp_path / "inputs.npy", INPUTS)
    paths = [runs / name / "export" / "model.keras" for name in ("frozen_mask", "bnn")]
    environment = {**os.environ, "PYTHONPATH": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    run_python("-I", "-c", ELSEWHERE, *paths, cwd=tmp_path, env=environment)
    for number, path in enumerate(paths):
        expected = keras.saving.load_model(path)(INPUTS)
        np.testing.assert_allclose(np.load(tmp_path / f"{number}.npy"), expected, rtol=1e-4, atol=1e-5)


def test_invalid_file_is_refused_by_every_format(tmp_path):
    for form in FORMATS.values():
        path = tmp_path / f"a{form.suffix}"
        path.mkdir() if form.is_directory else path.write_bytes(b"nothing of the kind")
        assert_refused("cannot be loaded as|is not a valid (packed|sparse) file", form.load, path)


def test_export_contains_the_best_weights_with_exact_zeros_and_signs(runs: Path):
    found, saved = kernels_of(runs / "frozen_mask/export/model.keras"), latent_kernels(runs / "frozen_mask")
    assert found.keys() == {"dense_1", "dense_2", "logits"}
    for name, kernel in found.items():
        assert (kernel == 0).sum() == round(0.9 * kernel.size)
        assert not np.signbit(kernel[kernel == 0]).any()
        np.testing.assert_array_equal(kernel, saved[name])
    found, latent = kernels_of(runs / "bnn/export/model.keras"), latent_kernels(runs / "bnn")
    np.testing.assert_array_equal(found["dense_2"], np.where(latent["dense_2"] >= 0, 1.0, -1.0))
    np.testing.assert_array_equal(found["logits"], latent["logits"])


def test_last_checkpoint_and_moving_average_are_exported_on_request(runs: Path, tmp_path, monkeypatch, capsys):
    run = runs / "frozen_mask"
    (tmp_path / "average.keras").write_text("not kept")
    monkeypatch.setattr("hookline.scripts.evaluation.has_changed", lambda run, data: True)
    given = ["checkpoint=last", "average=true", f"output={tmp_path}/average.keras", "overwrite=true"]
    assert main([f"run={run}", *given]) == 0
    assert "Warning: data 'digits' has changed since the training" in capsys.readouterr().err
    tensors = CheckpointStore(run / "checkpoints").load("last").tensors
    for name, kernel in kernels_of(tmp_path / "average.keras").items():
        (key,) = (key for key in tensors if name in key and key.endswith("kernel_average"))
        np.testing.assert_array_equal(kernel, tensors[key])
        assert (kernel == 0).sum() == round(0.9 * kernel.size)
        assert (kernel != latent_kernels(run, "last")[name]).any()


def test_mistake_is_reported_in_one_line_and_nothing_is_written(runs: Path, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "kept.keras").write_text("precious")
    run, bare = f"run={runs / 'bnn'}", f"run={tmp_path / 'bare'}"
    shutil.copytree(runs / "bnn", tmp_path / "bare", ignore=shutil.ignore_patterns("checkpoints", "export"))
    before = sorted(tmp_path.rglob("*")), sorted(runs.rglob("*"))

    def refused(word: str, *arguments: str) -> None:
        assert_one_line(main, arguments, word, capsys)
        assert (sorted(tmp_path.rglob("*")), sorted(runs.rglob("*"))) == before

    refused("'onnx'", "run=a", "format=onx")
    refused("format=packed", "run=a", "format=sparse", "float16=true")
    refused("tolerance: -1", "run=a", "tolerance=-1")
    refused("has no checkpoints", bare)
    refused("'modle'. Expected network=model.", run, "network=modle", f"output={tmp_path}/a.keras")
    refused("kept moving averages", run, "average=true", f"output={tmp_path}/a.keras")
    refused("exists already", run, f"output={tmp_path}/kept.keras")
    refused("is not a writable directory", run, f"output={tmp_path}/file/a.keras")
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    refused("'.[onnx]'", run, "format=onnx", f"output={tmp_path}/a.onnx")

    def worse(*given: object, **options: object) -> None:
        raise UserError("It is not as good as the run.")

    monkeypatch.setattr("hookline.deploy.compare.compare", worse)
    refused("not as good", run, f"output={tmp_path}/worse.keras")
    assert (tmp_path / "kept.keras").read_text() == "precious"


NODE = {"_target_": EMA, "decay": 0.9, "evaluate": True, "network": "model"}
HOOKS = {"slow": NODE, "others": {**NODE, "network": "gen*"}, "prune": {"_target_": "p"}, "gone": None}


def test_averages_match_networks_by_name_and_config_is_not_modified() -> None:
    assert catalogue()["ema"].target == EMA
    config = {"seed": 0, "hooks": HOOKS}
    before = copy.deepcopy(config)
    assert [
        any(is_ema(each, name) for each in config["hooks"].values()) for name in ("model", "generator", "student")
    ] == [True, True, False]
    for network, hook in (("model", "slow"), ("generator", "others")):
        changed = evaluate_averages(config, network, evaluate=False)
        assert changed == {"seed": 0, "hooks": {**HOOKS, hook: {**HOOKS[hook], "evaluate": False}}}
    assert config == before
