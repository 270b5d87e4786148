"""The drawings of a step: both languages say the same, and no name breaks them."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.drawings import Drawing, read_dot, read_mermaid
from tests.support.plan import Classic, Clip, pair_loop, plan_of
from tests.support.toy import StatelessHook, toy_loop, toy_network
from trainer.plan import dot, mermaid
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


@pytest.mark.parametrize(("draw", "read"), LANGUAGES)
def test_the_drawing_shows_networks_stages_hooks_and_updates_with_what_they_write(
    draw: Callable, read: Callable, pair: Plan
):
    drawing = read(draw(pair))
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


@pytest.mark.parametrize(("draw", "read"), LANGUAGES)
def test_a_veto_stands_before_all_that_is_written(draw: Callable, read: Callable, pair: Plan):
    drawing = read(draw(pair))
    veto = key_of(drawing, "veto", "hook clip_first")
    written = drawing.inside["objective_0_updates"]
    apply = key_of(drawing, "apply_gradients", "Adam of first")
    assert len(written) == 3
    for key in (*written, apply):
        assert (veto, key, "unless vetoed", True) in drawing.arrows


@pytest.mark.parametrize(("draw", "read"), LANGUAGES)
def test_no_veto_stops_what_the_forward_pass_writes(draw: Callable, read: Callable):
    drawing = read(draw(plan_of(toy_loop([Classic(veto=True)]))))
    classic = key_of(drawing, "AssignAddVariableOp", "added by the forward pass")
    moments = key_of(drawing, "2 x AssignVariableOp")
    (veto,) = [start for start, end, label, _ in drawing.arrows if (end, label) == (moments, "unless vetoed")]
    assert (veto, classic, "unless vetoed", True) not in drawing.arrows
    apply = key_of(drawing, "apply_gradients")
    assert {(classic, apply), (moments, apply), (veto, apply)} <= arrows_of(drawing)


def test_both_languages_draw_the_same(pair: Plan):
    assert read_dot(as_dot(pair)) == read_mermaid(as_mermaid(pair))


@pytest.mark.parametrize(("draw", "read"), LANGUAGES)
@pytest.mark.parametrize("name", ODD)
def test_no_name_breaks_a_drawing(draw: Callable, read: Callable, name: str):
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


class Everywhere(StatelessHook):
    """Have something to do in every stage."""

    def transform_batch(self, batch, context):
        return batch

    def transform_weights(self, weights, context):
        return weights

    def transform_statistics(self, state, context):
        return state

    def transform_gradients(self, gradients, context):
        return gradients

    def transform_state(self, new_state, context):
        return new_state


@pytest.mark.parametrize(("draw", "read"), LANGUAGES)
def test_stages_stand_where_they_run(draw: Callable, read: Callable):
    drawing = read(draw(plan_of(toy_loop([Everywhere("x")]))))
    key = {name: key_of(drawing, name, "hook x") for name in ("transform_batch", "transform_weights")}
    key |= {name: key_of(drawing, name, "hook x") for name in ("transform_gradients", "transform_state")}
    key["transform_statistics"] = key_of(drawing, "transform_statistics", "hook x")
    forward, computed = key_of(drawing, "forward"), key_of(drawing, "compute_gradients")
    apply, moments = key_of(drawing, "apply_gradients"), key_of(drawing, "2 x AssignVariableOp")
    chain = ["batch", key["transform_batch"], forward, key["transform_state"], moments, apply]
    assert set(itertools.pairwise(chain)) <= arrows_of(drawing)
    chain = ["network_0", key["transform_weights"], key["transform_statistics"], forward]
    assert set(itertools.pairwise(chain)) <= arrows_of(drawing)
    chain = [computed, key["transform_gradients"], apply]
    assert set(itertools.pairwise(chain)) <= arrows_of(drawing)
    assert (computed, apply) not in arrows_of(drawing)
    assert (forward, moments) not in arrows_of(drawing)


def test_an_objective_that_changes_nothing_can_be_drawn():
    plan = plan_of(toy_loop(network=toy_network()))
    (objective,) = plan.objectives
    idle = replace(objective, updates=(), applies=(), changes=())
    assert read_dot(as_dot(replace(plan, objectives=(idle, idle)))).frames.keys() == {"objective_0", "objective_1"}


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_takes_the_digraphs(pair: Plan):
    text = "".join(as_dot(replace(pair, networks={"first": name, "second": name})) for name in ("plain", *ODD))
    done = subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "syntax error" not in done.stderr
    assert done.stdout.count("</svg>") == 1 + len(ODD)


@pytest.mark.parametrize("quote", [dot.quote, mermaid.quote])
def test_a_label_is_one_line_of_the_file(quote: Callable):
    assert "\n" not in quote(["a\nb", "c\r\nd"])
    assert quote(["", "a"])[0] == quote(["", "a"])[-1] == '"'
