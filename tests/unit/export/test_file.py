"""Files and directories that are put in place whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer.errors import UserError
from trainer.export.file import check_place, put_in_place, size_on_disk
from trainer.export.formats import FORMATS

FILE, DIRECTORY = FORMATS["onnx"], FORMATS["saved_model"]


def write(path: Path, content: str, form) -> None:
    if form.is_directory:
        (path / "variables").mkdir(parents=True)
        (path / "saved_model.pb").write_text(content)
        (path / "variables" / "data").write_text(content)
    else:
        path.write_text(content)


def read(path: Path) -> str:
    return (path / "saved_model.pb" if path.is_dir() else path).read_text()


@pytest.fixture(params=[FILE, DIRECTORY], ids=["file", "directory"])
def form(request):
    return request.param


def test_what_was_written_gets_its_name_and_replaces_what_was_there(form, tmp_path: Path):
    path = tmp_path / "deep" / "er" / f"net{form.suffix}"
    for content in ("first", "second"):
        check_place(path, form, overwrite=content == "second")
        with put_in_place(path, form) as temporary:
            assert temporary.parent.parent == path.parent  # of one file system
            assert temporary.name.endswith(form.suffix)
            assert not os.path.lexists(temporary)
            write(temporary, content, form)
        assert read(path) == content
        assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), UserError("not as good"), OSError(28, "No space left on device")]
)
def test_an_error_leaves_what_was_there_and_nothing_else(form, error, tmp_path: Path):
    old, new = tmp_path / f"net{form.suffix}", tmp_path / "new" / f"net{form.suffix}"
    write(old, "old", form)
    for path in (old, new):
        wanted = UserError if isinstance(error, OSError) else type(error)
        with pytest.raises(wanted) as caught, put_in_place(path, form) as temporary:  # noqa: PT012
            write(temporary, "half", form)
            raise error
        if isinstance(error, OSError):
            assert str(caught.value).endswith("cannot be written: No space left on device. Expected a place that can.")
    assert read(old) == "old"
    assert [each.name for each in tmp_path.iterdir()] == [old.name]


def test_a_directory_that_cannot_be_exchanged_keeps_its_old_content(tmp_path: Path, monkeypatch):
    path = tmp_path / "net_saved_model"
    write(path, "old", DIRECTORY)
    replace = os.replace

    def fail(source: Path, target: Path) -> None:
        if Path(target) == path and "gone" not in Path(source).name:
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match="Input/output error"), put_in_place(path, DIRECTORY) as temporary:
        write(temporary, "new", DIRECTORY)
    assert read(path) == "old"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_only_what_is_of_the_format_is_ever_replaced(tmp_path: Path):
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "thesis.tex").write_text("precious")
    for form, path in ((DIRECTORY, documents), (FILE, tmp_path / "a.onnx")):
        path.mkdir(exist_ok=True)
        with pytest.raises(UserError, match=r"exists already\. Expected another output\.$"):
            check_place(path, form, overwrite=True)
    broken = tmp_path / "link.onnx"
    broken.symlink_to(tmp_path / "absent")
    with pytest.raises(UserError, match="exists already"):
        check_place(broken, FILE, overwrite=True)


def test_without_overwrite_nothing_is_replaced(form, tmp_path: Path):
    path = tmp_path / f"net{form.suffix}"
    write(path, "old", form)
    with pytest.raises(UserError, match=r"exists already\. Expected another output, or overwrite=true\.$"):
        check_place(path, form, overwrite=False)
    check_place(path, form, overwrite=True)


def test_another_ending_and_a_place_that_is_no_directory_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"Expected a file that ends with \.onnx, such as model\.onnx\."):
        check_place(tmp_path / "a.keras", FILE, overwrite=True)
    check_place(tmp_path / "any name", DIRECTORY, overwrite=False)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is not a directory that can be written to"):
        check_place(tmp_path / "file" / "a.onnx", FILE, overwrite=False)


def test_bytes_are_those_of_all_files(form, tmp_path: Path):
    path = tmp_path / f"net{form.suffix}"
    write(path, "12345", form)
    assert size_on_disk(path) == (10 if form.is_directory else 5)
