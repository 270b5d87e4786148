"""The space of a search: how overrides are parsed, and how values are written."""

import sys
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from hookline.scripts.sweep.open import as_text, read_space
from hookline.trainer.config.command import parse_command
from hookline.trainer.errors import UserError
from tests.scripts.sweep.conftest import Run

RATE = "optimizer.learning_rate=tag(log, interval(1e-4, 1e-1))"
COMMAND = parse_command(["-m", "--trials", "3"])


def test_space_consists_of_overrides_with_several_values() -> None:
    texts = ["recipe=bnn", RATE, "seed=range(1,8)", "model.units=choice([64],[128,1])", "x=a,b"]
    fixed, space = read_space(COMMAND, texts)
    assert fixed == ["recipe=bnn"]
    assert space == {
        "optimizer.learning_rate": FloatDistribution(1e-4, 0.1, log=True),
        "seed": IntDistribution(1, 7),
        "model.units": CategoricalDistribution(("[64]", "[128,1]")),
        "x": CategoricalDistribution(("a", "b")),
    }
    texts = ["a=int(interval(2,5))", "b=range(0,1,0.5)", "c=range(0,9,4)", "d=range(1,2.5)", "e=range(-1,1)"]
    assert read_space(COMMAND, texts)[1] == {
        "a": IntDistribution(2, 5),
        "b": CategoricalDistribution(("0.0", "0.5")),
        "c": CategoricalDistribution(("0", "4", "8")),
        "d": CategoricalDistribution(("1.0", "2.0")),
        "e": IntDistribution(-1, 0),
    }


def test_numbers_are_rounded_but_stay_inside_the_interval() -> None:
    interval = FloatDistribution(0.00012345, 0.98765)
    texts = [as_text(value, interval) for value in (0.123456789, 0.00012345, 0.98765)]
    assert texts == ["0.1235", "0.00012345", "0.98765"]  # rounding would move the ends outside
    assert as_text(12345, IntDistribution(1, 20000)) == "12345"


def test_invalid_space_and_missing_optuna_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, message in (
        ("recipe=bnn", "--trials"),
        ("a=interval(2,1)", "not an interval"),
        ("a=interval(0,nan)", "two finite numbers"),
        ("a=range(1,3,0)", "cannot be listed"),
        ("a=range(3,1)", "no value"),
        ("a=tag(log,interval(0,1))", "begins at 0"),
        ("a=tag(fine,interval(0,1))", "'fine'"),
    ):
        with pytest.raises(UserError, match=message):
            read_space(COMMAND, [text])
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"python -m pip install -e '.\[search\]'"):
        run("recipe=bnn", "seed=1,2", "--trials", "2", "--sweep", "s")
    assert not Path("s").exists()
