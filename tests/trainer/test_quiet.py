"""Warnings are one line during a run, and closed standard streams are harmless."""

import subprocess
import sys
import warnings
from contextlib import suppress

import pytest

from hookline.trainer.deferred import plain_warnings
from tests.support.workers import ROOT


def test_warning_is_one_line_without_its_source_location():
    before = warnings.formatwarning
    with suppress(KeyError), plain_warnings():
        shown = warnings.formatwarning(UserWarning("Attention\ncollapsed."), UserWarning, "hooks/file.py", 7)
        raise KeyError
    assert shown == "Warning: Attention collapsed.\n"
    assert warnings.formatwarning is before


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_closed_stream_does_not_crash_and_its_descriptor_is_not_reused(closed):
    code = (
        "import sys, warnings; from hookline import train; code = train.main(['recipe=bn']); "
        "warnings.warn('w'); print('p'); "
        "file = open('README.md'); sys.exit(code if file.fileno() > 2 else 7)"
    )
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 2
