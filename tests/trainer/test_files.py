"""Untrusted files: links are not followed, pipes not waited for, and reads are bounded."""

import os
import stat

import pytest

from hookline.trainer import files
from hookline.trainer.config.stored import read_yaml
from hookline.trainer.errors import UserError


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


USES = {
    "open_file": files.open_file,
    "open_append": files.open_append,
    "open_lock": files.open_lock,
    "read_lines": lambda path: list(files.read_lines(path)),
    "read_yaml": read_yaml,
}


def test_anything_except_an_ordinary_file_is_refused_at_once(victim):
    (linked := victim.with_name("linked")).symlink_to(victim)
    os.mkfifo(piped := victim.with_name("piped"))
    (folder := victim.with_name("folder")).mkdir()
    for use in USES.values():
        for path in (linked, piped, folder):
            with pytest.raises(OSError, match=r"symbolic link|not a regular|is a dir|No such device|Is a") as caught:
                use(path)
            assert ("symbolic link" in str(caught.value)) == (path == linked)
    assert victim.read_text() == "precious"
    link = victim.with_name("link")
    link.symlink_to(victim)
    assert files.read_bytes(link, follow=True) == b"precious"
    os.mkfifo(pipe := victim.with_name("pipe"))
    with pytest.raises(OSError, match="not a regular file"):
        files.open_file(pipe, follow=True)


def test_write_replaces_the_file_and_does_not_follow_links(victim):
    path = victim.with_name("summary.json")
    for link in (path, path.with_name(f".{path.name}.{os.getpid()}.tmp")):
        link.symlink_to(victim)
    for content in ("text", b"bytes", [b"in ", memoryview(b"pieces")]):
        files.write_whole(path, content)
    assert (path.read_text(), path.is_symlink(), victim.read_text()) == ("in pieces", False, "precious")
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()
    with pytest.raises(TypeError):
        files.write_whole(path, [3])  # type: ignore[list-item]  # fails on the way
    assert path.read_text() == "in pieces"
    assert {each.name for each in path.parent.iterdir()} == {"summary.json", "victim"}


def _umask():
    os.umask(mask := os.umask(0))
    return mask


def test_remove_leaves_link_targets(victim):
    (folder := victim.with_name("folder")).mkdir()
    (outside := victim.with_name("outside")).mkdir()
    (outside / "file").touch()
    (folder / "inner").symlink_to(outside)
    (link := victim.with_name("link")).symlink_to(outside)
    for path in (folder, link, link):
        files.remove(path)
    assert not folder.exists()
    assert not os.path.lexists(link)
    assert (outside / "file").exists()


def test_linked_folder_inside_a_run_is_refused_at_any_depth(tmp_path):
    (tmp_path / "run" / "a" / "b").mkdir(parents=True)
    (tmp_path / "by_name").symlink_to(tmp_path / "run")  # the user's path to the run
    files.check_folders(tmp_path / "by_name", "run")
    (link := tmp_path / "run" / "a" / "b" / "c").symlink_to(tmp_path)
    with pytest.raises(UserError, match="contains a link to a folder: .*/a/b/c. Replace the link with the folder"):
        files.check_folders(tmp_path / "by_name", "run")
    with pytest.raises(OSError, match="it is a symbolic link"):
        files.make_folder(link)


def test_deeply_nested_json_and_yaml_are_refused(tmp_path):
    for text in ("[" * 20000, "[" * 900 + "]" * 900, '{"a":' * 200 + "1" + "}" * 200):
        with pytest.raises(ValueError, match="nested too deeply|Expecting value"):
            files.parse_json(text)
        (tmp_path / "a.yaml").write_text(text)
        with pytest.raises(ValueError, match="it holds too much"):
            read_yaml(tmp_path / "a.yaml")
    assert files.parse_json("[" * 60 + "]" * 60)


YAML = {
    "anchor": ("a: &a [1]\nb: *a\n", "it holds an anchor"),
    "alias alone": ("b: *a\n", "it holds an anchor"),
    "number": (f"a: {'1:' * 40000}1\n", "it holds too much"),
    "overflow": (f"a: {'1:' * 300}1.0\n", "too large"),
    "digits": (f"a: {'1' * 9000}\n", "integer"),
    "size": ("a" * 2**21, "larger than"),
    "code": ("!!python/object/apply:os.getcwd []\n", "constructor"),
    "date": ("a: 2024-13-45\n", "month"),
    "junk": ("\x00\x01", "characters are not allowed"),
}


def test_yaml_that_no_run_writes_is_refused(tmp_path):
    for text, message in YAML.values():
        (tmp_path / "a.yaml").write_text(text)
        with pytest.raises((ValueError, OSError), match=message):
            read_yaml(tmp_path / "a.yaml")
