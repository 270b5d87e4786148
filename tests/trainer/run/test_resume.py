"""The fingerprint of the data: equal for equal contents, different wherever something differs."""

import numpy as np

from hookline.trainer.input.data import Split
from hookline.trainer.input.source import ArraySource
from hookline.trainer.run.checkpoint_files import tensors_digest
from hookline.trainer.run.resume import SAMPLES, data_fingerprint


def fingerprint(name="train", size=10, rows=None, change=None):
    inputs = np.arange(size * 3, dtype=np.float32).reshape(size, 3)
    if change is not None:
        inputs[change] += 1.0
    source = ArraySource({"inputs": inputs, "targets": np.arange(size) % 4}, lambda batch: batch)
    return data_fingerprint([Split(name, source, np.array(range(size) if rows is None else rows, np.int64))])


def test_other_data_has_another_fingerprint_also_where_it_is_sampled():
    others = [{"change": (4, 2)}, {"rows": [1, 0, *range(2, 10)]}, {"rows": range(9)}, {"size": 11, "rows": range(10)}]
    found = {fingerprint(**other) for other in [*others, {"name": "validation"}, {}]}
    assert len(found) == 6
    assert fingerprint() in found
    size = 100 * SAMPLES
    ends = [None, (0, 0), (size - 1, 2)]
    assert len({fingerprint(size=size, change=change) for change in ends}) == 3


def test_a_digest_distinguishes_names_dtypes_shapes_and_bits():
    base = {"a": np.array([1.0, 2.0], np.float32), "b": np.array(3)}
    assert tensors_digest(base) == tensors_digest(dict(reversed(base.items())))
    changed = [base["a"].astype(np.float64), base["a"][None], np.nextafter(base["a"], np.float32(9)), base["a"] * -1]
    others = [{"a": base["a"], "c": base["b"]}, *({**base, "a": each} for each in changed)]
    zeros = [{"a": np.array([zero], np.float32)} for zero in (0.0, -0.0)]
    assert len({tensors_digest(each) for each in [base, *others, *zeros]}) == 8
