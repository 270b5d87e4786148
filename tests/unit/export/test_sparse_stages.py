"""The table of Deep Compression's stages: what each weight takes, and the sums."""

from __future__ import annotations

import numpy as np

from hookline.deploy.options import Contents
from hookline.deploy.sparse import COLUMNS, Stages, describe_stages, measure_stages


def stages_of(values: np.ndarray, given: np.ndarray | None = None, *, huffman: bool = True) -> Stages:
    return measure_stages("layer/kernel", values, values if given is None else given, huffman=huffman)


def cells(contents: Contents, row: int = 0) -> dict[str, str]:
    return dict(zip(COLUMNS, contents.rows[row], strict=True))


def test_a_dense_weight_of_different_values_takes_its_floats_in_every_stage():
    contents = describe_stages([stages_of(np.arange(1, 1001, dtype=np.float32).reshape(40, 25))], 100, lossy=False)
    assert cells(contents) == {
        "weight": "layer/kernel", "entries": "1,000", "kept": "1,000", "bits": "32", "positions": "all",
        "dense": "4,000", "sparse": "4,000", "shared": "4,000", "huffman": "4,000",
        "bits/kept": "32.00", "times": "1.0",
    }  # fmt: skip
    one = describe_stages([stages_of(np.full(10, 3.0, np.float32))], 0, lossy=False)
    assert [cells(one)[column] for column in ("huffman", "bits", "bits/kept", "times")] == ["4", "0", "3.20", "10.0"]


def sparse_values() -> np.ndarray:
    """Return [100, 64] with every fifth entry kept, one of -1 and 2, of which -1 is frequent."""
    values = np.zeros(6400, np.float32)
    values[::5] = np.where(np.arange(1280) % 16, -1, 2)
    return values.reshape(100, 64)


def test_positions_values_and_codes_are_counted_one_after_another():
    stages = stages_of(sparse_values() * np.linspace(1, 2, 64, dtype=np.float32), sparse_values())
    found = cells(describe_stages([stages], 100, lossy=True))
    gaps, kept = 1280 * 3 // 8, 1280  # 4 places lie between two entries: 3 bits, of which 7 moves on
    assert (stages.entries, stages.kept, stages.dense) == (6400, kept, 25_600)
    assert (found["positions"], found["bits"]) == ("3-bit gaps", "1")
    assert stages.sparse == gaps + 4 * kept
    assert stages.shared == gaps + kept // 8 + 8
    coded_gaps = kept // 8 + 3  # all but the first are the same: a bit each, and the lengths of 5 codes
    assert stages.coded == coded_gaps + kept // 8 + 8
    assert found["bits/kept"] == f"{8 * stages.coded / kept:.2f}"
    assert found["times"] == f"{25_600 / stages.coded:.1f}"
    assert stages_of(sparse_values(), huffman=False).coded == stages.shared


def test_the_last_row_has_the_sums():
    parts = [stages_of(sparse_values()), stages_of(np.ones(10, np.float32)), stages_of(np.zeros((2, 3), np.float32))]
    total, data = cells(describe_stages(parts, 100, lossy=True), -1), sum(each.coded for each in parts)
    assert [total[column] for column in ("entries", "kept", "dense")] == ["6,416", "1,290", "25,664"]
    assert total["huffman"] == f"{data:,}"
    assert (total["bits/kept"], total["times"]) == (f"{8 * data / 1290:.2f}", f"{25_664 / data:.1f}")
