"""The contenders of `what=images` work on one folder, with the same batches to make."""

from __future__ import annotations

import pytest

from scripts.benchmarks.contender import Settings
from scripts.benchmarks.image_input import CONTENDERS
from tests.support.images import write_images


@pytest.mark.parametrize("contender", CONTENDERS[:4], ids=lambda each: each.name)
def test_every_way_makes_batches_again_and_again(tmp_path, contender):
    work = contender.prepare(Settings(str(write_images(tmp_path / "images")), batch_size=4))
    work(3)
    work(20)  # more than an epoch


def test_each_size_has_one_baseline():
    for case in {each.case for each in CONTENDERS}:
        assert [each.name.split(",")[0] for each in CONTENDERS if each.case == case and each.baseline] == ["keras"]
