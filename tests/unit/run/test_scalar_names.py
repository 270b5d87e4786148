"""Every scalar is in a documented namespace, also behind the names of objectives and networks."""

from __future__ import annotations

import pytest

from trainer.run.scalar_names import NAMESPACES, OWN, TECHNIQUES, TRAINERS, explain, namespace_of

SCOPES = ("generator", "generators", "local_generators")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("loss/total", "loss"),
        ("metric/attention/mean", "metric"),
        ("generator/loss/total", "loss"),
        ("local_generators/generators/ema/decay", "ema"),
        ("generator/generator/ema/decay", "ema"),
        ("grad_norm/after/clip_gradients", "grad_norm"),
        ("time/hooks_ms/progress", "time"),
        ("my_hook/share", "my_hook"),
        ("generator/my_hook/share", "my_hook"),
        ("total", None),
        ("loss", None),
        ("other/share", None),
        ("other/loss/total", None),
        ("generator/total", None),
        ("my_hooks/share", None),
    ],
)
def test_the_namespace_stands_behind_objective_and_network(name: str, expected: str | None) -> None:
    assert namespace_of(name, hooks=["my_hook"], scopes=SCOPES) == expected


def test_each_namespace_that_is_used_is_explained_once_in_order() -> None:
    names = ["generator/opt/learning_rate", "loss/total", "loss/center", "my_hook/share", "nowhere"]
    found = explain(names, hooks=["my_hook"], scopes=SCOPES)
    assert list(found) == ["opt", "loss", "my_hook"]
    assert found["loss"] == NAMESPACES["loss"]
    assert found["my_hook"] == OWN


def test_a_line_of_a_namespace_fits_a_screen_and_none_is_of_both_kinds() -> None:
    assert TRAINERS.keys().isdisjoint(TECHNIQUES)
    for name, text in NAMESPACES.items():
        assert name.isidentifier()
        assert 20 < len(text) <= 110
        assert not text.endswith(".")
