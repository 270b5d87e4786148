"""The table of formats and their options: how formats are recognized, and which files may be replaced."""

import os
from importlib import import_module
from pathlib import Path

import keras
import pytest

from hookline.deploy.formats import FORMATS, ExportOptions, check_place, format_of, put_in_place, size_on_disk
from hookline.trainer.errors import UserError
from tests.support.refusals import assert_refused

ROOT = Path(__file__).resolve().parents[2]


def test_every_format_has_a_writer_a_loader_and_options_that_exist():
    for name, form in FORMATS.items():
        for module, function in ((form.writer, f"write_{name}"), (form.loader, f"load_{name}")):
            assert callable(getattr(import_module(f"hookline.deploy.{module}"), function))
    taken = {option for form in FORMATS.values() for option in form.options}
    assert taken == vars(ExportOptions()).keys() - {"tolerance"}


def test_format_is_found_from_file_name_or_directory_content(tmp_path: Path):
    for name, found in {"a.keras": "keras", "a b.tflite": "litert", ".x.12.onnx": "onnx"}.items():
        assert format_of(Path(name)).name == found
    for name in ("a.h5", "keras", "a_saved_model", "a.onnx.gz"):
        assert_refused("has an unknown format", format_of, Path(name))
    assert_refused("is a directory without saved_model.pb", format_of, tmp_path)
    (tmp_path / "saved_model.pb").touch()
    assert format_of(tmp_path).name == "saved_model"


def test_options_of_wrong_type_or_out_of_range_are_refused():
    for name, value in (("codebook", 9), ("codebook", 2.5), ("codebook_conv", 0)):
        assert_refused(f"{name}={value!r} received", ExportOptions, **{name: value})
    assert_refused("codebook_conv=5 received without codebook", ExportOptions, codebook_conv=5)
    assert ExportOptions(tolerance=0).changed == ["tolerance"]
    assert ExportOptions(int8=True, tolerance=0.1).changed == ["tolerance", "int8"]


def test_keras_file_with_lambda_layer_is_refused(tmp_path: Path):
    layer = keras.layers.Lambda(lambda x: 2 * x, output_shape=(3,))
    keras.Sequential([keras.Input((3,)), layer]).save(tmp_path / "a.keras")
    assert_refused("cannot be loaded as format=keras", FORMATS["keras"].load, tmp_path / "a.keras")


FILE, DIRECTORY = FORMATS["onnx"], FORMATS["saved_model"]
form = pytest.mark.parametrize("form", [FILE, DIRECTORY], ids=["file", "directory"])


def write(path: Path, content: str, form) -> None:
    if form.is_directory:
        (path / "variables").mkdir(parents=True)
        (path / "saved_model.pb").write_text(content)
        (path / "variables" / "data").write_text(content)
    else:
        path.write_text(content)


def read(path: Path) -> str:
    return (path / "saved_model.pb" if path.is_dir() else path).read_text()


@form
def test_written_file_replaces_existing_one_only_with_overwrite(form, tmp_path: Path):
    path = tmp_path / "deep" / "er" / f"net{form.suffix}"
    for content in ("first", "second"):
        check_place(path, form, overwrite=content == "second")
        with put_in_place(path) as temporary:
            assert temporary.parent.parent == path.parent  # on the same file system
            assert temporary.name.endswith(form.suffix)
            assert not os.path.lexists(temporary)
            write(temporary, content, form)
        assert read(path) == content
        assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert size_on_disk(path) == (12 if form.is_directory else 6)
    with pytest.raises(UserError, match=r"exists already\. Expected another output, or overwrite=true\.$"):
        check_place(path, form, overwrite=False)


@form
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_error_keeps_old_content_and_leaves_nothing_else(form, error, tmp_path: Path):
    old, new = tmp_path / f"net{form.suffix}", tmp_path / "new" / f"net{form.suffix}"
    write(old, "old", form)
    for path in (old, new):
        wanted = UserError if isinstance(error, OSError) else type(error)
        with pytest.raises(wanted), put_in_place(path) as temporary:  # noqa: PT012
            write(temporary, "half", form)
            raise error
    assert read(old) == "old"
    assert {each.name for each in tmp_path.iterdir()} == {old.name, "new"}
    assert not list(new.parent.iterdir())


def test_directory_that_cannot_be_replaced_keeps_old_content(tmp_path: Path, monkeypatch):
    path = tmp_path / "net_saved_model"
    write(path, "old", DIRECTORY)
    replace = os.replace

    def fail(source: Path, target: Path) -> None:
        if Path(target) == path and "gone" not in Path(source).name:
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match="Input/output error"), put_in_place(path) as temporary:
        write(temporary, "new", DIRECTORY)
    assert read(path) == "old"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_path_that_is_not_an_export_of_the_format_is_never_replaced(tmp_path: Path):
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "thesis.tex").write_text("precious")
    (tmp_path / "a.onnx").mkdir()
    (tmp_path / "link.onnx").symlink_to(tmp_path / "absent")
    for form, name in ((DIRECTORY, "documents"), (FILE, "a.onnx"), (FILE, "link.onnx")):
        with pytest.raises(UserError, match=r"exists already\. Expected another output\.$"):
            check_place(tmp_path / name, form, overwrite=True)
    assert_refused(r"with \.onnx, .*, or format=keras", check_place, tmp_path / "a.keras", FILE, overwrite=True)
    check_place(tmp_path / "any name", DIRECTORY, overwrite=False)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is not a writable directory"):
        check_place(tmp_path / "file" / "a.onnx", FILE, overwrite=False)
