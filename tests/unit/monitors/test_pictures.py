"""Picture files: named, whole, at the right evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hooks.monitors.files import file_name
from hooks.monitors.pictures import PictureFiles, encode_picture, write_pictures
from trainer.errors import UserError, WriteError
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
    assert sorted(path.name for path in folder.iterdir()) == [".frames", "a_b.png"]
    hook.on_fit_end(run, {"status": "completed"})
    assert sorted(path.name for path in folder.iterdir()) == ["a_b.gif", "a_b.png"]
    frames = tf.io.decode_gif((folder / "a_b.gif").read_bytes()).numpy()
    assert frames[:, 0, 0, 0].tolist() == [85, 170, 255]


def test_an_interrupted_run_has_its_animation_and_others_have_none(make_run) -> None:
    run = make_run(pictures=lambda step, split: {"a": np.full((2, 3, 1), step / 30)})
    for animate in (False, True):
        hook = PictureFiles(animate=animate)
        evaluate(hook, run, (10, "validation"), (20, "validation"))
        hook.on_exception(run, KeyboardInterrupt())
        hook.on_fit_end(run, {"status": "interrupted"})
        assert (run.directory / "pictures" / "a.gif").exists() == animate


def animated(run, step: int, resumed: dict | None = None, status: str = "completed", since: int = 0) -> PictureFiles:
    """Evaluate after each step since another one, and end."""
    hook = PictureFiles(animate=True)
    if resumed is not None:
        hook.load_state_dict(json.loads(json.dumps(resumed)))
        hook.on_resume(run)
    evaluate(hook, run, *((each, "validation") for each in range(since + 1, step + 1)))
    hook.on_fit_end(run, {"status": status})
    return hook


def noise(step: int, split: str) -> dict[str, np.ndarray]:
    """Return a picture from the start and one that comes later."""
    generator = np.random.default_rng(step)
    later = {"later": generator.random((4, 6, 1))} if step > 3 else {}
    return {"mask/a": generator.random((5, 7, 3)), **later}


@pytest.mark.parametrize(("left", "again", "total"), [(5, 5, 9), (5, 3, 9), (205, 150, 210)])
def test_an_animation_goes_on_where_the_run_does(make_run, left: int, again: int, total: int) -> None:
    """With more than 200 frames, and from a checkpoint that is older than the frames that are there."""
    run = make_run(pictures=noise)
    folder = run.directory / "pictures"
    animated(run, total)
    expected = {path.name: path.read_bytes() for path in folder.glob("*.gif")}
    assert expected.keys() == {"mask_a.gif", "later.gif"}
    assert not (folder / ".frames").exists()  # nothing goes on from a complete run
    state = animated(run, again, status="interrupted").state_dict()
    animated(run, left, state, "interrupted", since=again)
    animated(run, total, state, since=again)
    assert {path.name: path.read_bytes() for path in folder.glob("*.gif")} == expected


def remove(path: Path) -> None:
    path.unlink()


DAMAGES = {
    "missing": remove,
    "empty": lambda path: path.write_bytes(b""),
    "half-written": lambda path: path.write_bytes(path.read_bytes()[:60]),
    "without its end": lambda path: path.write_bytes(path.read_bytes()[:-8]),
    "a flipped bit": lambda path: path.write_bytes(path.read_bytes()[:70] + b"!" + path.read_bytes()[71:]),
    "another format": lambda path: path.write_bytes(b"GIF89a nonsense"),
    "a folder": lambda path: (remove(path), path.mkdir()),
}


def test_an_animation_with_a_damaged_frame_starts_anew_and_the_others_go_on(make_run) -> None:
    run = make_run(pictures=noise)
    folder = run.directory / "pictures"
    for name, damage in DAMAGES.items():
        hook = animated(run, 6, status="interrupted")
        damage(folder / ".frames" / "of_mask_a" / "000002.png")
        with pytest.warns(UserWarning, match="The animation of 'mask/a' starts anew: "):
            animated(run, 8, hook.state_dict(), since=6)
        counts = {path.name: len(tf.io.decode_gif(path.read_bytes())) for path in folder.glob("*.gif")}
        assert counts == {"mask_a.gif": 2, "later.gif": 5}, name


def test_a_picture_called_after_the_folder_above_removes_nothing_there(make_run) -> None:
    run = make_run(pictures=lambda step, split: {"..": HALF})
    evaluate(PictureFiles(), run, (1, "test"))
    with pytest.warns(UserWarning, match=r"The animation of '\.\.' starts anew"):
        animated(run, 2, {"evaluations": 1, "frames": {"..": 1}}, "interrupted", since=1)
    assert (run.directory / "pictures" / "...png").exists()


def test_what_the_disk_did_not_take_is_counted_all_the_same(make_run) -> None:
    run = make_run(pictures=noise)
    (run.directory / "pictures").write_text("")
    hook = PictureFiles(animate=True)
    for step in (1, 2):
        with pytest.raises(WriteError, match=r"Cannot write .*00000[01]\.png"):
            evaluate(hook, run, (step, "validation"))
    (run.directory / "pictures").unlink()
    hook.on_fit_end(run, {"status": "completed"})
    assert hook.state_dict() == {"evaluations": 2, "frames": {"mask/a": 2}}
    assert len(tf.io.decode_gif((run.directory / "pictures" / "mask_a.gif").read_bytes())) == 2


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
