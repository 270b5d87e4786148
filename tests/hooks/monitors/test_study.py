"""A study's journal: a kill in the middle of a line, or while the lock is held, loses nothing."""

import os
import signal
import subprocess
import sys

import pytest

from hookline.hooks.monitors.study import JournalLock, open_storage

optuna = pytest.importorskip("optuna")


def test_incomplete_last_line_is_removed_before_the_next_is_written(tmp_path):
    journal = tmp_path / "study.journal"
    study = optuna.create_study(study_name="s", storage=open_storage(str(journal)))
    study.tell(study.ask(), 0.5)
    whole = journal.read_bytes()
    for torn in (b'{"op_code":4,"worker', b'{"op_code":4}', b"\n"):
        journal.write_bytes(whole + torn if torn != b"\n" else whole)
        again = optuna.load_study(study_name="s", storage=open_storage(str(journal)))
        assert [trial.value for trial in again.trials] == [0.5]
        again.add_trial(optuna.trial.create_trial(value=0.25))
        assert journal.read_bytes().startswith(whole + b'{"op_code":4,"worker_id":')
        assert [
            trial.value for trial in optuna.load_study(study_name="s", storage=open_storage(str(journal))).trials
        ] == [0.5, 0.25]


def test_lock_of_a_killed_process_is_released(tmp_path):
    journal = tmp_path / "study.journal"
    journal.touch()
    code = (
        "import sys, time; from pathlib import Path; from hookline.hooks.monitors.study import JournalLock\n"
        "JournalLock(Path(sys.argv[1])).acquire(); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(journal)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        os.kill(process.pid, signal.SIGKILL)
    lock = JournalLock(journal)
    assert lock.acquire()
    lock.release()


def test_symbolic_link_instead_of_the_journal_is_refused(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "study.journal").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        open_storage(str(tmp_path / "study.journal"))
    assert (tmp_path / "victim").read_text() == "precious"
