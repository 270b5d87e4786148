"""Picture files: named, whole, at the right evaluations."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hooks.monitors.pictures import PictureFiles, encode_picture, file_name, write_pictures
from trainer.errors import UserError
from trainer.run.control import Report

HALF = np.full((2, 3, 1), 0.5, np.float32)


def read(path) -> np.ndarray:
    return tf.io.decode_png(path.read_bytes()).numpy()


def evaluate(hook, run, *reports) -> None:
    for step, split in reports:
        hook.on_evaluation_end(run, Report(step, split, {}))


def test_the_pictures_of_the_test_are_written_under_their_names(make_run) -> None:
    run = make_run(pictures=lambda step, split: {"mask/toy/kernel": HALF, "colour": np.zeros((1, 1, 3))})
    evaluate(PictureFiles(), run, (10, "validation"), (20, "test"))
    folder = run.directory / "pictures"
    assert sorted(path.name for path in folder.iterdir()) == ["colour.png", "mask_toy_kernel.png"]
    np.testing.assert_array_equal(read(folder / "mask_toy_kernel.png"), np.full((2, 3, 1), 128))
    assert read(folder / "colour.png").shape == (1, 1, 3)


def test_pictures_on_the_way_have_a_folder_for_each_step(make_run) -> None:
    asked = []

    def pictures(step, split):
        asked.append((step, split))
        return {"a": HALF}

    run = make_run(pictures=pictures)
    evaluate(PictureFiles(every=2), run, (10, "validation"), (20, "validation"), (30, "validation"), (30, "test"))
    folder = run.directory / "pictures"
    assert sorted(path.name for path in folder.iterdir()) == ["a.png", "step_00000010", "step_00000030"]
    assert asked == [(10, "validation"), (30, "validation"), (30, "test")]


def test_training_examples_are_there_from_the_start(make_run) -> None:
    run = make_run(first_pictures=lambda: {"input/training_examples": HALF})
    PictureFiles().on_fit_begin(run)
    assert [path.name for path in (run.directory / "pictures").iterdir()] == ["input_training_examples.png"]


def test_no_folder_without_pictures(make_run) -> None:
    run = make_run()
    PictureFiles().on_fit_begin(run)
    evaluate(PictureFiles(every=1), run, (10, "validation"), (10, "test"))
    assert not (run.directory / "pictures").exists()


def test_the_rhythm_is_kept_over_a_resume(make_run) -> None:
    run = make_run(pictures=lambda step, split: {"a": HALF})
    hook = PictureFiles(every=2)
    evaluate(hook, run, (10, "validation"))
    resumed = PictureFiles(every=2)
    resumed.load_state_dict(hook.state_dict())
    evaluate(resumed, run, (20, "validation"), (30, "validation"))
    assert sorted(path.name for path in (run.directory / "pictures").iterdir()) == ["step_00000010", "step_00000030"]


@pytest.mark.parametrize("picture", [np.zeros((2, 2)), np.zeros((2, 2, 2)), np.full((2, 2, 1), 1.01), HALF * np.nan])
def test_what_is_no_picture_is_refused(picture) -> None:
    with pytest.raises(ValueError, match="The picture 'x' has the shape .* Expected"):
        encode_picture("x", picture)


def test_a_folder_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match="Cannot write .*file/a.png: File exists. .*hooks.pictures=null"):
        write_pictures({"a": HALF}, blocked)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_animation_has_a_frame_for_every_evaluation_on_the_way(make_run) -> None:
    run = make_run(pictures=lambda step, split: {"a/b": np.full((2, 3, 1), step / 30)})
    hook = PictureFiles(animate=True)
    evaluate(hook, run, (10, "validation"), (20, "validation"), (30, "validation"), (10, "test"))
    folder = run.directory / "pictures"
    assert [path.name for path in folder.iterdir()] == ["a_b.png"]
    hook.on_fit_end(run, {})
    assert sorted(path.name for path in folder.iterdir()) == ["a_b.gif", "a_b.png"]
    frames = tf.io.decode_gif((folder / "a_b.gif").read_bytes()).numpy()
    assert frames[:, 0, 0, 0].tolist() == [85, 170, 255]


def test_an_interrupted_run_has_its_animation_and_others_have_none(make_run) -> None:
    run = make_run(pictures=lambda step, split: {"a": np.full((2, 3, 1), step / 30)})
    for animate in (False, True):
        hook = PictureFiles(animate=animate)
        evaluate(hook, run, (10, "validation"), (20, "validation"))
        hook.on_exception(run, KeyboardInterrupt())
        hook.on_fit_end(run, {})
        assert (run.directory / "pictures" / "a.gif").exists() == animate


def test_names_make_safe_file_names() -> None:
    assert file_name("mask/dense 1/kernel") == "mask_dense_1_kernel"
    assert file_name("../../etc") == ".._.._etc"
    assert file_name("///") == "picture"


@pytest.mark.parametrize("every", [-1, 1.5, True])
def test_every_is_a_count(every) -> None:
    with pytest.raises(UserError, match="every"):
        PictureFiles(every=every)
    with pytest.raises(UserError, match="animate"):
        PictureFiles(animate=1)
