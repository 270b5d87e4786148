"""From epochs to steps."""

from __future__ import annotations

import pytest

from hooks.epochs import epoch_start


@pytest.mark.parametrize(
    ("epoch", "steps_per_epoch", "step"),
    [(2, 19.64, 40), (1, 7.5, 8), (2, 7.5, 15), (0, 7.5, 0), (0.5, 10, 5), (0.01, 10, 1)],
)
def test_an_epoch_starts_at_the_first_step_after_it_was_drawn(epoch: float, steps_per_epoch: float, step: int):
    assert epoch_start(epoch, steps_per_epoch) == step


@pytest.mark.parametrize("tenths", range(1, 30))
def test_rounding_of_floats_makes_no_step_of_its_own(tenths: int):
    assert epoch_start(0.1 * tenths, 100) == 10 * tenths
