"""What the tests of several scripts share: finished runs cost seconds."""

from pathlib import Path

import pytest

from tests.support.command import run_small


@pytest.fixture(scope="session")
def small_bnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a small binary network; whoever writes into it takes a copy."""
    run = tmp_path_factory.mktemp("small") / "bnn"
    run_small("bnn", run_dir=run)
    return run
