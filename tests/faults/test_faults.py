"""The planted faults still apply: each text occurs once in its file, and the result is valid Python."""

import ast

from tests.faults.plant import ROOT, read_faults


def test_every_fault_can_be_planted():
    faults = read_faults()
    assert len({fault.name for fault in faults}) == len({fault.key for fault in faults}) == len(faults) >= 150
    for fault in faults:
        source = (ROOT / fault.file).read_text()
        planted = fault.planted(source)
        if fault.file.endswith(".py"):
            ast.parse(planted, fault.file)
