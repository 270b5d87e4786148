"""The drawings of a step: both languages say the same, and no name breaks them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.support.drawings import Drawing, read_dot, read_mermaid
from tests.support.plan import Clip, pair_loop, plan_of
from trainer.plan.dot import as_dot
from trainer.plan.mermaid import as_mermaid
from trainer.plan.plan import Apply, ObjectivePlan, Plan, Projection, Stage, Update
from trainer.plan.stages import STEP_STAGES

LANGUAGES = [(as_dot, read_dot), (as_mermaid, read_mermaid)]
ODD = (
    'a "quoted" name', "it's", "back\\slash", "\\n \\l \\G", "a|b|c", "[x](y)", "{a} ]] )] /]", "<b>&amp;&#35;</b>",
    "#quot; #35;", "semi;colon", "`md`", "1. list", "- list", "end", "a->b --> c -.-> d", "two\nlines\ttab",
    "ünïcödé 中", "%% comment // # x", "subgraph x", ":::kind", "$x$",
)  # fmt: skip
"""Names that mean something in one of the languages."""


@pytest.fixture(scope="module")
def pair() -> Plan:
    """Return the plan of two networks and two objectives, with a hook for each."""
    return plan_of(pair_loop([Clip("clip_first", "first", veto=True), Clip("clip_second", "second")]))


def key_of(drawing: Drawing, *words: str) -> str:
    """Return the key of the one box whose label has all these lines."""
    (key,) = [key for key, lines in drawing.boxes.items() if set(words) <= set(lines)]
    return key


def arrows_of(drawing: Drawing) -> set[tuple[str, str]]:
    return {(start, end) for start, end, _, _ in drawing.arrows}


def test_the_drawing_shows_networks_stages_hooks_and_what_they_write(pair: Plan):
    drawing = read_dot(as_dot(pair))
    assert drawing == read_mermaid(as_mermaid(pair))
    first, second = (key_of(drawing, f"network {name}", "Sequential 'toy'") for name in ("first", "second"))
    assert list(drawing.frames.values()) == ["objective one", "UPDATE_OPS", "objective two", "UPDATE_OPS"]
    forward = key_of(drawing, "forward", "runs first", "runs second")
    assert {(first, forward), (second, forward), ("batch", forward)} <= arrows_of(drawing)
    count = key_of(drawing, "AssignAddVariableOp", "clip_second/count", "added by clip_second")
    moments = key_of(drawing, "2 x AssignVariableOp", "moving_mean, moving_variance of second/toy/norm")
    apply = key_of(drawing, "apply_gradients", "SGD of second", "kernel, bias of toy/hidden, toy/logits")
    project = key_of(drawing, "project", "hook clip_second", "toy/hidden/kernel")
    measure = key_of(drawing, "measure", "hook clip_second")
    assert (count, apply, "control dependency", True) in drawing.arrows
    assert (moments, apply, "control dependency", True) in drawing.arrows
    assert (forward, moments, "new state", False) in drawing.arrows
    assert (apply, project, "", True) in drawing.arrows
    assert (project, measure, "", True) in drawing.arrows
    assert {count, moments} == set(drawing.inside["objective_1_updates"])
    assert {forward, apply, project, measure} <= set(drawing.inside["objective_1"])
    before = key_of(drawing, "measure", "hook clip_first")
    assert (before, drawing.inside["objective_1"][0], "then", True) in drawing.arrows

    veto = key_of(drawing, "veto", "hook clip_first")
    written = drawing.inside["objective_0_updates"]
    apply = key_of(drawing, "apply_gradients", "Adam of first")
    assert len(written) == 3
    for key in (*written, apply):
        assert (veto, key, "unless vetoed", True) in drawing.arrows


@pytest.mark.parametrize(("name", "language"), list(itertools.product(ODD, LANGUAGES)))
def test_no_name_breaks_a_drawing(name: str, language: tuple[Callable, Callable]):
    draw, read = language
    objective = ObjectivePlan(
        name, (name,), (name,), dict.fromkeys(STEP_STAGES, (name,)), (Update(name, (name,), name),),
        (Apply(name, name, (name,)),), (Projection(name, name, (name,)),),
    )  # fmt: skip
    drawing = read(draw(Plan((Stage("step", "transform_batch", (name,)),), (objective,), {name: name}, ())))
    shown = " ".join(name.split())
    assert f"objective {shown}" in drawing.frames.values()
    for stage in STEP_STAGES:
        if stage != "update_ops":
            assert key_of(drawing, stage, f"hook {shown}")
    assert key_of(drawing, shown, f"added by {shown}")
    assert key_of(drawing, "apply_gradients", f"{shown} of {shown}")
    assert key_of(drawing, f"network {shown}", shown)
