"""Messages are one printable line, faults of array files are known, and paths that lead nowhere are reported."""

import io
import math
from pathlib import Path

import numpy as np
import pytest

from hookline.recipes.data.array_files import find_arrays, read_npz
from hookline.recipes.data.image_folder import existing_folder
from hookline.recipes.data.image_source import cache_folder
from hookline.scripts.command import csv_text
from hookline.scripts.sweep.open import open_sweep
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.stored import read_stored, recipe_of
from hookline.trainer.errors import (
    ARRAY_FAULTS,
    UserError,
    check_choice,
    check_integer,
    check_number,
    one_line,
    printable,
    unknown_name,
    user_path,
)
from hookline.trainer.run.directory import initial_checkpoints
from tests.support.refusals import assert_refused


def test_names_and_messages_are_printable_lines():
    for text, shown in (
        ("\x1b]0;title\x07\x1b[2J", r"\x1b]0;title\x07\x1b[2J"),
        ("cat\u202egnp.exe", r"cat\u202egnp.exe"),
        ("a\r\nb\u2028c\x9b", r"a\r\nb\u2028c\x9b"),
        ("\udcff", r"\udcff"),  # a byte of a file name that is not UTF-8
        ("Über ÄÖ 猫　x🐈 %\\n", "Über ÄÖ 猫　x🐈 %\\n"),
    ):
        assert printable(text) == shown
    assert "'adam'" in str(unknown_name("optimizer", "adm", ["sgd", "adam"]))
    assert str(UserError("The class 'a\n\x1b[31mb' is\tunknown.")) == r"The class 'a \x1b[31mb' is unknown."
    assert one_line("a\n b") == "a b"
    assert printable("a\n\x1b", keep="\n") == "a\n\\x1b"
    assert UserError("loss=mze")._render_traceback_() == ["UserError: loss=mze"]


def test_csv_cell_is_neither_a_formula_nor_a_second_row():
    rows = [["=1+2", "+x", "@a", "-3.5", -3.5, "a\nb", 'say "x"'], ["-", "0", "1e-3", "-cmd|' /C", "Ä", "\u202e", None]]
    assert csv_text(rows) == ('\'=1+2,\'+x,\'@a,-3.5,-3.5,a\\nb,"say ""x"""\n' + "-,0,1e-3,'-cmd|' /C,Ä,\\u202e,\n")


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def saved(save, *arrays, **named):
    stream = io.BytesIO()
    save(stream, *arrays, **named)
    return stream.getvalue()


FILES = {
    "npy": saved(np.save, ARRAY),
    "npz": saved(np.savez, x=ARRAY),
    "compressed npz": saved(np.savez_compressed, x=np.zeros(500)),
}


def read(content):
    loaded = np.load(io.BytesIO(content), allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return [loaded]
    with loaded:
        return [loaded[name] for name in loaded.files]


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.filterwarnings("ignore")  # NumPy and zipfile warn about some before they raise or continue
def test_corrupt_or_truncated_array_file_raises_only_known_faults(kind):
    content, caught = FILES[kind], set()
    assert len(read(content)) == 1
    for place in range(len(content)):
        for value in (content[place] ^ 0x01, content[place] ^ 0x80, ord("(")):
            try:
                read(content[:place] + bytes([value]) + content[place + 1 :])
            except ARRAY_FAULTS as error:
                caught.add(type(error))
        with pytest.raises(ARRAY_FAULTS):
            read(content[:place])
    assert len(caught) > 1
    assert kind == "npy" or RuntimeError in caught  # an entry that claims to be encrypted


NOBODY = "~no-such-user/x"
LONG = "a" * 300
LOOKS = {
    "data.path of arrays": lambda path: find_arrays(path, None),
    "data.path of images": existing_folder,
    "data.path of an npz": lambda path: read_npz(path, ["a"]),
    "init_from": initial_checkpoints,
    "config of a run": lambda path: read_stored(path, "resume"),
    "recipe of a run": lambda path: recipe_of(path, "resume"),
    "--sweep": lambda path: open_sweep(parse_command(["-m", "--sweep", path])),
}


def test_tilde_expands_to_home_and_unknown_user_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/x", "key") == tmp_path / "x"
    assert user_path(NOBODY, "key") == Path(NOBODY)
    assert user_path("a/~/x", "key") == Path("a/~/x")
    assert cache_folder("~/kept") == tmp_path / "kept"


def test_missing_path_is_reported_in_one_line(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for look in LOOKS.values():
        for path in (NOBODY, LONG):
            assert_refused(path, look, path)
    assert not list(tmp_path.iterdir())


def test_out_of_range_options_are_refused_by_name() -> None:
    check_choice("data.fit", "crop", ("crop", "stretch"))
    assert_refused("data.fit 'crp'.*'crop'", check_choice, "data.fit", "crp", ("crop", "stretch"))
    for value in (1, 5):
        check_integer("data.threads", value, 1, 5)
    for value in (0, 6, 2.0, True, "2", None):
        assert_refused(f"data.threads={value!r} received", check_integer, "data.threads", value, 1, 5)
    assert check_number("share", 1, 0, 1, above_minimum=True) == 1.0
    for value in (0, 1.1, math.nan, math.inf, -1, True, "1", None):
        assert_refused(f"share={value!r} received", check_number, "share", value, 0, 1, above_minimum=True)
    assert check_number("near", 0, 0, 1, below_maximum=True) == 0.0
    assert_refused("near=1 .*of at least 0 and below 1", check_number, "near", 1, 0, 1, below_maximum=True)
    assert check_number("alpha", 0, 0) == 0.0
