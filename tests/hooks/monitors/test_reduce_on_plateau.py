"""What is left of the learning rate; tests/resume/test_every_hook_goes_on.py has runs whose rate falls."""

from __future__ import annotations

import pytest

from hookline.hooks.monitors.reduce_on_plateau import ReduceOnPlateau
from hookline.trainer.errors import UserError


@pytest.mark.filterwarnings("ignore:metric/accuracy did not improve")
def test_it_stops_at_the_least_share(make_run) -> None:
    hook, run = ReduceOnPlateau(factor=0.1, patience=1, least=0.005), make_run()
    run.lower_rates = lambda factor: None
    for _ in range(5):
        hook.out_of_patience(run)
    assert hook.summary()["share"] == pytest.approx(0.01)
    with pytest.raises(UserError, match="factor"):
        ReduceOnPlateau(factor=0.0)
