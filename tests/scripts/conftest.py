"""Fixtures shared by the tests of several scripts, since a finished run takes seconds."""

from pathlib import Path

import pytest

from tests.support.command import run_small


@pytest.fixture(scope="session")
def small_bnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run of a small binary network; tests that write into it make a copy."""
    run = tmp_path_factory.mktemp("small") / "bnn"
    run_small("bnn", run_dir=run)
    return run
