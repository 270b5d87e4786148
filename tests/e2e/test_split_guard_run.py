"""A run with the split guard: it sees every split of the run, as the data made them."""

from __future__ import annotations

from tests.support.command import run_small


def test_the_guard_of_a_run_reads_all_splits_and_finds_no_copies_among_the_digits(tmp_path) -> None:
    counts = ("data.validation_fraction=150", "data.test_fraction=300", "trainer.epochs=1")
    summary = run_small(
        "baseline", "+hooks=split_guard", "hooks.split_guard.on_leak=stop", *counts, run_dir=tmp_path / "run"
    )
    found = summary["hooks"]["split_guard"]
    assert found["examples"] == 1797
    assert found["exact"] == found["near"] == {}
