"""The tables of a plan: in full nothing is left out; in short nothing is left out without a word."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import tensorflow as tf

from tests.support.plan import Clip, markdown_of, pair_loop, plan_of
from tests.support.toy import StatelessHook, toy_loop, toy_network
from trainer.plan.markdown import as_markdown
from trainer.plan.plan import HOOK, NETWORK, OPTIMIZER, Held, Metrics, Plan, Stage, Variable
from trainer.plan.sections import SHOWN_METRICS, SHOWN_ROWS, Section, sections


@pytest.fixture(scope="module")
def pair() -> Plan:
    return plan_of(pair_loop([Clip("clip_first", "first"), Clip("clip_second", "second")]))


def section(plan: Plan, words: str, *, full: bool) -> Section:
    (found,) = [each for each in sections(plan, full=full) if each.title.startswith(words)]
    return found


def layers(count: int, kind: str) -> tuple[Variable, ...]:
    """Return a kernel of 4 bytes and a bias of 8 for each of many layers."""
    return tuple(
        Variable(kind, "model", f"layer_{n}/{leaf}", f"layer_{n}", (size,), "float32", size, 4 * size, "trainable")
        for n in range(count)
        for leaf, size in (("kernel", 1), ("bias", 2))
    )


def plan_with(variables: tuple[Variable, ...], **changes: object) -> Plan:
    return replace(Plan((), (), {"model": "Functional 'net'"}, variables), **changes)


def test_in_full_every_op_and_every_variable_has_a_row(pair: Plan):
    for objective in pair.objectives:
        rows = section(pair, f"Update ops of objective '{objective.name}'", full=True).rows
        assert [row[1] for row in rows] == [", ".join(each.writes) for each in objective.updates]
    shown = [
        (row[0], row[1])
        for each in sections(pair, full=True)
        if each.columns[0] == "variable"
        for row in each.rows
        if not row[0].startswith("total")
    ]
    assert shown == [(each.name, str(each.shape)) for each in pair.variables]


def test_each_network_optimizer_and_hook_has_a_table(pair: Plan):
    titles = [each.title for each in sections(pair, full=False) if "ariables of" in each.title or "State" in each.title]
    assert titles == [
        "Variables of network 'first': Sequential 'toy'",
        "Variables of network 'second': Sequential 'toy'",
        "Variables of the optimizer of network 'first'",
        "Variables of the optimizer of network 'second'",
        "State of hook 'clip_first'",
        "State of hook 'clip_second'",
    ]


def test_what_comes_after_the_update_ops_stands_in_order(pair: Plan):
    assert section(pair, "After the update ops of objective 'two'", full=False).rows == (
        ("apply", "SGD of second", "kernel, bias of toy/hidden, toy/logits; gamma, beta of toy/norm"),
        ("project", "clip_second", "toy/hidden/kernel"),
        ("measure", "clip_second", ""),
    )


def test_in_short_the_variables_of_a_layer_share_a_row_where_their_role_is_the_same(pair: Plan):
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


def test_in_short_the_slots_of_a_kind_share_a_row_and_no_role_takes_a_column(pair: Plan):
    found = section(pair, "Variables of the optimizer of network 'first'", full=False)
    assert found.columns == ("", "variables", "dtype", "bytes")
    assert found.rows == (
        ("iteration", "scalar", "int64", "8 B"),
        ("learning_rate", "scalar", "float32", "4 B"),
        ("momentums", "6 variables, 99 entries", "float32", "396 B"),
        ("velocities", "6 variables, 99 entries", "float32", "396 B"),
        ("total", "14 variables, 200 entries", "int64, float32", "804 B"),
    )


@pytest.mark.parametrize(
    ("kind", "title"), [(NETWORK, "Variables of network 'model'"), (HOOK, "State of hook 'model'")]
)
@pytest.mark.parametrize("count", [SHOWN_ROWS, SHOWN_ROWS + 1, SHOWN_ROWS + 2, 500])
def test_a_long_table_says_how_many_rows_variables_and_bytes_it_does_not_show(kind: str, title: str, count: int):
    plan = plan_with(layers(count, kind))
    *rows, total = section(plan, title, full=False).rows
    assert total[:2] == ("total trainable", f"{2 * count:,} variables, {3 * count:,} entries")
    if count <= SHOWN_ROWS + 1:
        assert [row[0] for row in rows] == [f"layer_{number}" for number in range(count)]
        return
    lost = count - SHOWN_ROWS
    assert len(rows) == SHOWN_ROWS + 1
    (middle,) = [row for row in rows if row[0].startswith("...")]
    assert middle[0] == f"... {lost} more rows ..."
    assert middle[1] == f"{2 * lost} variables, {3 * lost:,} entries: --full shows them"
    assert (rows[0][0], rows[-1][0]) == ("layer_0", f"layer_{count - 1}")
    assert len(section(plan, title, full=True).rows) == 2 * count + 1


def test_many_metrics_are_shortened_but_not_in_full():
    names = tuple(f"bnn/flip_ratio/layer_{number}" for number in range(100))
    plan = plan_with((), metrics=Metrics(names, names[:3], "x of the validation split, maximal"))
    short, full = (section(plan, "Metrics", full=full).rows for full in (False, True))
    assert f"... {100 - SHOWN_METRICS} more ..." in short[0][1]
    assert full[0] == ("training", ", ".join(names))
    assert short[1:] == full[1:] == (("evaluation", ", ".join(names[:3])), ("monitor", plan.metrics.monitor))


def test_memory_is_totalled_without_what_comes_in_place_of_something_larger():
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


def test_what_is_not_there_is_called_none():
    plan = plan_of(toy_loop(network=toy_network()))
    assert section(plan, "Stages", full=True).rows == ()
    assert "## Stages, as they run\n\nnone\n" in as_markdown(plan)
    assert section(plan, "Metrics", full=True).rows[1] == ("evaluation", "none")
    assert not [each for each in sections(plan, full=True) if "Memory" in each.title or each.title == "Run"]


def test_an_update_of_an_undeclared_variable_is_not_passed_over():
    class Hidden(StatelessHook):
        def build(self, context):
            self.secret = tf.Variable(0.0)

        def update_ops(self, context):
            return [self.secret.assign_add(1.0)]

    rows = section(plan_of(toy_loop([Hidden()])), "Update ops", full=False).rows
    assert rows[-1] == ("AssignAddVariableOp", "nothing that the run knows of", "probe")


def test_markdown_has_stages_updates_variables_and_metrics():
    plan = markdown_of(toy_loop([Clip()], network=toy_network()))
    assert "| step | project | clip |" in plan
    assert "transform_batch" not in plan
    assert "| AssignVariableOp | toy/norm/moving_mean | the trainer, for moving statistics |" in plan
    assert "| AssignAddVariableOp | clip/count | clip |" in plan
    assert "| toy/hidden/kernel | (6, 8) | float32 | 192 B | trainable, projected by clip |" in plan
    assert "| toy/norm/moving_mean | (8,) | float32 | 32 B | state |" in plan
    assert "| apply | SGD of model | toy/hidden/kernel, toy/hidden/bias," in plan
    assert "| training | loss/cross_entropy, loss/total, metric/accuracy, clip/count, grad_norm/before |" in plan
    assert "| loss/ | what training minimises" in plan


def test_no_name_breaks_a_table_of_markdown():
    odd = Stage("step", "measure", ("a|b", "<script>x</script>", "back\\|slash", "two\nlines"))
    text = as_markdown(replace(plan_with(()), stages=(odd,), facts={"recipe": "x|y"}))
    (line,) = [line for line in text.splitlines() if "measure" in line]
    cells = re.split(r"(?<!\\)(?:\\\\)*\|", line)
    assert len(cells) == 5
    assert "<script" not in text
    assert all(len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 3 for row in text.splitlines() if row.startswith("| rec"))


def test_kinds_are_listed_networks_first(pair: Plan):
    kinds = [each.kind for each in pair.variables]
    assert kinds == sorted(kinds, key=[NETWORK, OPTIMIZER, HOOK].index)
