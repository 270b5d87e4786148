"""Every recipe with every technique hook, killed at every kind of cut, resumes with the bits of the whole run.

The whole matrix takes hours: `pytest -m long tests/resume/test_matrix.py`, in parts with -k "bnn and prune-1".
Combinations that are refused are skipped tests; -rs lists them.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hookline.trainer.errors import UserError
from tests.support.matrix import (
    BETWEEN,
    CHANGE,
    EVALUATION,
    RECIPES,
    TECHNIQUES,
    Case,
    check_cut,
    choose_cuts,
    make_whole,
    refusal,
)

MASKS = ("frozen_mask", "incremental_quantization", "prune")
ALL = [Case(recipe, hook, parts) for parts in (1, 2) for recipe in RECIPES for hook in ("alone", *TECHNIQUES)]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Return a directory that goes with its test: all the runs of a matrix would fill a disk, their garbage memory."""
    yield tmp_path / "runs"
    shutil.rmtree(tmp_path)
    gc.collect()


def test_micro_batches_masks_an_evaluation_and_an_animation_resume(directory: Path) -> None:
    whole = make_whole(Case("baseline", "prune", 2, ("hooks.pictures.animate=true",)), directory)
    assert list(whole.directory.glob("pictures/*.gif"))
    cuts = {cut: kind for cut, kind in choose_cuts(whole).items() if CHANGE in kind or EVALUATION in kind}
    assert len(cuts) == 2
    for (name, step), kind in cuts.items():
        check_cut(whole, name, step, kind)


@pytest.mark.long
@pytest.mark.parametrize("case", ALL, ids=[f"{case.recipe}-{case.hook}-{case.parts}" for case in ALL])
def test_a_recipe_with_a_hook_resumes_from_every_cut(case: Case, directory: Path) -> None:
    try:
        whole = make_whole(case, directory)
    except UserError as error:
        assert not (directory / "whole").exists()
        pytest.skip(f"refused: {refusal(error, case)}")
    cuts = choose_cuts(whole)
    assert case.hook not in MASKS or any(CHANGE in kind for kind in cuts.values())
    for (name, step), kind in cuts.items():
        if case.parts == 1 or BETWEEN in kind or CHANGE in kind:
            check_cut(whole, name, step, kind)
