"""Picture files: their names, complete writes, and which evaluations write them."""

import io
import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageSequence

from hookline.hooks.monitors import pictures
from hookline.hooks.monitors.pictures import LAST_MILLISECONDS, PictureFiles, encode_picture, file_name, write_pictures
from hookline.trainer.run.control import Report

HALF = np.full((2, 3, 1), 0.5, np.float32)


def evaluate(hook, run, *reports) -> None:
    for step, split in reports:
        hook.on_evaluation_end(run, Report(step, split, {}))


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_pictures_are_written_at_the_start_and_the_test(make_run) -> None:
    run = make_run(views={"pictures": lambda step, split: {"mask/toy/kernel": HALF, "colour": np.zeros((1, 1, 3))}})
    folder = run.directory / "pictures"
    PictureFiles().on_fit_begin(run)
    evaluate(PictureFiles(), run, (10, "validation"))
    assert not folder.exists()
    run.views.first_pictures = {"input/examples": HALF}
    PictureFiles().on_fit_begin(run)
    evaluate(PictureFiles(), run, (20, "test"))
    assert names(folder) == ["colour.png", "input_examples.png", "mask_toy_kernel.png"]
    found, colour = (tf.io.decode_png((folder / name).read_bytes()) for name in ("mask_toy_kernel.png", "colour.png"))
    np.testing.assert_array_equal(found, np.full((2, 3, 1), 128))
    assert colour.shape == (1, 1, 3)


def test_intermediate_pictures_get_a_folder_per_step(make_run) -> None:
    asked = []
    run = make_run(views={"pictures": lambda step, split: asked.append((step, split)) or {"a": HALF}})
    hook, resumed = PictureFiles(every=2), PictureFiles(every=2)
    evaluate(hook, run, (10, "validation"))
    resumed.load_state_dict(hook.state_dict())
    evaluate(resumed, run, (20, "validation"), (30, "validation"), (30, "test"))
    assert names(run.directory / "pictures") == ["a.png", "step_00000010", "step_00000030"]
    assert asked == [(10, "validation"), (30, "validation"), (30, "test")]


def test_invalid_pictures_and_unwritable_folders_are_refused(tmp_path) -> None:
    for picture in (np.zeros((2, 2)), np.zeros((2, 2, 2)), np.full((2, 2, 1), 1.01), HALF * np.nan):
        with pytest.raises(ValueError, match="The picture 'x'"):
            encode_picture("x", picture)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="File exists: .*file"):
        write_pictures({"a": HALF}, tmp_path / "file")
    assert names(tmp_path) == ["file"]


def animated(run, step: int, resumed: dict | None = None, status: str = "completed", since: int = 0) -> PictureFiles:
    """Evaluate after each step from `since` + 1 to `step`, then end the run."""
    hook = PictureFiles(animate=True)
    if resumed is not None:
        hook.load_state_dict(json.loads(json.dumps(resumed)))
        run.journal.resumed_at = [1]
        hook.on_fit_begin(run)
    evaluate(hook, run, *((each, "validation") for each in range(since + 1, step + 1)))
    hook.on_fit_end(run, {"status": status})
    return hook


def noise(step: int, split: str) -> dict[str, np.ndarray]:
    """Return one picture from the start and a second one from step 4 on."""
    generator = np.random.default_rng(step)
    later = {"later": generator.random((4, 6, 1))} if step > 3 else {}
    return {"mask/a": generator.random((5, 7, 3)), **later}


def test_resumed_animation_equals_an_uninterrupted_one(make_run) -> None:
    left, again, total = 5, 3, 9  # from a checkpoint that is older than the last frames
    run = make_run(views={"pictures": noise})
    folder = run.directory / "pictures"
    animated(run, total)
    expected = {path.name: path.read_bytes() for path in folder.glob("*.gif")}
    assert expected.keys() == {"mask_a.gif", "later.gif"}
    assert not (folder / ".frames").exists()  # a complete run is never resumed
    state = animated(run, again, status="interrupted").state_dict()
    animated(run, left, state, "interrupted", since=again)
    animated(run, total, animated(run, total, state, since=again).state_dict(), since=total)  # killed before a summary
    assert {path.name: path.read_bytes() for path in folder.glob("*.gif")} == expected


def test_animation_skips_damaged_frames_with_a_warning(make_run) -> None:
    run = make_run(views={"pictures": noise})
    folder = run.directory / "pictures"
    hook = animated(run, 6, status="interrupted")
    cut, flipped, link = (folder / ".frames" / "of_mask_a" / f"00000{number}.png" for number in (1, 2, 3))
    cut.write_bytes(cut.read_bytes()[:60])
    flipped.write_bytes(flipped.read_bytes()[:70] + b"!" + flipped.read_bytes()[71:])
    link.unlink()
    link.symlink_to(folder / ".frames" / "of_later" / "000000.png")
    with pytest.warns(UserWarning, match=r"The animation of 'mask/a' lacks 3 frames, such as 1 \("):
        animated(run, 8, hook.state_dict(), since=6)
    counts = {path.name: len(tf.io.decode_gif(path.read_bytes())) for path in folder.glob("*.gif")}
    assert counts == {"mask_a.gif": 5, "later.gif": 5}


def test_picture_names_become_safe_file_names(make_run) -> None:
    run = make_run(views={"pictures": lambda step, split: {"..": HALF}})
    evaluate(PictureFiles(), run, (1, "test"))
    animated(run, 2, status="interrupted")
    assert names(run.directory / "pictures") == ["...gif", "...png", ".frames"]
    assert names(run.directory / "pictures" / ".frames") == ["of_.."]
    for name, file in (("mask/dense 1/kernel", "mask_dense_1_kernel"), ("../../etc", ".._.._etc"), ("///", "picture")):
        assert file_name(name) == file


def test_long_animation_keeps_evenly_spaced_frames_and_the_last_one(make_run, monkeypatch) -> None:
    monkeypatch.setattr(pictures, "MOST_FRAMES", 8)
    count = 26  # beyond 8, 16 and 24
    pictures_of = lambda step, split: {"a": np.array([[[(step >> bit) & 1] for bit in range(8)]], np.float32)}  # noqa: E731
    run = make_run(views={"pictures": pictures_of})
    animated(run, count)
    image = Image.open(io.BytesIO((run.directory / "pictures" / "a.gif").read_bytes()))
    assert (image.format, image.info["loop"]) == ("GIF", 0)  # forever
    numbers, durations = [], []
    for frame in ImageSequence.Iterator(image):
        row = np.asarray(frame.convert("RGB"))[0, :, 0]
        numbers.append(sum(int(value > 127) << bit for bit, value in enumerate(row)))
        durations.append(frame.info["duration"])
    assert (numbers[0], numbers[-1], len(set(np.diff(numbers[:-1])))) == (1, count, 1)
    assert 4 <= len(numbers) <= 9
    assert min(durations) >= 50
    assert durations[-1] == LAST_MILLISECONDS
