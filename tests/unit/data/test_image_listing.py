"""The listing of a folder of images: every file in its split and class, in an order that systems cannot change."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from recipes.data import image_listing
from recipes.data.image_listing import ImageListing, list_images
from trainer.errors import UserError


def folder_of(root: Path, *files: str) -> str:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    return str(root)


def names(listing: ImageListing) -> list[str]:
    return [os.path.relpath(path, listing.folder) for path in listing.paths]


def message_of(path: str) -> str:
    with pytest.raises(UserError) as caught:
        list_images(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rows_run_through_splits_then_classes_then_names(tmp_path):
    path = folder_of(tmp_path, "test/b/2.gif", "train/b/10.bmp", "train/a/x.jpg", "train/b/1.jpeg", "valid/a/0.PNG")
    found = list_images(path)
    assert names(found) == ["train/a/x.jpg", "train/b/1.jpeg", "train/b/10.bmp", "valid/a/0.PNG", "test/b/2.gif"]
    assert (found.labels.tolist(), found.labels.dtype) == ([0, 1, 1, 0, 1], np.int64)
    assert {name: rows.tolist() for name, rows in found.parts.items()} == {
        "train": [0, 1, 2],
        "validation": [3],
        "test": [4],
    }
    assert found.class_names == ("a", "b")
    assert found.skipped == ()


def test_the_order_in_which_a_system_lists_a_folder_does_not_count(tmp_path, monkeypatch):
    path = folder_of(tmp_path, *(f"{kind}/{number}.png" for kind in "cab" for number in range(3)))
    expected = names(list_images(path))

    class Backwards:
        def __init__(self, folder):
            self.entries = sorted(real(folder), key=lambda entry: entry.name, reverse=True)

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *_):
            return None

    real = os.scandir
    monkeypatch.setattr(image_listing.os, "scandir", Backwards)
    assert names(list_images(path)) == expected == sorted(expected)


def test_a_class_that_only_one_split_has_is_a_class_of_all(tmp_path):
    path = folder_of(tmp_path, "train/b/0.png", "val/a/0.png", "test/c/0.png")
    found = list_images(path)
    assert found.class_names == ("a", "b", "c")
    assert found.labels.tolist() == [1, 0, 2]


def test_everything_that_is_not_read_is_named_once_but_for_litter(tmp_path):
    stray = ["readme.md", "more/a/0.png", "train/notes.txt", "train/a/deep/0.png", "test/a/0.tiff"]
    litter = [".git/x", "__MACOSX/a", "train/Thumbs.db", "train/a/desktop.ini", "train/a/._0.png"]
    found = list_images(folder_of(tmp_path, "train/a/0.png", "test/b/0.png", *stray, *litter))
    expected = ["more", "readme.md", "train/notes.txt", "train/a/deep", "test/a/0.tiff"]
    assert sorted(os.path.relpath(path, tmp_path) for path in found.skipped) == sorted(expected)
    assert names(found) == ["train/a/0.png", "test/b/0.png"]


def test_splits_are_splits_only_where_train_holds_folders(tmp_path):
    found = list_images(folder_of(tmp_path / "classes", "train/0.png", "bus/0.png", "test/0.png"))
    assert found.class_names == ("bus", "test", "train")
    assert list(found.parts) == ["train"]
    found = list_images(folder_of(tmp_path / "no_train", "val/0.png", "bus/0.png"))
    assert found.class_names == ("bus", "val")
    assert "holds the splits test, val, but train holds no class folders" in message_of(
        folder_of(tmp_path / "only_splits", "val/0.png", "test/0.png")
    )


def test_a_folder_without_images_says_what_it_holds(tmp_path):
    six = message_of(folder_of(tmp_path / "six", *(f"c{number}/a.txt" for number in range(6))))
    assert "it holds folders (c0, c1, c2, c3, c4, ...) and 6 other files or folders, such as" in six
    assert "Perhaps" not in six
    five = message_of(folder_of(tmp_path / "five", *(f"c{number}/.hidden" for number in range(5))))
    assert "it holds folders (c0, c1, c2, c3, c4). Expected" in five
    one = message_of(folder_of(tmp_path / "one", "pets/cat/0.png", "pets/dog/0.png"))
    assert one.endswith(f"Perhaps data.path={tmp_path}/one/pets is meant.")


def test_a_folder_that_cannot_be_read_is_named_with_the_reason(tmp_path, monkeypatch):
    def closed(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(image_listing.os, "scandir", closed)
    assert f"'{tmp_path}' cannot be read (Permission denied)" in message_of(str(tmp_path))
