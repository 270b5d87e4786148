"""One process at a time trains in a run directory, and a killed one leaves no lock behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hookline.trainer.errors import UserError
from hookline.trainer.run.lock import locked

ROOT = Path(__file__).parents[3]
HOLD = "import sys, pathlib\nfrom hookline.trainer.run.lock import locked\nwith locked(pathlib.Path(sys.argv[1])):\n"


def test_another_process_is_named_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    code = HOLD + "    print('held', flush=True)\n    input()\n"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"in use: the process {holder.pid}"), locked(tmp_path):
            pass
        holder.kill()
    with locked(tmp_path):
        pass


def test_it_is_let_go_of_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    with locked(tmp_path), pytest.raises(UserError, match=f"the process {os.getpid()}"), locked(tmp_path):
        pass
    with pytest.raises(UserError, match="No such file"), locked(tmp_path / "absent"):
        pass
