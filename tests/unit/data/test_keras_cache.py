"""What Keras downloaded is what it should be, or nothing is read."""

from __future__ import annotations

import hashlib
import inspect

import keras
import pytest

from hookline.recipes.data import keras_dataset as keras_cache
from hookline.recipes.data.keras_dataset import PINS, SETS, load_pinned
from hookline.trainer.errors import UserError

PIN = hashlib.sha256(b"whole").hexdigest()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Let the cache be an empty folder, and pin two files in it."""
    monkeypatch.setattr(keras_cache, "_folders", lambda: [tmp_path])
    monkeypatch.setattr(keras_cache, "PINS", {"mnist": {"first": PIN, "inner/second": PIN}})
    (tmp_path / "inner").mkdir()
    return tmp_path


def leave(folder, first=b"whole", second=b"whole"):
    """Return a function that leaves files, as a download does, and returns "arrays"."""

    def load():
        for name, content in (("first", first), ("inner/second", second)):
            if content is not None:
                (folder / name).write_bytes(content)
        return "arrays"

    return load


def test_a_truncated_file_is_named_before_keras_would_replace_it(folder):
    for _ in range(2):  # downloaded, and then there
        assert load_pinned("mnist", leave(folder)) == "arrays"
    (folder / "inner/second").write_bytes(b"who")
    called = []
    with pytest.raises(UserError, match=r"inner/second' \(3 bytes\) is truncated or altered.*Delete it") as caught:
        load_pinned("mnist", lambda: called.append(1))
    assert "\n" not in str(caught.value)
    assert not called
    assert (folder / "inner/second").read_bytes() == b"who"


def test_a_download_that_brings_something_else_or_nothing_is_refused(folder):
    with pytest.raises(UserError, match=r"first' .* is truncated or altered"):
        load_pinned("mnist", leave(folder, first=b"other"))
    (folder / "first").unlink()
    (folder / "inner/second").unlink()
    with pytest.raises(UserError, match="did not leave inner/second in"):
        load_pinned("mnist", leave(folder, second=None))

    def fail():
        raise Exception("URL fetch failure:\n no route")  # what Keras raises

    with pytest.raises(UserError, match=r"URL .*data.path=<mnist.npz>") as caught:
        load_pinned("mnist", fail)
    assert "\n" not in str(caught.value)


def test_the_pins_are_those_that_keras_declares():
    assert PINS.keys() == {each.module for each in SETS.values()}
    for name in PINS:
        source = inspect.getsource(getattr(keras.datasets, name).load_data)
        for file, pin in PINS[name].items():
            assert len(pin) == 64
            assert file.removesuffix("_archive").rpartition("/")[2] in source
            if name != "fashion_mnist":  # for which Keras has no sums
                assert pin in source
