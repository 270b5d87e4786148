"""TensorBoard in a browser over finished runs: no error of ours on its console, and every promised tab is filled.

What TensorBoard says of itself is measured on a folder with one scalar, and forgiven.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tests.support.browser import find_browser, open_page
from tests.support.dashboard import TABS, serving

ROOT = Path(__file__).parents[2]
BROWSER = find_browser()
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: chromium or google-chrome in the PATH"),
]
SMALL = {
    "bnn": ("trainer.epochs=3",),
    "frozen_mask": ("trainer.epochs=3",),
    "attention": ("trainer.epochs=2", "data.train_examples=500"),
    "center_loss": ("trainer.epochs=2", "hooks.center_loss.warm_up_epochs=1"),
}
WORDS = {
    "bnn": {"histograms": ("weights/dense_2/kernel/forward",), "custom_scalars": ("bnn/flip_ratio",)},
    "frozen_mask": {"images": ("mask",), "custom_scalars": ("sparsity",)},
    "attention": {"images": ("attention",), "custom_scalars": ("attention/mean",)},
    "center_loss": {
        "images": ("center/features",),
        "histograms": ("center/centers",),
        "projector": ("Dimension: 3",),  # of two features, and zeros
    },
}
"""What else must stand in a tab, by recipe."""
WITH_EMBEDDINGS = ("center_loss",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for recipe, overrides in SMALL.items():
        command = [sys.executable, "train.py", f"recipe={recipe}", *overrides, f"run_dir={folder / recipe}"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=900)
    return folder


def looked_at(folder: Path, profile: Path, tabs: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, list[str]]]:
    """Return the text of each tab, once its words are there, and what the console said meanwhile, without numbers."""
    found = {}
    with serving(folder) as address, open_page(str(BROWSER), profile) as page:
        for tab, words in tabs.items():
            page.open(f"{address}/#{tab}")
            text = page.text_with(*words)
            page.wait(2.0)
            found[tab] = (text, sorted({re.sub(r"http://[^/\s]+|\d+", "#", each) for each in page.said}))
    return found


@pytest.fixture(scope="module")
def forgiven(tmp_path_factory) -> set[str]:
    """Return what TensorBoard says by itself, on all tabs."""
    folder = tmp_path_factory.mktemp("plain")
    writer = EventFileWriter(str(folder))
    writer.add_event(Event(step=1, summary=scalar_pb("loss", 1.0)))
    writer.close()
    found = looked_at(folder, tmp_path_factory.mktemp("profile"), dict.fromkeys(TABS, ()))
    return {each for _, said in found.values() for each in said}


@pytest.mark.parametrize("recipe", SMALL)
def test_every_tab_of_a_run_is_filled_and_its_console_is_clean(folder, forgiven, tmp_path, recipe) -> None:
    tabs = {tab: (*words, *WORDS[recipe].get(tab, ())) for tab, words in TABS.items()}
    if recipe not in WITH_EMBEDDINGS:
        del tabs["projector"]
    found = looked_at(folder / recipe, tmp_path, tabs)
    missing = {tab: [word for word in words if word not in found[tab][0]] for tab, words in tabs.items()}
    assert not {tab: words for tab, words in missing.items() if words}
    errors = {tab: [each for each in said if each not in forgiven] for tab, (_, said) in found.items()}
    assert not {tab: said for tab, said in errors.items() if said}


def test_hyperparameters_of_a_folder_of_runs_are_those_of_all(folder, tmp_path) -> None:
    text, _ = looked_at(folder, tmp_path, {"hparams": ("best_validation", *SMALL)})["hparams"]
    assert [recipe for recipe in SMALL if recipe not in text] == []
