"""Commands and code in the documentation and notebooks work as printed; links resolve."""

import json
import re
import runpy
import sys

import keras
import numpy as np
import pytest

from tests.support.documentation import PAGES, check_page, read_page, run_here
from tests.support.images import write_mnist
from tests.support.workers import ROOT

ELSEWHERE = ("README.md", "hooks/README.md")
"""The page whose commands run below, and a generated page, whose own tests compose its commands."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    directory = tmp_path / "place"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(directory)
    before = set(sys.modules)
    yield directory
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(directory)):
            del sys.modules[name]


def items(page):
    return list(read_page(page, (ROOT / page).read_text(encoding="utf-8")))


def told(failures):
    return f"\n{len(failures)} do not work as printed\n\n" + "\n\n".join(failures)


@pytest.mark.filterwarnings("ignore:.* left out. patients.network does not take them:UserWarning")
@pytest.mark.parametrize(
    "page", [pytest.param(each, marks=[pytest.mark.long] if each in ELSEWHERE else []) for each in PAGES]
)
def test_commands_and_code_on_each_page_pass_checks_without_running(page, place):
    failures = check_page(items(page), place)
    assert not failures, told(failures)


@pytest.mark.filterwarnings("ignore:.* is complete. nothing is left to do:UserWarning")  # two steps are all of it
def test_readme_commands_run(place):
    count, failures = run_here(items("README.md"), place)
    assert not failures, told(failures)
    assert count > 5


@pytest.mark.filterwarnings("ignore::UserWarning")  # advice on so short a training
@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_runs_from_top_to_bottom(path, place):
    cells = json.loads(path.read_text())["cells"]
    assert all(not cell.get("outputs") for cell in cells), "clear the outputs before committing"
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    exec(compile(re.sub(r"epochs=[23]0", "epochs=2", code), path.name, "exec"), {"__name__": "notebook"})


PORTS = [
    (
        "pruned.keras",
        lambda kernel: (kernel == 0).sum() == round(0.8 * kernel.size),
        ("pruned.tflite", "int8.tflite", "pruned.sparse.safetensors"),
    ),
    ("binary.keras", lambda kernel: (np.abs(kernel) == 1).all(), ("binary.packed.safetensors",)),
]


@pytest.mark.filterwarnings("ignore::UserWarning")  # advice on so short a training
@pytest.mark.parametrize("number", [0, 1], ids=("tfmot", "larq"))
def test_migration_port_ships_the_promised_weights_and_files(number, place):
    write_mnist(place / "mnist.npz", train=1200)
    blocks = [each for each in items("hookline/MIGRATION.md") if each.language]
    (place / "port.py").write_text(blocks[number].text)
    keras.utils.set_random_seed(0)
    found = runpy.run_path(str(place / "port.py"))
    assert found["trainer"].evaluate(found["x_test"], found["y_test"])["accuracy"] > 0.5
    model, is_right, others = PORTS[number]
    shipped = keras.models.load_model(place / model)
    assert all(is_right(each.numpy()) for each in shipped.trainable_variables if len(each.shape) > 1)
    assert all((place / each).stat().st_size > 0 for each in others)


def test_wrong_commands_are_found(place):
    wrong = ["python train.py recipe=bn", "python scripts/plan.py recipe=bnn --mermaidd", "make all"]
    right = "python train.py recipe=bnn run_dir=runs/mine\npython train.py resume=runs/mine"
    lines = "\n".join([right, *wrong])
    assert len(check_page(list(read_page("page", f"```\n{lines}\n```\n")), place)) == len(wrong)


@pytest.mark.parametrize("page", [*PAGES, "recipes/RESULTS.md"])
def test_linked_and_named_files_exist(page):
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
