"""The learning rate range test: rates rise by a constant factor until the loss diverges, and a plot is drawn."""

import numpy as np
import pytest

from hookline.scripts import find_rate
from hookline.scripts.find_rate import Found, diverges, find, main, parse
from tests.support.refusals import assert_refused


def test_rates_rise_until_the_loss_diverges(tmp_path, capsys, monkeypatch) -> None:
    made: list[Found] = []
    monkeypatch.setattr(find_rate, "find", lambda *asked: made.append(find(*asked)) or made[0])
    picture = tmp_path / "rates.png"
    command = ["recipe=baseline", "model.units=[16]", "optimizer=sgd", "count=60", "lowest=1e-4", "highest=1e4"]
    assert main([*command, f"picture={picture}"]) == 0
    assert picture.stat().st_size > 5000
    shown = capsys.readouterr().out
    assert "1.00e-04" in shown
    assert "try optimizer.learning_rate=" in shown
    (found,) = made
    assert found.rates[1] / found.rates[0] == pytest.approx(1e8 ** (1 / 59))
    assert found.losses[0] > 2.0 > min(found.losses)
    assert 1e-3 < found.steepest <= found.lowest
    noise = [1.0 + 0.5 * 0.8**step for step in range(40)]  # in the first batches, before the rate matters
    fall = [1.0 - 0.9 / (1.0 + 1.2 ** (80 - step)) for step in range(40, 120)]
    shown = Found([10.0 ** (step / 20 - 6) for step in range(120)], [*noise, *fall], picture)
    assert 70 <= shown.rates.index(shown.steepest) <= 90
    wave = (np.sin(np.arange(60)) - 0.05 * np.arange(60)).tolist()  # around 0, then below it
    assert not any(diverges(wave[:count]) for count in range(1, 61))
    assert diverges([*wave, 2000.0])
    assert_refused(r"exists already\. Expected another file\.$", parse, [*command, f"picture={picture}"])
    assert_refused("init_from=<run>", parse, [f"picture={tmp_path}/b.png", "resume=runs/a"])
    assert_refused("rising range", parse, ["recipe=baseline", "lowest=1", "highest=0.1"])
