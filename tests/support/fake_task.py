"""A task of a cluster whose jobs are fake ones, in whatever process it runs."""

from pathlib import Path

from hookline.scripts.sweep import run
from hookline.scripts.sweep.command import SweepTask

FAKE = Path(__file__).with_name("fake_job.py")


class FakeTask(SweepTask):
    def __call__(self) -> int:
        run.TRAIN = FAKE
        return super().__call__()
