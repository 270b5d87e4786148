"""The export command: files with the weights that the run's evaluation uses, or one clear line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from scripts.export import Options, main, parse
from tests.support.command import run_small
from trainer.errors import UserError
from trainer.export.formats import FORMATS, format_of
from trainer.export.options import ExportOptions
from trainer.run.checkpoint import CheckpointStore
from trainer.run.finished import FinishedRun, read_config, restore

OWN = ("trainer", "hooks", "recipes", "scripts", "train")
# What somebody runs who has the file and its reader, and nothing of this project.
ELSEWHERE = f"""
import json, sys
class Hidden:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {OWN!r}:
            raise ImportError(f"{{name}} is not installed here")
sys.meta_path.insert(0, Hidden)
import numpy
inputs = numpy.load("inputs.npy")
def keras_file(path):
    import keras
    return keras.saving.load_model(path)(inputs).numpy()
def saved_model(path):
    import tensorflow
    loaded = tensorflow.saved_model.load(path)
    return loaded.serve(inputs).numpy()
def litert(path):
    from ai_edge_litert.interpreter import Interpreter
    interpreter = Interpreter(path)
    given, made = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
    interpreter.resize_tensor_input(given, inputs.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given, inputs)
    interpreter.invoke()
    return interpreter.get_tensor(made)
def onnx(path):
    import onnxruntime
    session = onnxruntime.InferenceSession(path)
    return session.run(None, {{session.get_inputs()[0].name: inputs}})[0]
readers = {{".keras": keras_file, "_saved_model": saved_model, ".tflite": litert, ".onnx": onnx}}
print(json.dumps({{path: next(read for end, read in readers.items() if path.endswith(end))(path).tolist()
                   for path in sys.argv[1:]}}))
"""
INPUTS = np.random.default_rng(0).uniform(size=(16, 8, 8, 1)).astype(np.float32)


WITH_AVERAGE = ("optimizer.use_ema=true", "optimizer.ema_momentum=0.9")
SMALL_ATTENTION = (
    "data=cluttered", "data.train_examples=200", "data.test_examples=100", "model=plain_cnn", "model.filters=[4,8]",
    "model.activation=hard_tanh", "hooks.bernoulli_attention.eval_mode=threshold", "trainer.epochs=1",
    "trainer.monitor=loss/cross_entropy", "trainer.monitor_mode=min",
)  # fmt: skip
RUNS = {
    "frozen_mask": ("frozen_mask", *WITH_AVERAGE),
    "incremental_quantization": ("incremental_quantization",),
    "bnn": ("bnn",),
    "both": ("[bnn,frozen_mask]", "hooks.bnn_rounding.input_quantizer=null"),
    "averages": ("frozen_mask", "+hooks=ema", "hooks.ema.decay=0.9"),
    "kept": ("baseline", "+hooks=ema", "hooks.ema.evaluate=false"),
    "attention": ("[attention,bnn]", *SMALL_ATTENTION),
    "no_checkpoints": ("baseline", "hooks.checkpoint=null", "trainer.epochs=1"),
}
NAMES = ("frozen_mask", "bnn")
ALL_NAMES = [
    *NAMES,
    *(pytest.param(name, marks=pytest.mark.long) for name in ("incremental_quantization", "both", "averages")),
]
ELSEWHERE_TOO = [form for form in FORMATS.values() if not form.suffix.endswith(".safetensors")]


class Runs:
    """Make a small run of a technique when a test asks for its path: what no test asks for costs no time."""

    def __init__(self, directory: Path, *, exported: bool) -> None:
        self.directory, self._exported = directory, exported

    def __truediv__(self, path: str) -> Path:
        run = self.directory / path.partition("/")[0]
        if not run.exists():
            run_small(*RUNS[run.name], run_dir=run)
        if self._exported and not (run / "export").exists():
            assert main([f"run={run}"]) == 0
        return self.directory / path


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runs:
    return Runs(tmp_path_factory.mktemp("export"), exported=False)


@pytest.fixture(scope="module")
def exported(runs: Runs) -> Runs:
    return Runs(runs.directory, exported=True)


def kernels_of(path: Path) -> dict[str, np.ndarray]:
    model = keras.saving.load_model(path)
    return {layer.name: layer.kernel.numpy() for layer in model.layers if hasattr(layer, "kernel")}


def latent_kernels(run: Path, tag: str = "best") -> dict[str, np.ndarray]:
    tensors = CheckpointStore(run / "checkpoints").load(tag).tensors
    return {key.split("/")[-2]: value for key, value in tensors.items() if key.endswith("/kernel") and "network" in key}


def variables_of(run: FinishedRun) -> dict[str, bytes]:
    trainer = run.parts.trainer
    states = {f"{hook.name}/{key}": each for hook in trainer.hooks for key, each in hook.state().items()}
    return {name: each.numpy().tobytes() for name, each in {**trainer.networks["model"].variables, **states}.items()}


@pytest.fixture(scope="module")
def files(runs: Runs) -> Path:
    """Return a directory with a run in every format that is read elsewhere."""
    run = restore(str(runs / "frozen_mask"), read_config(str(runs / "frozen_mask")))
    place = runs.directory / "files"
    place.mkdir()
    before = variables_of(run)
    for form in FORMATS.values():
        form.write(run, "model", place / f"net{form.suffix}", ExportOptions())
    FORMATS["litert"].write(run, "model", place / "int8.tflite", ExportOptions(int8=True))
    assert variables_of(run) == before, "the run itself has changed"
    return place


def test_files_are_read_where_nothing_of_the_project_is_and_give_the_same_outputs(
    exported: Runs, files: Path, tmp_path
):
    np.save(tmp_path / "inputs.npy", INPUTS)
    paths = [files / f"net{form.suffix}" for form in ELSEWHERE_TOO]
    paths += [files / "int8.tflite", *(exported / name / "export" / "model.keras" for name in NAMES)]
    environment = {**os.environ, "PYTHONPATH": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", ELSEWHERE, *map(str, paths)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {Path(path): np.array(outputs) for path, outputs in json.loads(done.stdout).items()}
    assert len(found) == len(paths)
    for path, outputs in found.items():
        same = path if path.name == "model.keras" else exported / "frozen_mask" / "export" / "model.keras"
        expected = keras.saving.load_model(same)(INPUTS).numpy()
        if path.name == "int8.tflite":
            assert 1e-4 < np.abs(outputs - expected).max() < 0.3 * np.abs(expected).max()
        else:
            np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5, err_msg=str(path))


def test_files_are_read_here_by_the_loaders_of_their_formats(exported: Runs, files: Path):
    expected = keras.saving.load_model(exported / "frozen_mask" / "export" / "model.keras")(INPUTS).numpy()
    for path in files.iterdir():
        predict = format_of(path).load(path)
        tolerance = 0.3 if path.name == "int8.tflite" else 1e-5
        for size in (16, 3):
            outputs = predict(INPUTS[:size])
            assert (outputs.dtype, outputs.shape) == (np.float32, (size, 10))
            np.testing.assert_allclose(outputs, expected[:size], atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("name", [name for name in FORMATS if not FORMATS[name].is_directory])
def test_a_file_that_is_none_is_one_line(name: str, tmp_path):
    path = tmp_path / f"a{FORMATS[name].suffix}"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match="cannot be loaded by|is no valid (packed|sparse) file"):
        FORMATS[name].load(path)


def test_a_directory_that_is_no_saved_model_is_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot be loaded by TensorFlow"):
        FORMATS["saved_model"].load(tmp_path)


def test_8_bits_are_smaller(files: Path):
    assert (files / "int8.tflite").stat().st_size < (files / "net.tflite").stat().st_size


@pytest.mark.long
def test_attention_with_binary_weights_is_exported_in_its_evaluation_mode(runs: Runs, tmp_path, capsys):
    path = tmp_path / "a.onnx"
    assert main([f"run={runs / 'attention'}", "format=onnx", f"output={path}"]) == 0
    summary = json.loads((runs / "attention" / "summary.json").read_text())
    out = capsys.readouterr().out
    assert f"accuracy {summary['test']['metric/accuracy']:.4f}" in out
    assert "the largest one is another for 0 of 100 test examples" in out
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.onnx", "a.onnx.json"]


@pytest.mark.parametrize("name", ALL_NAMES)
def test_the_file_is_as_good_as_the_run_on_the_test_split(exported: Runs, name: str):
    from recipes.data.digits import digits
    from trainer.input.batches import EvaluationBatches

    summary = json.loads((exported / name / "summary.json").read_text())
    model = keras.saving.load_model(exported / name / "export" / "model.keras")
    split = EvaluationBatches(digits(seed=0).test, batch_size=1000, placement="device")
    batch = split.batch(keras.ops.convert_to_tensor(0, "int64"))
    correct = np.argmax(model(batch["inputs"]), -1) == np.asarray(batch["targets"])
    weights = np.asarray(batch["weights"])
    assert (correct * weights).sum() / weights.sum() == pytest.approx(summary["test"]["metric/accuracy"], abs=1e-6)


def test_pruned_weights_are_exact_zeros_and_the_others_those_of_the_best_checkpoint(exported: Runs):
    found, saved = kernels_of(exported / "frozen_mask/export/model.keras"), latent_kernels(exported / "frozen_mask")
    assert found.keys() == {"dense_1", "dense_2", "logits"}
    for name, kernel in found.items():
        assert (kernel == 0).sum() == round(0.9 * kernel.size)
        assert not np.signbit(kernel[kernel == 0]).any()
        np.testing.assert_array_equal(kernel, saved[name])


def test_powers_of_two_are_exact(exported: Runs):
    for kernel in kernels_of(exported / "incremental_quantization/export/model.keras").values():
        exponents = np.log2(np.abs(kernel[kernel != 0]).astype(np.float64))
        assert (exponents == np.round(exponents)).all()
        assert np.ptp(exponents) <= 7


def test_binary_kernels_are_written_as_minus_one_and_one(exported: Runs):
    found, latent = kernels_of(exported / "bnn/export/model.keras"), latent_kernels(exported / "bnn")
    np.testing.assert_array_equal(found["dense_2"], np.where(latent["dense_2"] >= 0, 1.0, -1.0))
    np.testing.assert_array_equal(found["logits"], latent["logits"])
    both = kernels_of(exported / "both/export/model.keras")
    assert set(np.unique(both["dense_2"])) == {-1.0, 1.0}  # a pruned latent weight is shipped as its sign
    assert (both["logits"] == 0).mean() == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_nothing_of_the_project_is_in_the_file(exported: Runs, name: str):
    model = keras.saving.load_model(exported / name / "export" / "model.keras")
    assert all(type(layer).__module__.split(".")[0] == "keras" for layer in model._flatten_layers())
    assert sorted(path.name for path in (exported / name / "export").iterdir()) == ["model.keras", "model.keras.json"]


def test_a_table_says_what_is_in_the_file(exported: Runs, tmp_path, capsys):
    assert main([f"run={exported / 'frozen_mask'}", f"output={tmp_path / 'a b.keras'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "layer"
    assert [line.split()[0] for line in lines[1:6]] == ["dense_1", "dense_2", "logits", "others", "total"]
    summary = json.loads((exported / "frozen_mask" / "summary.json").read_text())
    for line, row in zip(lines[1:4], summary["hooks"]["prune"]["layers"], strict=False):
        zeros = row["entries"] - row["kept"]
        shown = [f"{zeros:,}", f"{row['sparsity']:.4f}", f"{row['dense_bytes']:,}"]
        assert [line.split()[1], *line.split()[3:]] == [f"{row['entries']:,}", *shown]
    assert lines[5].split()[1] == f"{summary['params']['total']:,}"
    accuracy = f"accuracy {summary['test']['metric/accuracy']:.4f}"
    assert lines[6] == f"test split, weights of the best checkpoint, step {summary['best']['step']}: {accuracy}"
    assert lines[7].startswith(f"{tmp_path / 'a b.keras'} (")


def test_the_last_checkpoint_and_the_moving_average_are_taken_when_asked(exported: Runs, tmp_path):
    run = exported / "frozen_mask"
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


def test_a_run_with_averages_is_exported_to_averages_of_weights_and_statistics_and_exact_zeros(exported: Runs):
    file = exported / "averages/export/model.keras"
    check_averages(file, exported / "averages")
    for name, kernel in kernels_of(file).items():
        assert (kernel == 0).sum() == round(0.9 * kernel.size), name
    summary = json.loads((exported / "averages" / "summary.json").read_text())
    assert summary["hooks"]["prune"]["total"]["sparsity"] == pytest.approx(0.9, abs=0.01)


@pytest.mark.long
def test_averages_that_the_run_only_kept_are_taken_when_asked(exported: Runs, tmp_path):
    run, weights, averages = exported / "kept", tmp_path / "weights.keras", tmp_path / "averages.keras"
    assert main([f"run={run}", f"output={weights}"]) == 0
    for weight in keras.saving.load_model(weights).weights:
        np.testing.assert_array_equal(weight.numpy(), kept_values(run)[0][weight.path])
    assert main([f"run={run}", "average=true", f"output={averages}"]) == 0
    check_averages(averages, run)


def test_an_output_is_overwritten_only_when_asked(exported: Runs, tmp_path, capsys):
    output = tmp_path / "model.keras"
    output.write_text("precious")
    assert main([f"run={exported / 'bnn'}", f"output={output}"]) == 2
    assert output.read_text() == "precious"
    assert capsys.readouterr().err.endswith("exists already. Expected another output, or overwrite=true.\n")
    assert main([f"run={exported / 'bnn'}", f"output={output}", "overwrite=true"]) == 0
    assert kernels_of(output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "No run was given."),
        (["rn=a"], "Unknown option 'rn'. Did you mean 'run'?"),
        (["run=a", "checkpoint=bst"], "Unknown checkpoint 'bst'. Did you mean 'best'?"),
        (["run=a", "format=onx"], "Unknown format 'onx'. Did you mean 'onnx'?"),
        (["run=a", "format=sparse", "float16=true"], "float16 received with format=sparse. Expected format=packed."),
        (["run=a", "int8=true"], "int8 received with format=keras. Expected format=litert."),
        (["run=a", "format=litert", "int8=2"], "Invalid int8: 2. Expected true or false."),
        (["run=a", "tolerance=-1"], "Invalid tolerance: -1. Expected a number from 0 on"),
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
    (["run={runs}/bnn", "format=saved_model", "output={tmp}", "overwrite=true"], "exists already. Expected another"),
    (["run={runs}/bnn", "output={tmp}/file/a.keras"], "is not a directory that can be written to."),
    (["run={runs}/bnn", "output=/proc/sys/hookline/a.keras"], "/proc/sys/hookline/a.keras cannot be written"),
]


@pytest.mark.parametrize(("arguments", "message"), CASES, ids=[message[:40] for _, message in CASES])
def test_a_mistake_is_one_line_exit_code_2_and_writes_nothing(arguments, message, runs: Runs, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.keras").mkdir()
    given = [each.format(runs=runs.directory, tmp=tmp_path) for each in arguments]
    assert all((runs / name).exists() for name in RUNS if given[0] == f"run={runs.directory / name}")
    before = sorted(tmp_path.rglob("*")), sorted(runs.directory.rglob("*"))
    assert main(given) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert (sorted(tmp_path.rglob("*")), sorted(runs.directory.rglob("*"))) == before


@pytest.mark.parametrize(("form", "module"), [("onnx", "tf2onnx"), ("litert", "ai_edge_litert.interpreter")])
def test_a_missing_package_is_one_line_with_what_installs_it(form, module, runs: Runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, module, None)
    assert main([f"run={runs / 'both'}", f"format={form}", f"output={tmp_path}/a{FORMATS[form].suffix}"]) == 2
    assert capsys.readouterr().err == (
        f"Error: format={form} needs the package {module}, which cannot be imported. Expected it installed: python -m "
        f"pip install '.[{form}]', in a clone of this project.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_writing_leaves_nothing_behind(runs: Runs, tmp_path, monkeypatch, capsys):
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
