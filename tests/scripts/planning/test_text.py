"""The tables of a plan: in full nothing is left out; in short nothing is left out without a word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hookline.scripts.planning.plan import Held, Plan, Variable
from hookline.scripts.planning.text import Section, sections
from tests.support.plan import Clip, pair_loop, plan_of


@pytest.fixture(scope="module")
def pair() -> Plan:
    return plan_of(pair_loop([Clip("clip_first", "first"), Clip("clip_second", "second")]))


def section(plan: Plan, words: str, *, full: bool) -> Section:
    (found,) = [each for each in sections(plan, full=full) if each.title.startswith(words)]
    return found


def plan_with(variables: tuple[Variable, ...], **changes: object) -> Plan:
    return replace(Plan((), (), {"model": "Functional 'net'"}, variables), **changes)


def test_in_short_variables_of_one_role_in_a_layer_share_a_row(pair: Plan):
    assert section(pair, "Variables of network 'first'", full=False).rows == (
        ("toy/hidden", "kernel 6x8", "float32", "192 B", "trainable, projected by clip_first"),
        ("toy/hidden", "bias 8", "float32", "32 B", "trainable"),
        ("toy/norm", "gamma 8, beta 8", "float32", "64 B", "trainable"),
        ("toy/norm", "moving_mean 8, moving_variance 8", "float32", "64 B", "state"),
        ("dropout", "seed_generator_state 2", "int64", "16 B", "state"),
        ("toy/logits", "kernel 8x3, bias 3", "float32", "108 B", "trainable"),
        ("total trainable", "6 variables, 99 entries", "float32", "396 B", ""),
        ("total state", "3 variables, 18 entries", "float32, int64", "80 B", ""),
    )


def test_memory_is_totalled_without_what_takes_anothers_place():
    items = (Held("data", 2**20, "3 examples"), Held("gradients", 2**19), Held("an evaluation", 2**30, "later", False))
    plan = plan_with((), memory=items)
    assert plan.total_bytes == 2**20 + 2**19
    rows = section(plan, "Memory", full=False).rows
    assert [row[:2] for row in rows] == [
        ("data", "1.00 MiB"),
        ("gradients", "512.00 KiB"),
        ("an evaluation", "(1.00 GiB)"),
        ("total", "1.50 MiB"),
    ]
