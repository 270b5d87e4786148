"""Every command and every block of code on the pages of the documentation works as it is printed; links resolve."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.documentation import PAGES, Block, Command, read_page
from tests.support.documented import shortened
from tests.support.documented_runs import check_page, run_as_printed, run_here

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = ("hooks/README.md", "recipes/RESULTS.md")
"""Pages made by scripts, whose commands are composed by the tests of these scripts, too."""


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


@pytest.mark.parametrize(
    "page", [pytest.param(each, marks=[pytest.mark.long] if each in ELSEWHERE else []) for each in PAGES]
)
def test_every_command_is_right_as_far_as_that_shows_without_running_it(page: str, place: Path) -> None:
    failures = check_page(items(page), place)
    assert not failures, told(failures)


@pytest.mark.filterwarnings("ignore:.* is complete. nothing is left to do:UserWarning")  # two steps are all of it
def test_the_commands_of_the_first_page_run(place: Path) -> None:
    count, failures = run_here(items("README.md"), place)
    assert not failures, told(failures)
    assert count > 5


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs_as_a_process(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = tmp_path / "clone"
    monkeypatch.setattr(sys, "path", [*sys.path, str(clone)])  # plugins of the reader's are looked for from here, too
    _, failures = run_as_printed(items(page), clone)
    assert not failures, told(failures)


def test_what_is_wrong_on_a_page_is_told_with_its_place(place: Path) -> None:
    wrong = {
        "python train.py recipe=bn": "'bnn'",
        "python train.py -m recipe=bnn,baselin seed=1,2": "'baseline'",
        "python train.py resume=runs/none": "runs/none",
        "python scripts/plan.py recipe=bnn --mermaidd   # a comment": "--mermaidd",
        "python scripts/export.py run=runs/bnn/<date_time> formt=packed": "'format'",
        "python scripts/exprt.py run=runs/bnn/<date_time>": "scripts.exprt",
        "python scripts/ablate.py recipe=frozen_mas": "'frozen_mask'",
        "make all": "no program that is known here",
        "python train.py recipe=bnn run_dir=<place>": "<place>",
    }
    right = "python train.py recipe=bnn run_dir=runs/mine\npython train.py resume=runs/mine"
    lines = "\n".join([right, *wrong])
    failures = check_page(list(read_page("page", f"# Title\n```\n{lines}\n```\n```python\nx = (\n```\n")), place)
    for command, word in wrong.items():
        assert any(word in failure for failure in failures), command
    assert len(failures) == len(wrong) + 1
    assert any("SyntaxError" in failure for failure in failures)
    assert not any("runs/mine" in failure for failure in failures)
    (place / "other").mkdir()
    page = list(read_page("page", "```\npython scripts/compare.py runs/none\n```\n"))
    count, failures = run_here(page, place / "other")
    assert count == len(failures) == 1
    assert failures[0].startswith("page:2: python scripts/compare.py runs/none\n")
    assert "exit code 2" in failures[0]
    short = shortened(["python", "train.py", "-m", "recipe=bnn", "--trials", "20", "seed=1,2,3"])
    assert " ".join(short[3:]) == "recipe=bnn --trials 2 seed=1,2 trainer.epochs=null trainer.steps=2"


@pytest.mark.parametrize("page", PAGES)
def test_links_and_the_files_that_are_named_are_there(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if link.startswith("https://"):
            continue
        if not target.exists():
            missing.append(link)
        elif anchor:
            heads = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads]
            if anchor not in anchors:
                missing.append(link)
    paths = re.findall(r"\b((?:tests|scripts|trainer|recipes|hooks|configs)/[\w/.-]+\.(?:py|yaml|sh|md|json))\b", text)
    here = (ROOT / page).parent
    missing += [path for path in paths if not (ROOT / path).exists() and not (here / path).exists()]
    assert not missing
