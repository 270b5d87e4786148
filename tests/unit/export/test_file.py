"""Files and directories that are put in place whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hookline.deploy.formats import FORMATS, check_place, put_in_place, size_on_disk
from hookline.trainer.errors import UserError

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
    assert size_on_disk(path) == (12 if form.is_directory else 6)
    with pytest.raises(UserError, match=r"exists already\. Expected another output, or overwrite=true\.$"):
        check_place(path, form, overwrite=False)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_error_leaves_what_was_there_and_nothing_else(form, error, tmp_path: Path):
    old, new = tmp_path / f"net{form.suffix}", tmp_path / "new" / f"net{form.suffix}"
    write(old, "old", form)
    for path in (old, new):
        wanted = UserError if isinstance(error, OSError) else type(error)
        with pytest.raises(wanted), put_in_place(path, form) as temporary:  # noqa: PT012
            write(temporary, "half", form)
            raise error
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
    (tmp_path / "a.onnx").mkdir()
    (tmp_path / "link.onnx").symlink_to(tmp_path / "absent")
    for form, name in ((DIRECTORY, "documents"), (FILE, "a.onnx"), (FILE, "link.onnx")):
        with pytest.raises(UserError, match=r"exists already\. Expected another output\.$"):
            check_place(tmp_path / name, form, overwrite=True)
    with pytest.raises(UserError, match=r"Expected a file that ends with \.onnx"):
        check_place(tmp_path / "a.keras", FILE, overwrite=True)
    check_place(tmp_path / "any name", DIRECTORY, overwrite=False)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is not a directory that can be written to"):
        check_place(tmp_path / "file" / "a.onnx", FILE, overwrite=False)
