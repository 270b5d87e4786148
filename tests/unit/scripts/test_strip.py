"""The strip command: a plain Keras model with the weights that the run's evaluation uses, or one clear line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from scripts.strip import Options, main, parse
from tests.support.command import run_small
from trainer.errors import UserError
from trainer.run.checkpoint import CheckpointStore

OWN = ("trainer", "hooks", "recipes", "scripts", "train")
# What somebody runs who has Keras and the file, and nothing of this project.
ELSEWHERE = f"""
import json, sys
import keras, numpy
print(json.dumps({{path: keras.saving.load_model(path)(numpy.load("inputs.npy")).numpy().tolist()
                   for path in sys.argv[1:]}}))
assert not set(sys.modules) & set({OWN!r})
"""
INPUTS = np.random.default_rng(0).uniform(size=(16, 8, 8, 1)).astype(np.float32)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Return a directory with one small run of each technique."""
    directory = tmp_path_factory.mktemp("strip")
    run_small("frozen_mask", "optimizer.use_ema=true", "optimizer.ema_momentum=0.9", run_dir=directory / "frozen_mask")
    run_small("incremental_quantization", run_dir=directory / "incremental_quantization")
    run_small("bnn", run_dir=directory / "bnn")
    run_small("[bnn,frozen_mask]", "hooks.bnn_rounding.input_quantizer=null", run_dir=directory / "both")
    run_small("frozen_mask", "+hooks=ema", "hooks.ema.decay=0.9", run_dir=directory / "averages")
    run_small("baseline", "+hooks=ema", "hooks.ema.evaluate=false", run_dir=directory / "kept")
    run_small("baseline", "hooks.checkpoint=null", "trainer.epochs=1", run_dir=directory / "no_checkpoints")
    return directory


NAMES = ("frozen_mask", "incremental_quantization", "bnn", "both", "averages")


@pytest.fixture(scope="module")
def stripped(runs: Path) -> Path:
    for name in NAMES:
        assert main([f"run={runs / name}"]) == 0
    return runs


def kernels_of(path: Path) -> dict[str, np.ndarray]:
    model = keras.saving.load_model(path)
    return {layer.name: layer.kernel.numpy() for layer in model.layers if hasattr(layer, "kernel")}


def latent_kernels(run: Path, tag: str = "best") -> dict[str, np.ndarray]:
    tensors = CheckpointStore(run / "checkpoints").load(tag).tensors
    return {key.split("/")[-2]: value for key, value in tensors.items() if key.endswith("/kernel") and "network" in key}


def test_the_files_load_where_nothing_but_keras_is_and_give_the_same_outputs(stripped: Path, tmp_path):
    np.save(tmp_path / "inputs.npy", INPUTS)
    files = [str(stripped / name / "export" / "model.keras") for name in NAMES]
    environment = {**os.environ, "PYTHONPATH": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", ELSEWHERE, *files],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for file, outputs in json.loads(done.stdout).items():
        np.testing.assert_allclose(outputs, keras.saving.load_model(file)(INPUTS).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_as_good_as_the_run_on_the_test_split(stripped: Path, name: str):
    from recipes.data.digits import digits
    from trainer.input.batches import EvaluationBatches

    summary = json.loads((stripped / name / "summary.json").read_text())
    model = keras.saving.load_model(stripped / name / "export" / "model.keras")
    split = EvaluationBatches(digits(seed=0).test, batch_size=1000, placement="device")
    batch = split.batch(keras.ops.convert_to_tensor(0, "int64"))
    correct = np.argmax(model(batch["inputs"]), -1) == np.asarray(batch["targets"])
    weights = np.asarray(batch["weights"])
    assert (correct * weights).sum() / weights.sum() == pytest.approx(summary["test"]["metric/accuracy"], abs=1e-6)


def test_pruned_weights_are_exact_zeros_and_the_others_those_of_the_best_checkpoint(stripped: Path):
    found, saved = kernels_of(stripped / "frozen_mask/export/model.keras"), latent_kernels(stripped / "frozen_mask")
    assert found.keys() == {"dense_1", "dense_2", "logits"}
    for name, kernel in found.items():
        assert (kernel == 0).sum() == round(0.9 * kernel.size)
        assert not np.signbit(kernel[kernel == 0]).any()
        np.testing.assert_array_equal(kernel, saved[name])


def test_powers_of_two_are_exact(stripped: Path):
    for kernel in kernels_of(stripped / "incremental_quantization/export/model.keras").values():
        exponents = np.log2(np.abs(kernel[kernel != 0]).astype(np.float64))
        assert (exponents == np.round(exponents)).all()
        assert np.ptp(exponents) <= 7


def test_binary_kernels_are_written_as_minus_one_and_one(stripped: Path):
    found, latent = kernels_of(stripped / "bnn/export/model.keras"), latent_kernels(stripped / "bnn")
    np.testing.assert_array_equal(found["dense_2"], np.where(latent["dense_2"] >= 0, 1.0, -1.0))
    np.testing.assert_array_equal(found["logits"], latent["logits"])
    both = kernels_of(stripped / "both/export/model.keras")
    assert set(np.unique(both["dense_2"])) == {-1.0, 1.0}  # a pruned latent weight is shipped as its sign
    assert (both["logits"] == 0).mean() == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_project_is_in_the_file(stripped: Path, name: str):
    model = keras.saving.load_model(stripped / name / "export" / "model.keras")
    assert all(type(layer).__module__.split(".")[0] == "keras" for layer in model._flatten_layers())
    assert sorted(path.name for path in (stripped / name / "export").iterdir()) == ["model.keras"]


def test_a_table_says_what_is_in_the_file(stripped: Path, tmp_path, capsys):
    assert main([f"run={stripped / 'frozen_mask'}", f"output={tmp_path / 'a b.keras'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "layer"
    assert [line.split()[0] for line in lines[1:6]] == ["dense_1", "dense_2", "logits", "others", "total"]
    summary = json.loads((stripped / "frozen_mask" / "summary.json").read_text())
    for line, row in zip(lines[1:4], summary["hooks"]["prune"]["layers"], strict=False):
        zeros = row["entries"] - row["kept"]
        shown = [f"{row['entries']:,}", f"{zeros:,}", f"{row['sparsity']:.4f}", f"{row['dense_bytes']:,}"]
        assert line.split()[1:] == [*shown, f"{row['sparse_bytes']:,}"]
    assert lines[5].split()[1] == f"{summary['params']['total']:,}"
    accuracy = f"accuracy {summary['test']['metric/accuracy']:.4f}"
    assert lines[6] == f"test split, weights of the best checkpoint, step {summary['best']['step']}: {accuracy}"
    assert lines[7].startswith(f"{tmp_path / 'a b.keras'} (")


def test_the_last_checkpoint_and_the_moving_average_are_taken_when_asked(stripped: Path, tmp_path):
    run = stripped / "frozen_mask"
    assert main([f"run={run}", "checkpoint=last", "average=true", f"output={tmp_path}/average.keras"]) == 0
    tensors = CheckpointStore(run / "checkpoints").load("last").tensors
    for name, kernel in kernels_of(tmp_path / "average.keras").items():
        (key,) = (key for key in tensors if name in key and key.endswith("kernel_average"))
        np.testing.assert_array_equal(kernel, tensors[key])
        assert (kernel == 0).sum() == round(0.9 * kernel.size)
        assert (kernel != latent_kernels(run, "last")[name]).any()


def kept_values(run: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], float]:
    """Return the weights and statistics of a run's best checkpoint, their averages, and the share that a value adds."""
    tensors = CheckpointStore(run / "checkpoints").load("best").tensors
    own, kept = "network/model/", "hook/ema/average/"
    averages = {key.removeprefix(kept): value for key, value in tensors.items() if key.startswith(kept)}
    updates = tensors["hook/ema/updates"]
    return {name: tensors[own + name] for name in averages}, averages, 9.0 / (10.0 + updates)


def check_averages(file: Path, run: Path) -> None:
    """Expect the averages of the best checkpoint in every weight and statistic, but exact zeros where it has them."""
    latent, averages, share = kept_values(run)
    weights = keras.saving.load_model(file).weights
    assert {weight.path for weight in weights} == averages.keys()
    for weight in weights:
        name, found = weight.path, weight.numpy()
        pruned = latent[name] == 0 if name.endswith("kernel") else np.zeros(found.shape, bool)
        expected = averages[name] + share * (latent[name] - averages[name])
        np.testing.assert_allclose(found[~pruned], expected[~pruned], rtol=1e-5, atol=1e-6, err_msg=name)
        assert (found[pruned] == 0).all()
        assert np.abs(found - latent[name]).max() > 1e-4, "averages differ here"


def test_a_run_with_averages_is_stripped_to_averages_of_weights_and_statistics_and_exact_zeros(stripped: Path):
    file = stripped / "averages/export/model.keras"
    check_averages(file, stripped / "averages")
    for name, kernel in kernels_of(file).items():
        assert (kernel == 0).sum() == round(0.9 * kernel.size), name
    summary = json.loads((stripped / "averages" / "summary.json").read_text())
    assert summary["hooks"]["prune"]["total"]["sparsity"] == pytest.approx(0.9, abs=0.01)


def test_averages_that_the_run_only_kept_are_taken_when_asked(stripped: Path, tmp_path):
    run, weights, averages = stripped / "kept", tmp_path / "weights.keras", tmp_path / "averages.keras"
    assert main([f"run={run}", f"output={weights}"]) == 0
    for weight in keras.saving.load_model(weights).weights:
        np.testing.assert_array_equal(weight.numpy(), kept_values(run)[0][weight.path])
    assert main([f"run={run}", "average=true", f"output={averages}"]) == 0
    check_averages(averages, run)


def test_an_output_is_overwritten_only_when_asked(stripped: Path, tmp_path, capsys):
    output = tmp_path / "model.keras"
    output.write_text("precious")
    assert main([f"run={stripped / 'bnn'}", f"output={output}"]) == 2
    assert output.read_text() == "precious"
    assert capsys.readouterr().err.endswith("exists already. Expected another output, or overwrite=true.\n")
    assert main([f"run={stripped / 'bnn'}", f"output={output}", "overwrite=true"]) == 0
    assert kernels_of(output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "No run was given."),
        (["rn=a"], "Unknown option 'rn'. Did you mean 'run'?"),
        (["run=a", "checkpoint=bst"], "Unknown checkpoint 'bst'. Did you mean 'best'?"),
        (["run=a", "overwrite=1"], "Invalid overwrite: 1. Expected true or false."),
        (["run=a", "average=yes please"], "Invalid average: 'yes please'. Expected true or false."),
    ],
)
def test_a_wrong_command_line_is_one_clear_line(arguments: list[str], message: str):
    with pytest.raises(UserError) as caught:
        parse(arguments)
    assert message in str(caught.value)


CASES = [
    (["run={tmp}/absent"], "has no config.yaml that can be read. Expected a run directory."),
    (["run={runs}/no_checkpoints"], "has no checkpoints. Expected a run with the hook 'checkpoint'."),
    (["run={runs}/bnn", "network=modle", "output={tmp}/deep/a.keras"], "Unknown network 'modle'. Did you mean 'model'"),
    (
        ["run={runs}/bnn", "average=true", "output={tmp}/a.keras"],
        "neither the hook ema nor the run's optimizer kept",
    ),
    (["run={runs}/bnn", "output={tmp}/model.h5"], "Expected a file that ends with .keras, such as model.keras."),
    (["run={runs}/bnn", "output={tmp}/folder.keras"], "folder.keras exists already. Expected another output."),
    (["run={runs}/bnn", "output={tmp}/file/a.keras"], "is not a directory that can be written to."),
    (["run={runs}/bnn", "output=/proc/sys/hookline/a.keras"], "/proc/sys/hookline/a.keras cannot be written"),
]


@pytest.mark.parametrize(("arguments", "message"), CASES, ids=[message[:40] for _, message in CASES])
def test_a_mistake_is_one_line_exit_code_2_and_writes_nothing(arguments, message, runs: Path, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.keras").mkdir()
    before = sorted(tmp_path.rglob("*")), sorted(runs.rglob("*"))
    assert main([argument.format(runs=runs, tmp=tmp_path) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert (sorted(tmp_path.rglob("*")), sorted(runs.rglob("*"))) == before


def test_a_failure_while_writing_leaves_nothing_behind(runs: Path, tmp_path, monkeypatch, capsys):
    def full_disk(model: keras.Model, path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keras.Model, "save", full_disk)
    assert main([f"run={runs / 'both'}", f"output={tmp_path}/new/a.keras"]) == 2
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_option(capsys):
    assert main(["--help"]) == 0
    output = capsys.readouterr().out
    assert all(f"\n  {name} " in output for name in vars(Options()))
