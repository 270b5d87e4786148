"""The table of Deep Compression's stages: what each weight takes, and the sums."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from trainer.export.contents import Contents
from trainer.export.sparse import load_sparse_model, write_model
from trainer.export.sparse_stages import COLUMNS, Stages, describe_stages, measure_stages


def stages_of(values: np.ndarray, given: np.ndarray | None = None, *, huffman: bool = True) -> Stages:
    return measure_stages("layer/kernel", values, values if given is None else given, huffman=huffman)


def cells(contents: Contents, row: int = 0) -> dict[str, str]:
    return dict(zip(COLUMNS, contents.rows[row], strict=True))


def test_a_dense_weight_of_different_values_takes_its_floats_in_every_stage():
    values = np.arange(1, 1001, dtype=np.float32).reshape(40, 25)
    contents = describe_stages([stages_of(values)], 100, lossy=False)
    assert cells(contents) == {
        "weight": "layer/kernel", "entries": "1,000", "kept": "1,000", "bits": "32", "positions": "all",
        "dense": "4,000", "sparse": "4,000", "shared": "4,000", "huffman": "4,000",
        "bits/kept": "32.00", "times": "1.0",
    }  # fmt: skip
    assert contents.notes == (
        "data 4,000 bytes, header 100 bytes: 1.0 times smaller than the weights as float32 by data alone, 1.0 times "
        "with the header",
    )


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


def test_rounding_may_empty_no_stage_before_it():
    """The sparse stage has the run's own values; what is kept are those that the file gives back."""
    values = sparse_values()
    rounded = np.where(values == 2, np.float32(0), values)
    stages = stages_of(values, rounded)
    assert stages.kept == np.count_nonzero(rounded) == 1200
    assert stages.sparse == 1280 * 3 // 8 + 4 * 1280


def test_the_last_row_has_the_sums_and_no_bits_of_its_own():
    parts = [stages_of(sparse_values()), stages_of(np.ones(10, np.float32)), stages_of(np.zeros((2, 3), np.float32))]
    contents = describe_stages(parts, 100, lossy=True)
    data = sum(each.coded for each in parts)
    total = cells(contents, -1)
    assert (total["weight"], total["bits"], total["positions"]) == ("total", "", "")
    assert (total["entries"], total["kept"], total["dense"]) == ("6,416", "1,290", "25,664")
    for column, name in (("sparse", "sparse"), ("shared", "shared"), ("huffman", "coded")):
        assert total[column] == f"{sum(getattr(each, name) for each in parts):,}"
    assert (total["bits/kept"], total["times"]) == (f"{8 * data / 1290:.2f}", f"{25_664 / data:.1f}")
    assert f"{25_664 / data:.1f} times smaller" in contents.notes[0]
    assert contents.notes[0].endswith(f"{25_664 / (data + 100):.1f} times with the header")
    assert contents.lossy


@pytest.mark.parametrize(("value", "bits", "per_kept"), [(0.0, "0", ""), (3.0, "0", "3.20")])
def test_a_weight_of_one_value_takes_that_value_alone(value: float, bits: str, per_kept: str):
    stages = stages_of(np.full(10, value, np.float32))
    found = cells(describe_stages([stages], 0, lossy=False))
    assert stages.coded == 4
    assert (found["bits"], found["bits/kept"], found["times"]) == (bits, per_kept, "10.0")


def test_a_network_without_weights_has_a_table_and_comes_back(tmp_path: Path):
    path = tmp_path / "model.sparse.safetensors"
    model = keras.Sequential([keras.Input((3,)), keras.layers.ReLU()])
    contents = write_model(model, path, bits=(5, 8), huffman=True)
    assert [row[:3] for row in contents.rows] == [("total", "0", "0")]
    assert contents.notes[0].startswith("data 0 bytes, header ")
    assert not contents.lossy
    np.testing.assert_array_equal(load_sparse_model(path)(np.float32([[-1, 0, 2]])), [[0, 0, 2]])
