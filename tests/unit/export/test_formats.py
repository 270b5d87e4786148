"""The table of formats: what reads a file is found by its name, and nothing is imported before."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from trainer.errors import UserError
from trainer.export.formats import FORMATS, format_of
from trainer.export.options import ExportOptions

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_a_writer_a_loader_and_options_that_exist(name: str):
    form = FORMATS[name]
    for place in (form.writer, form.loader):
        module, _, function = place.partition(":")
        assert callable(getattr(import_module(module), function))
    assert {"tolerance", *form.options} <= vars(ExportOptions()).keys()
    assert form.name == name
    assert form.suffix


def test_every_option_is_taken_by_a_format():
    taken = {option for form in FORMATS.values() for option in form.options}
    assert taken == vars(ExportOptions()).keys() - {"tolerance"}


@pytest.mark.parametrize(
    ("name", "found"), [("a.keras", "keras"), ("a b.tflite", "litert"), ("net.v2.onnx", "onnx"), (".x.12.onnx", "onnx")]
)
def test_a_file_is_known_by_the_end_of_its_name(name: str, found: str):
    assert format_of(Path(name)).name == found


def test_a_directory_is_known_by_what_is_in_it(tmp_path: Path):
    with pytest.raises(UserError, match="is a directory without saved_model.pb"):
        format_of(tmp_path)
    (tmp_path / "saved_model.pb").touch()
    assert format_of(tmp_path).name == "saved_model"


@pytest.mark.parametrize("name", ["a.h5", "keras", "a_saved_model", "a.onnx.gz"])
def test_another_name_is_one_line(name: str):
    with pytest.raises(
        UserError, match=r"is of no format that is known\. Expected a name that ends with one of .*\.onnx"
    ):
        format_of(Path(name))


def test_the_table_and_the_runtimes_of_others_are_there_without_tensorflow():
    code = (
        "import sys; import trainer.export.formats, trainer.export.runtimes, trainer.export.file, "
        "trainer.export.options, trainer.export.contents; "
        "print(sorted({'tensorflow', 'keras', 'omegaconf', 'rich', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
