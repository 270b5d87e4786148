"""From epochs to steps."""

from __future__ import annotations

from hookline.hooks.options import epoch_start


def test_an_epoch_starts_at_the_first_step_after_it_was_drawn():
    for epoch, per_epoch, step in ((2, 19.64, 40), (1, 7.5, 8), (2, 7.5, 15), (0, 7.5, 0), (0.01, 10, 1)):
        assert epoch_start(epoch, per_epoch) == step
    for tenths in range(1, 30):  # rounding of floats makes no step of its own
        assert epoch_start(0.1 * tenths, 100) == 10 * tenths
