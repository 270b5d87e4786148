"""The drawings of a step: both languages show the same boxes and arrows, and no name breaks them."""

from __future__ import annotations

import re

import pytest

from hookline.scripts.planning.drawing import as_dot, as_mermaid
from hookline.scripts.planning.plan import Apply, ObjectivePlan, Plan, Projection, Stage, Update
from hookline.scripts.planning.trace import STEP_STAGES
from tests.support.plan import Clip, pair_loop, plan_of

ODD = (
    'one " alone', "back\\slash", "\\n \\l", "a|b|c", "[x](y)", "{a} ]] )] /]", "<b>&amp;&#35;</b>", "semi;colon",
    "`md`", "end", "a->b --> c -.-> d", "two\nlines", "%% comment // # x", ":::kind",
)  # fmt: skip
"""Names that mean something in one of the languages."""


def test_both_drawings_show_networks_stages_hooks_and_what_they_write():
    plan = plan_of(pair_loop([Clip("clip_first", "first", veto=True), Clip("clip_second", "second")]))
    dot, mermaid = as_dot(plan), as_mermaid(plan)
    words = ["network first", "network second", "objective one", "objective two", "UPDATE_OPS", "AssignAddVariableOp"]
    words += [
        "clip_second/count",
        "added by clip_second",
        "SGD of second",
        "Adam of first",
        "unless vetoed",
        "new state",
    ]
    for text in (dot, mermaid):
        assert [word for word in words if word not in text] == []
    boxes = len(re.findall(r"^ *\w+ \[label=", dot, re.MULTILINE))
    assert boxes == len(re.findall(r":::\w+$", mermaid, re.MULTILINE)) > 10
    dashed = len(re.findall(r"style=\"?dashed", dot))
    assert dashed == len(re.findall(r" -\.->", mermaid)) > 5  # control dependencies
    assert dot.count(" -> ") == dashed + len(re.findall(r" -->", mermaid))


@pytest.mark.parametrize("name", ODD)
def test_no_name_breaks_a_drawing(name: str):
    objective = ObjectivePlan(
        name, (name,), (name,), dict.fromkeys(STEP_STAGES, (name,)), (Update(name, (name,), name),),
        (Apply(name, name, (name,)),), (Projection(name, name, (name,)),),
    )  # fmt: skip
    odd = Plan((Stage("step", "transform_weights", (name,)),), (objective,), {name: name}, ())
    plain = as_dot(odd).replace("\\\\", "").replace('\\"', "")
    assert all(line.count('"') % 2 == 0 for line in plain.splitlines())
    shown = as_mermaid(odd)
    labels = [line for line in shown.splitlines() if '"' in line]
    assert all(line.count('"') == 2 for line in labels)
    assert not any(re.search(r"<(?!br/>)|[`\\]|&", line.split('"')[1]) for line in labels)
