"""Images from folders: the right class, the right split, the right pixels, and one clear line for every bad folder."""

from __future__ import annotations

import inspect
import io
import os
import shutil
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import yaml

from recipes.data.image_folder import image_folder
from trainer.errors import UserError
from trainer.input.batches import EvaluationBatches, TrainingBatches

CONFIG = Path(__file__).parents[3] / "configs" / "data" / "image_folder.yaml"
COLOURS = {"blue": (0, 0, 200), "green": (0, 200, 0), "red": (200, 0, 0)}
ENCODERS = {
    "png": tf.io.encode_png,
    "jpg": lambda pixels: tf.io.encode_jpeg(pixels, quality=100, chroma_downsampling=False),
}


def write_image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    encode = ENCODERS[path.suffix.lower().lstrip(".").replace("jpeg", "jpg")]
    path.write_bytes(encode(tf.constant(pixels, tf.uint8)).numpy())


def write_class(folder, name, count, *, seed=0, suffix="png", shape=(10, 14, 3)):
    """Write images of a class's colour, each its own by a little noise."""
    generator = np.random.default_rng([seed, *name.encode()])
    for number in range(count):
        noise = generator.integers(0, 50, shape)
        write_image(folder / name / f"{number:03}.{suffix}", np.array(COLOURS[name]) + noise)


def write_flat(folder, count=10, **settings):
    for name in COLOURS:
        write_class(folder, name, count, **settings)
    return str(folder)


def write_splits(folder, **counts):
    for seed, (split, count) in enumerate((counts or {"train": 6, "validation": 2, "test": 3}).items()):
        write_flat(folder / split, count, seed=seed)
    return str(folder)


def load(path, **settings):
    return image_folder(**{"path": path, "image_size": 8, **settings})


def whole(split):
    batch = EvaluationBatches(split, batch_size=split.size).batch(tf.constant(0, tf.int64))
    return {name: tensor.numpy() for name, tensor in batch.items()}


def pixels_of(folder, pixels, **settings):
    """What becomes of one image, in whole values 0..255; others make up the rest of the folder."""
    write_splits(folder, train=1, validation=1, test=1)
    for each in (folder / "test").rglob("*.png"):
        each.unlink()
    path = folder / "test" / "red" / "one.png"
    if isinstance(pixels, bytes):
        path.write_bytes(pixels)
    else:
        write_image(path, pixels)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "2 of 3 classes have no test image")
        data = load(str(folder), **settings)
    return (whole(data.test)["inputs"][0] + 1) * 127.5


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory, monkeypatch):
    """The user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def message_of(path, **settings):
    with pytest.raises(UserError) as caught:
        load(path, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_split_folders_are_the_splits_and_class_folders_the_classes(tmp_path):
    data = load(write_splits(tmp_path / "pets"))
    assert (data.name, data.classes, data.class_names) == ("pets", 3, ("blue", "green", "red"))
    assert (data.train.size, data.validation.size, data.test.size) == (18, 6, 9)
    assert data.input_shape == (8, 8, 3)
    for split in (data.train, data.validation, data.test):
        batch = whole(split)
        assert (batch["inputs"].dtype, batch["targets"].dtype) == (np.float32, np.int64)
        np.testing.assert_array_equal(batch["targets"], np.repeat([0, 1, 2], split.size // 3))
        np.testing.assert_array_equal(split.source.labels[split.indices], batch["targets"])
        brightest = batch["inputs"].mean(axis=(1, 2)).argmax(axis=1)
        np.testing.assert_array_equal(brightest, 2 - batch["targets"], "blue is the last channel, red the first")


def test_rows_are_called_by_their_files_also_behind_one_that_is_skipped(tmp_path):
    write_splits(tmp_path)
    (tmp_path / "train" / "blue" / "002.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"002\.png"):
        data = load(str(tmp_path), corrupt="skip")
    assert [data.train.name_of(place) for place in (1, 2)] == ["train/blue/001.png", "train/blue/003.png"]
    assert data.test.name_of(data.test.size - 1) == "test/red/002.png"


@pytest.mark.parametrize("name", ["val", "valid"])
def test_other_names_for_validation_are_understood(tmp_path, name):
    data = load(write_splits(tmp_path, **{"train": 6, name: 2, "test": 3}))
    assert (data.train.size, data.validation.size, data.test.size) == (18, 6, 9)


def test_what_has_no_folder_is_taken_from_train_by_share(tmp_path):
    data = load(write_splits(tmp_path, train=10, test=3), validation_share=0.2, test_share=0.9)
    assert (data.train.size, data.validation.size, data.test.size) == (24, 6, 9)
    np.testing.assert_array_equal(np.bincount(whole(data.validation)["targets"]), [2, 2, 2])


def test_class_folders_alone_are_split_by_class_and_seed(tmp_path):
    path = write_flat(tmp_path)
    first, again, other = (load(path, validation_share=0.2, test_share=0.3, seed=seed) for seed in (0, 0, 1))
    parts = [first.train.indices, first.validation.indices, first.test.indices]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(30))
    for split, count in ((first.train, 5), (first.validation, 2), (first.test, 3)):
        np.testing.assert_array_equal(np.bincount(whole(split)["targets"]), [count] * 3)
    np.testing.assert_array_equal(first.test.indices, again.test.indices)
    assert not np.array_equal(first.test.indices, other.test.indices)


def test_a_class_called_train_is_a_class(tmp_path):
    for name, colour in zip(("bus", "train"), COLOURS, strict=False):
        write_class(tmp_path, colour, 10)
        (tmp_path / colour).rename(tmp_path / name)
    assert load(str(tmp_path)).class_names == ("bus", "train")


def test_a_smaller_share_lies_within_a_larger_one_and_the_rest_stays(tmp_path):
    path = write_splits(tmp_path, train=16, validation=2, test=2)
    shares = {share: load(path, train_share=share) for share in (0.25, 0.5, 1)}
    images = {share: {each.tobytes() for each in whole(data.train)["inputs"]} for share, data in shares.items()}
    assert [len(each) for each in images.values()] == [12, 24, 48]
    assert images[0.25] < images[0.5] < images[1]
    for data in shares.values():
        assert np.ptp(np.bincount(whole(data.train)["targets"])) == 0
        np.testing.assert_array_equal(whole(data.test)["inputs"], whole(shares[1].test)["inputs"])
        np.testing.assert_array_equal(whole(data.validation)["inputs"], whole(shares[1].validation)["inputs"])
    other = load(path, train_share=0.25, seed=1)
    assert {each.tobytes() for each in whole(other.train)["inputs"]} != images[0.25]


def test_images_stay_one_byte_a_value_in_memory(tmp_path):
    data = load(write_splits(tmp_path), channels=1)
    assert data.train.source is data.test.source
    assert data.train.source.bytes == 33 * (8 * 8 + 8)


@pytest.mark.parametrize("cache", ["none", "disk"])
def test_every_cache_gives_the_same_batches(tmp_path, cache):
    path = write_splits(tmp_path)
    held, read = load(path), load(path, cache=cache)
    assert (held.train.source.host_only, read.train.source.host_only) == (False, True)
    assert (read.train.source.size, read.train.source.bytes) == (33, 33 * (8 * 8 * 3 + 8))
    assert read.train.source.on_accelerator() is read.train.source
    np.testing.assert_array_equal(read.train.source.labels, held.train.source.labels)
    batches = [TrainingBatches(data.train, batch_size=4, seed=3) for data in (held, read)]
    expected, found = (next(each.iterator(2)) for each in batches)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
    rows = tf.constant([4, 30, 0], tf.int64)
    traced = tf.function(read.train.source.gather, autograph=False).get_concrete_function(
        tf.TensorSpec([None], tf.int64)
    )
    np.testing.assert_array_equal(traced(rows)["inputs"], held.train.source.gather(rows)["inputs"])
    assert traced.structured_outputs["inputs"].shape == (None, 8, 8, 3)


def test_crop_keeps_the_middle_and_the_proportions_and_stretch_keeps_all(tmp_path):
    striped = np.zeros((8, 24, 3), np.uint8)
    striped[:, :8, 0] = striped[:, 8:16, 1] = striped[:, 16:, 2] = 255
    cropped = pixels_of(tmp_path / "crop", striped, fit="crop")
    np.testing.assert_allclose(cropped, np.broadcast_to([0.0, 255, 0], (8, 8, 3)), atol=1e-3)
    stretched = pixels_of(tmp_path / "stretch", striped, fit="stretch")
    np.testing.assert_allclose(stretched[:, [0, 4, 7]].argmax(axis=2), [[0, 1, 2]] * 8)
    wide = pixels_of(tmp_path / "wide", striped, image_size=[8, 24])
    np.testing.assert_allclose(wide, striped, atol=1e-3)
    tall = pixels_of(tmp_path / "tall", striped.transpose(1, 0, 2), image_size=[4, 4])
    np.testing.assert_allclose(tall, np.broadcast_to([0.0, 255, 0], (4, 4, 3)), atol=1e-3)


def test_shrinking_averages_fine_patterns_and_does_not_alias(tmp_path):
    columns = np.broadcast_to((np.arange(64) % 8 == 0)[None, :, None] * 240, (64, 64, 3))
    pixels = pixels_of(tmp_path, columns, image_size=8)
    np.testing.assert_allclose(pixels[:, 1:-1], 30, atol=8)


def test_images_smaller_than_wanted_are_enlarged(tmp_path):
    np.testing.assert_allclose(pixels_of(tmp_path, np.full((1, 3, 3), 90), image_size=16), 90, atol=1e-3)


@pytest.mark.parametrize(("kind", "channels"), [(1, 3), (2, 3), (4, 3), (1, 1), (2, 1), (3, 1), (4, 1)])
def test_grey_colour_and_opacity_become_the_channels_asked_for(tmp_path, kind, channels):
    values = {1: [100], 2: [100, 7], 3: [200, 100, 50], 4: [200, 100, 50, 7]}[kind]
    pixels = pixels_of(tmp_path, np.broadcast_to(values, (8, 8, kind)), channels=channels)
    luma = round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)
    expected = {1: [100 if kind < 3 else luma], 3: [100] * 3 if kind < 3 else [200, 100, 50]}[channels]
    np.testing.assert_allclose(pixels, np.broadcast_to(expected, (8, 8, channels)), atol=1.01)


def test_every_format_is_read_whatever_its_name_says(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow writes what TensorFlow only reads")
    frames = [image.new("RGB", (9, 9), (200, 40, shade)) for shade in (80, 10)]
    moving = {"save_all": True, "append_images": frames[1:]}
    for kind, settings in {"bmp": {}, "gif": moving, "jpeg": {"quality": 100}}.items():
        file = io.BytesIO()
        frames[0].save(file, kind, **settings)
        pixels = pixels_of(tmp_path / kind, file.getvalue())  # named one.png there
        np.testing.assert_allclose(pixels, np.broadcast_to([200, 40, 80], (8, 8, 3)), atol=3)
        path = tmp_path / kind / "test" / "red" / f"one.{kind.upper()}"
        (path.parent / "one.png").rename(path)
        with pytest.warns(UserWarning, match="2 of 3 classes have no test image"):
            read = load(str(tmp_path / kind), cache="none")
        np.testing.assert_allclose(whole(read.test)["inputs"][0], pixels / 127.5 - 1, atol=1e-5)


def test_endings_in_capitals_count_and_hidden_files_and_folders_do_not(tmp_path):
    path = write_splits(tmp_path)
    (tmp_path / "train" / "red" / "000.png").rename(tmp_path / "train" / "red" / "000.PNG")
    for hidden in (".DS_Store", "train/._000.png", "train/red/._000.png", "train/red/Thumbs.db", "test/.cache/x.png"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).write_bytes(b"no image")
    (tmp_path / "__MACOSX").mkdir()
    assert load(path).train.size == 18


@pytest.mark.parametrize(
    "stray", ["train/red/notes.txt", "train/readme.md", "extra/red/000.png", "train/red/more/1.png"]
)
def test_what_is_no_image_in_a_class_folder_is_counted_and_named(tmp_path, stray):
    path = write_splits(tmp_path)
    (tmp_path / stray).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / stray).write_bytes(b"no image")
    with pytest.warns(UserWarning, match=f"1 files or folders are not read, such as '{tmp_path}/{stray.split('/')[0]}"):
        assert load(path).train.size == 18


def test_a_class_without_an_image_to_train_on_is_refused(tmp_path):
    path = write_splits(tmp_path)
    (tmp_path / "test" / "red").rename(tmp_path / "test" / "Red")
    found = message_of(path)
    assert "1 of 4 classes have no train image, the first is 'Red'" in found
    assert "Check the spelling" in found


def test_a_class_that_only_the_test_lacks_is_a_warning(tmp_path):
    path = write_splits(tmp_path)
    shutil.rmtree(tmp_path / "test" / "green")
    with pytest.warns(UserWarning, match="1 of 3 classes have no test image, the first is 'green'"):
        data = load(path)
    np.testing.assert_array_equal(np.unique(whole(data.test)["targets"]), [0, 2])


def test_a_path_that_is_no_folder_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"text")
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr("train/red/000.png", b"")
    assert "does not exist; expected a folder" in message_of(str(tmp_path / "nowhere"))
    assert "is a file; expected a folder of images: <class>/<image>, or train/" in message_of(str(tmp_path / "file"))
    assert f"Unzip it first: python -m zipfile -e {tmp_path}/set.zip" in message_of(str(tmp_path / "set.zip"))
    assert "data.path is empty" in message_of(" ")
    monkeypatch.chdir(write_splits(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load(".").name == load("~/data").name == "data"


def test_a_folder_without_images_is_described(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert f"No JPEG, PNG, BMP or GIF in '{empty}': it holds no folder. Expected <class>/<image>" in message_of(empty)
    (tmp_path / "text" / "red").mkdir(parents=True)
    (tmp_path / "text" / "red" / "a.tif").write_bytes(b"II")
    found = message_of(str(tmp_path / "text"))
    assert "it holds folders (red) and 1 other files or folders, such as" in found
    assert "red/a.tif" in found


def test_the_folder_above_the_right_one_is_pointed_out(tmp_path):
    write_splits(tmp_path / "pets")
    assert f"Perhaps data.path={tmp_path}/pets is meant." in message_of(str(tmp_path))


def test_splits_without_class_folders_are_refused(tmp_path):
    for split in ("train", "test"):
        write_image(tmp_path / split / "1.png", np.full((4, 4, 3), 9))
    assert "holds the splits test, train, but train holds no class folders" in message_of(str(tmp_path))


def test_one_class_is_refused(tmp_path):
    write_class(tmp_path, "red", 10)
    assert "holds one class, 'red'; expected 2 or more" in message_of(str(tmp_path))


def test_two_folders_for_one_split_are_refused(tmp_path):
    path = write_splits(tmp_path, train=3, val=1, valid=1, test=1)
    assert "holds val and valid; expected one folder for the validation split" in message_of(path)


def test_a_split_folder_without_images_is_refused(tmp_path):
    path = write_splits(tmp_path)
    shutil.rmtree(tmp_path / "test")
    (tmp_path / "test").mkdir()
    assert "No JPEG, PNG, BMP or GIF in the test folder" in message_of(path)


@pytest.mark.parametrize("cache", ["memory", "none"])
@pytest.mark.parametrize("content", [b"", b"<html>", b"RIFF____WEBPVP8X"])
def test_a_file_that_is_no_image_is_named(tmp_path, content, cache):
    path = write_splits(tmp_path)
    bad = tmp_path / "validation" / "green" / "001.png"
    bad.write_bytes(content)
    found = message_of(path, cache=cache)
    assert found.startswith(f"'{bad}' cannot be read as an image (")
    assert "{{" not in found
    assert "); expected a whole JPEG, PNG, BMP or GIF. Replace or remove it, or set data.corrupt=skip." in found


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_damaged_image_is_named_before_training(tmp_path, suffix):
    path = write_flat(tmp_path, 30, suffix=suffix)
    bad = tmp_path / "red" / f"029.{suffix}"
    bad.write_bytes(bad.read_bytes()[:-40])
    assert message_of(path).startswith(f"'{bad}' cannot be read as an image (")


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_a_link_to_nowhere_is_named(tmp_path, cache):
    path = write_splits(tmp_path)
    link = tmp_path / "train" / "red" / "link.png"
    link.symlink_to(tmp_path / "gone.png")
    found = message_of(path, cache=cache)
    assert f"'{link}' cannot be read as an image (No such file or directory)" in found


def copy_across(folder):
    """Put two training images into the test, under other names, and one of validation into the test."""
    shutil.copy(folder / "train" / "red" / "000.png", folder / "test" / "red" / "copy.png")
    shutil.copy(folder / "train" / "green" / "001.png", folder / "test" / "blue" / "copy.png")
    shutil.copy(folder / "validation" / "blue" / "000.png", folder / "test" / "blue" / "other.png")


def test_the_same_file_in_two_splits_is_refused(tmp_path):
    path = write_splits(tmp_path)
    copy_across(tmp_path)
    found = message_of(path)
    assert f"3 images of '{path}' are in two splits, such as '{path}/train/green/001.png'" in found
    assert f"and '{path}/test/blue/copy.png'" in found
    assert "data.duplicates=drop" in found


def test_copies_can_be_dropped_from_all_but_the_test(tmp_path):
    path = write_splits(tmp_path)
    copy_across(tmp_path)
    shutil.copy(tmp_path / "train" / "red" / "001.png", tmp_path / "train" / "red" / "twin.png")  # no leak
    with pytest.warns(UserWarning, match="3 images of .* are in two splits"):
        data = load(path, duplicates="drop")
    assert (data.train.size, data.validation.size, data.test.size) == (18 + 1 - 2, 6 - 1, 9 + 3)
    train, validation, test = (
        {each.tobytes() for each in whole(split)["inputs"]} for split in (data.train, data.validation, data.test)
    )
    assert not (train | validation) & test


def test_copies_are_found_where_shares_split_a_class(tmp_path):
    path = write_flat(tmp_path)
    for number in range(10):
        shutil.copy(tmp_path / "red" / f"{number:03}.png", tmp_path / "red" / f"copy_{number}.png")
    assert "are in two splits" in message_of(path)
    with pytest.warns(UserWarning, match="are in two splits"):
        data = load(path, duplicates="drop")
    train, test = ({each.tobytes() for each in whole(split)["inputs"]} for split in (data.train, data.test))
    assert not train & test


def test_groups_stay_together(tmp_path):
    path = write_flat(tmp_path, 12)
    for image in tmp_path.rglob("*.png"):  # 3 pictures of each of 4 persons in every class
        image.rename(image.with_name(f"{int(image.stem) // 3}_{image.name}"))
    data = load(path, split="group", group_pattern="^(.*/[^_]+)_", validation_share=0.25, test_share=0.25)
    assert [split.size for split in (data.train, data.validation, data.test)] == [18, 9, 9]
    for split in (data.validation, data.test):
        np.testing.assert_array_equal(split.indices.reshape(3, 3) // 3 * 3 + [0, 1, 2], split.indices.reshape(3, 3))
        np.testing.assert_array_equal(np.bincount(whole(split)["targets"]), [3, 3, 3])


def test_a_group_in_two_folders_is_refused(tmp_path):
    path = write_splits(tmp_path, train=6, test=2)
    found = message_of(path, split="group", group_pattern="/(...)")
    assert "Group '000' is in train and in test; expected it in one part" in found


def test_a_hash_split_never_moves_an_image_when_more_arrive(tmp_path):
    few, more = tmp_path / "few", tmp_path / "more"
    write_flat(few, 30)
    write_flat(more, 40)
    parts = []
    for folder in (few, more):
        data = load(str(folder), split="hash", validation_share=0.2, test_share=0.3)
        names = sorted(f"{each.parent.name}/{each.name}" for each in folder.rglob("*.png"))
        parts.append(
            {names[row]: split.name for split in (data.train, data.validation, data.test) for row in split.indices}
        )
    assert parts[0] == {name: part for name, part in parts[1].items() if name in parts[0]}
    assert len(parts[1]) == 120
    assert set(parts[0].values()) == {"train", "validation", "test"}


def test_a_random_split_does_not_look_at_the_classes(tmp_path):
    path = write_flat(tmp_path, 20)
    random, by_class = (load(path, split=split, test_share=0.5) for split in ("random", "stratified"))
    assert np.bincount(whole(by_class.test)["targets"]).tolist() == [10, 10, 10]
    assert np.bincount(whole(random.test)["targets"]).tolist() != [10, 10, 10]
    assert random.test.size == 30


def test_a_number_of_images_can_be_held_out(tmp_path):
    data = load(write_flat(tmp_path), validation_share=3, test_share=6)
    assert (data.train.size, data.validation.size, data.test.size) == (21, 3, 6)


def test_more_images_than_memory_holds_are_refused_before_decoding(tmp_path, monkeypatch):
    path = write_splits(tmp_path)
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 33 * 64 * 3}[name])
    assert "33 images of 8 x 8 pixels take 0.0 GiB" in message_of(path)
    assert "Set data.cache=disk or none" in message_of(path)
    assert load(path, cache="none").train.size == 18


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": 0}, "data.image_size=0; expected a number of pixels, or [height, width], such as 96"),
        ({"image_size": [8]}, "data.image_size=[8]"),
        ({"image_size": [8, 8.5]}, "data.image_size=[8, 8.5]"),
        ({"image_size": "large"}, "data.image_size='large'"),
        ({"fit": "crp"}, "Unknown data.fit 'crp'. Did you mean 'crop'? Expected one of: crop, stretch."),
        ({"channels": 2}, "data.channels=2; expected 3 for colour or 1 for grey"),
        ({"channels": True}, "data.channels=True"),
        ({"cache": "disc"}, "Unknown data.cache 'disc'. Did you mean 'disk'? Expected one of: disk, memory, none."),
        ({"cache_dir": " "}, "data.cache_dir is empty"),
        ({"corrupt": "skp"}, "Unknown data.corrupt 'skp'. Did you mean 'skip'? Expected one of: skip, stop."),
        ({"split": "gruop"}, "Unknown data.split 'gruop'. Did you mean 'group'?"),
        ({"split": "group"}, "Received data.split=group and data.group_pattern=null; expected both"),
        ({"group_pattern": "(.)"}, "data.group_pattern with data.split=stratified, where it counts for nothing"),
        ({"split": "group", "group_pattern": "("}, "expected a regular expression such as"),
        ({"split": "group", "group_pattern": "."}, "with 0 pairs of round brackets; expected one"),
        ({"split": "group", "group_pattern": "bl(u)e"}, "not found in 20 of 30 images, such as 'green/000.png'"),
        ({"duplicates": "keep"}, "Unknown data.duplicates 'keep'. Expected one of: drop, refuse."),
        ({"train_share": 0}, "data.train_share=0; expected a number above 0, at most 1"),
        ({"train_share": 1.5}, "data.train_share=1.5"),
        ({"train_share": True}, "data.train_share=True"),
        ({"train_share": 0.01}, "empty; expected at least one"),
        ({"train_share": 0.04}, "2 of 3 classes have no train image"),
        ({"validation_share": 0.0}, "validation fraction 0.0"),
        ({"validation_share": 0.6, "test_share": 0.4}, "sum below 1"),
        ({"seed": -1}, "split seed -1"),
    ],
)
def test_settings_out_of_range_are_refused(tmp_path, settings, message):
    assert message in message_of(write_flat(tmp_path), **settings)


def test_the_config_lists_every_argument_with_its_default_and_asks_for_the_path():
    config = yaml.safe_load(CONFIG.read_text())
    assert config.pop("_target_") == "recipes.data.image_folder.image_folder"
    assert config.pop("path") == "???"
    arguments = dict(inspect.signature(image_folder).parameters)
    assert arguments.pop("path").default is inspect.Parameter.empty
    assert config == {name: parameter.default for name, parameter in arguments.items()}
    assert CONFIG.read_text().startswith("# ")


@pytest.mark.skipif(
    "HOOKLINE_CLOTHING" not in os.environ, reason="set HOOKLINE_CLOTHING to the folder of clothing-dataset-small"
)
def test_the_photographs_of_clothing_open():
    data = image_folder(path=os.environ["HOOKLINE_CLOTHING"])
    assert (data.train.size, data.validation.size, data.test.size) == (3068, 341, 372)
    assert data.class_names[0] == "dress"
    assert data.class_names[-1] == "t-shirt"
    assert np.bincount(data.test.source.labels[data.test.indices]).tolist() == [15, 12, 72, 38, 42, 26, 73, 30, 12, 52]
    assert image_folder(path=os.environ["HOOKLINE_CLOTHING"], train_share=0.25).train.size == 767
