from __future__ import annotations

import pytest

from hookline.trainer.run.process import estimated


def test_what_cannot_be_told_is_left_out_with_a_warning() -> None:
    assert estimated("The plan", lambda: 3, 0) == 3
    with pytest.warns(UserWarning, match=r"The plan cannot be estimated.*KeyError: 'a'"):
        assert estimated("The plan", lambda: {}["a"], 0) == 0
