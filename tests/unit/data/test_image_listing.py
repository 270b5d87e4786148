"""The listing of a folder of images: every file in its split and class, in an order that systems cannot change."""

from __future__ import annotations

import os

import numpy as np

from hookline.recipes.data import image_folder as image_listing
from hookline.recipes.data.image_folder import list_images


def folder_of(root, *files):
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    return str(root)


def names(listing):
    return [os.path.relpath(path, listing.folder) for path in listing.paths]


def test_rows_run_through_splits_then_classes_then_names(tmp_path):
    path = folder_of(tmp_path, "test/b/2.gif", "train/b/10.bmp", "train/a/x.jpg", "train/b/1.jpeg", "valid/c/0.PNG")
    found = list_images(path)
    assert names(found) == ["train/a/x.jpg", "train/b/1.jpeg", "train/b/10.bmp", "valid/c/0.PNG", "test/b/2.gif"]
    assert (found.labels.tolist(), found.labels.dtype) == ([0, 1, 1, 2, 1], np.int64)
    parts = {name: rows.tolist() for name, rows in found.parts.items()}
    assert parts == {"train": [0, 1, 2], "validation": [3], "test": [4]}
    assert found.class_names == ("a", "b", "c")
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


def test_everything_that_is_not_read_is_named_once_but_for_litter(tmp_path):
    stray = ["readme.md", "more/a/0.png", "train/notes.txt", "train/a/deep/0.png", "test/a/0.tiff"]
    litter = [".git/x", "__MACOSX/a", "train/Thumbs.db", "train/a/desktop.ini", "train/a/._0.png"]
    found = list_images(folder_of(tmp_path, "train/a/0.png", "test/b/0.png", *stray, *litter))
    expected = ["more", "readme.md", "train/notes.txt", "train/a/deep", "test/a/0.tiff"]
    assert sorted(os.path.relpath(path, tmp_path) for path in found.skipped) == sorted(expected)
    assert names(found) == ["train/a/0.png", "test/b/0.png"]
