"""The table of formats and their options: a file is known by its name, and nothing is imported before."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import keras
import pytest

from hookline.deploy.formats import FORMATS, format_of
from hookline.deploy.options import ExportOptions
from hookline.deploy.runtime_files import load_keras
from hookline.trainer.errors import UserError

ROOT = Path(__file__).resolve().parents[3]


def test_every_format_has_a_writer_a_loader_and_options_that_exist():
    for name, form in FORMATS.items():
        for place in (form.writer, form.loader):
            module, _, function = place.partition(":")
            assert callable(getattr(import_module(module), function))
        assert form.name == name
        assert form.suffix
    taken = {option for form in FORMATS.values() for option in form.options}
    assert taken == vars(ExportOptions()).keys() - {"tolerance"}


def test_a_file_is_known_by_the_end_of_its_name_and_a_directory_by_its_content(tmp_path: Path):
    for name, found in {"a.keras": "keras", "a b.tflite": "litert", ".x.12.onnx": "onnx"}.items():
        assert format_of(Path(name)).name == found
    for name in ("a.h5", "keras", "a_saved_model", "a.onnx.gz"):
        with pytest.raises(UserError, match="is of no format that is known"):
            format_of(Path(name))
    with pytest.raises(UserError, match="is a directory without saved_model.pb"):
        format_of(tmp_path)
    (tmp_path / "saved_model.pb").touch()
    assert format_of(tmp_path).name == "saved_model"


def test_options_of_another_type_or_range_are_refused():
    for values in ({"int8": 1}, {"int8": None}, {"tolerance": True}, {"tolerance": -0.1}, {"tolerance": float("nan")}):
        with pytest.raises(UserError, match=f"Invalid {next(iter(values))}"):
            ExportOptions(**values)
    assert ExportOptions(tolerance=0).changed == ["tolerance"]
    assert ExportOptions(int8=True, tolerance=0.1).changed == ["tolerance", "int8"]


def test_a_keras_file_from_a_stranger_runs_no_code(tmp_path: Path):
    layer = keras.layers.Lambda(lambda x: 2 * x, output_shape=(3,))
    keras.Sequential([keras.Input((3,)), layer]).save(tmp_path / "a.keras")
    with pytest.raises(UserError, match="cannot be loaded by Keras"):
        load_keras(tmp_path / "a.keras")


def test_the_table_and_the_runtimes_of_others_are_there_without_tensorflow():
    code = (
        "import sys; import hookline.deploy.formats, hookline.deploy.runtimes, hookline.deploy.options; "
        "print(sorted({'tensorflow', 'keras', 'omegaconf', 'rich', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
