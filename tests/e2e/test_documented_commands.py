"""Every command and every block of code on the pages of the documentation works as it is printed."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.documentation import PAGES, Block, Command, read_page
from tests.support.documented_runs import check_page, run_as_printed, run_here

ROOT = Path(__file__).resolve().parents[2]
EXISTING = [page for page in PAGES if (ROOT / page).is_file()]


def _elsewhere(page: str) -> list[pytest.MarkDecorator]:
    """Return the mark of pages made by scripts, whose commands are composed by the tests of these scripts, too."""
    return [pytest.mark.long] if page in ("hooks/README.md", "recipes/RESULTS.md") else []


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An empty directory that is the current one, and on Python's path, as a clone's is for its programs."""
    directory = tmp_path / "place"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(directory)
    before = set(sys.modules)
    yield directory
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(directory)):
            del sys.modules[name]


def items(page: str) -> list[Block | Command]:
    return list(read_page(page, (ROOT / page).read_text(encoding="utf-8")))


def told(failures: list[str]) -> str:
    return f"\n{len(failures)} do not work as printed\n\n" + "\n\n".join(failures)


@pytest.mark.parametrize("page", [pytest.param(each, marks=_elsewhere(each)) for each in EXISTING])
def test_every_command_is_known_and_right_as_far_as_that_shows_without_running_it(page: str, place: Path) -> None:
    failures = check_page(items(page), place)
    assert not failures, told(failures)


@pytest.mark.filterwarnings("ignore:.* is complete. nothing is left to do:UserWarning")  # two steps are all of it
def test_the_commands_of_the_first_page_run(place: Path) -> None:
    count, failures = run_here(items("README.md"), place)
    assert not failures, told(failures)
    assert count > 5


@pytest.mark.long
def test_tensorboard_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path), "--host", "127.0.0.1"]
    with subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.PIPE) as process:
        try:
            page = answer(f"http://127.0.0.1:{port}/", process)
        finally:
            process.terminate()
    assert "TensorBoard" in page


def answer(address: str, process: subprocess.Popen) -> str:
    for _ in range(240):
        assert process.poll() is None, process.communicate()
        with suppress(OSError), urllib.request.urlopen(address, timeout=60) as page:
            return page.read().decode()
        time.sleep(0.5)
    raise TimeoutError(address)


@pytest.mark.long
@pytest.mark.parametrize("page", EXISTING)
def test_every_command_runs_as_a_process(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = tmp_path / "clone"
    monkeypatch.setattr(sys, "path", [*sys.path, str(clone)])  # plugins of the reader's are looked for from here, too
    _, failures = run_as_printed(items(page), clone)
    assert not failures, told(failures)
