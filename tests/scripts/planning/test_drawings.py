"""The drawings of a step: both languages show the same boxes and arrows, and no name breaks them."""

from __future__ import annotations

import re

from hookline.scripts.planning.drawing import as_dot, as_mermaid
from hookline.scripts.planning.plan import Change, ObjectivePlan, Plan, Stage
from hookline.scripts.planning.trace import STEP_STAGES

ODD = (
    'one " alone', "back\\slash", "\\n \\l", "a|b|c", "[x](y)", "{a} ]] )] /]", "<b>&amp;&#35;</b>", "semi;colon",
    "`md`", "end", "a->b --> c -.-> d", "two\nlines", "%% comment // # x", ":::kind",
)  # fmt: skip
"""Names that mean something in one of the languages."""


def test_no_name_breaks_a_drawing():
    for name in ODD:
        objective = ObjectivePlan(
            name, (name,), (name,), dict.fromkeys(STEP_STAGES, (name,)), (Change(name, name, (name,)),),
            (Change(name, name, (name,)),), (Change(name, name, (name,)),),
        )  # fmt: skip
        odd = Plan((Stage("step", "transform_weights", (name,)),), (objective,), {name: name}, ())
        plain = as_dot(odd).replace("\\\\", "").replace('\\"', "")
        assert all(line.count('"') % 2 == 0 for line in plain.splitlines())
        shown = as_mermaid(odd)
        labels = [line for line in shown.splitlines() if '"' in line]
        assert all(line.count('"') == 2 for line in labels)
        assert not any(re.search(r"<(?!br/>)|[`\\]|&", line.split('"')[1]) for line in labels)
