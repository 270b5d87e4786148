"""What a job is started with, and the name of its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookline.scripts.sweep.open import added_threads, quoted, resumed_path
from hookline.scripts.sweep.record import Sweep
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import Job, preflight


@pytest.mark.parametrize("path", ["runs/a-1/b_2.x", "it's a=b,c", "\\' back\\slash end\\", "{x: [1]}", "l\u00e9on"])
def test_any_path_can_stand_on_the_command_line(path: str) -> None:
    (job,) = preflight(parse_command(["recipe=bnn", f"run_dir={quoted(Path(path))}"]))
    assert job.config["run_dir"] == path
    assert resumed_path([f"resume={quoted(Path('a b'))}"]) == "a b"
    assert resumed_path(["resume=null"]) is None


def test_a_number_of_threads_that_stands_anywhere_is_kept() -> None:
    sweep = Sweep(Path(), threads=2)
    assert added_threads(sweep, Job({"trainer": {"threads": None}}, "a", ["recipe=a"])) == 2
    assert added_threads(sweep, Job({"trainer": {"threads": 3}}, "a", ["recipe=a"])) is None  # the recipe says it
    assert added_threads(sweep, Job({"trainer": {"threads": None}}, "a", ["trainer.threads=null"])) is None
