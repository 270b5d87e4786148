"""The order of hooks follows declarations, then priority, then name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.toy import StatelessHook
from trainer.errors import UserError
from trainer.hook import HostHook
from trainer.order import first_instances, order_hooks


def named(name: str, **declarations: object) -> StatelessHook:
    hook = StatelessHook(name)
    for key, value in declarations.items():
        setattr(hook, key, value)
    return hook


def names(*hooks: StatelessHook) -> list[str]:
    return [hook.name for hook in order_hooks(hooks)]


def test_name_decides_when_nothing_else_does() -> None:
    assert names(named("c"), named("a"), named("b")) == ["a", "b", "c"]


def test_priority_beats_name() -> None:
    assert names(named("a", priority=90), named("b", priority=10)) == ["b", "a"]


def test_declaration_beats_priority() -> None:
    assert names(named("mask", priority=99, before=("rounding",)), named("rounding", priority=0)) == [
        "mask",
        "rounding",
    ]
    assert names(named("late", priority=0, after=("early",)), named("early", priority=99)) == ["early", "late"]


def test_reading_anothers_state_orders_after_it() -> None:
    assert names(named("a", reads=("z/mask",)), named("z")) == ["z", "a"]


def test_declarations_about_absent_hooks_do_not_count() -> None:
    assert names(named("b", before=("absent",), after=("absent",), conflicts=("absent",)), named("a")) == ["a", "b"]


def test_cycle_names_both_hooks() -> None:
    with pytest.raises(UserError, match="hooks a, b ask to run before and after one another"):
        order_hooks([named("a", before=("b",)), named("b", before=("a",))])


def test_conflict_names_both_hooks_and_the_remedy() -> None:
    with pytest.raises(UserError, match="'a' and 'b' cannot run together.*hooks.b=null"):
        order_hooks([named("a", conflicts=("b",)), named("b")])


def test_repeated_name_is_refused() -> None:
    with pytest.raises(UserError, match="share a name"):
        order_hooks([named("a"), named("a")])


@given(st.permutations(range(6)), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_every_declared_edge_holds_and_the_input_order_does_not_matter(
    permutation: list[int], pairs: list[tuple[int, int]]
) -> None:
    followers: dict[int, set[int]] = {number: set() for number in range(6)}
    for first, second in pairs:
        if first < second:  # edges that go up cannot form a cycle
            followers[first].add(second)
    hooks = {n: named(f"h{n}", before=tuple(f"h{m}" for m in followers[n])) for n in range(6)}
    ordered = names(*(hooks[number] for number in permutation))
    assert ordered == names(*hooks.values())
    for first, successors in followers.items():
        for second in successors:
            assert ordered.index(f"h{first}") < ordered.index(f"h{second}")


def instances(key: str, *networks: str, **declarations: object) -> list[StatelessHook]:
    return [named(f"{key}@{network}", network=network, **declarations) for network in networks]


def test_declarations_speak_of_every_instance_of_a_hook() -> None:
    hooks = [
        *instances("a", "g", "d", priority=0),
        *instances("z", "g", "d", before=("a",)),
        named("m", after=("a",), priority=0),
        named("n", reads=("m/mask",), priority=0),
    ]
    assert names(*hooks) == ["z@d", "z@g", "a@d", "a@g", "m", "n"]
    assert names(*reversed(hooks)) == names(*hooks)


def test_hooks_of_different_networks_do_not_conflict() -> None:
    assert names(*instances("a", "g", conflicts=("b",)), *instances("b", "d")) == ["a@g", "b@d"]
    with pytest.raises(UserError, match="'a@g' and 'b@g' cannot run together.*hooks.b=null"):
        order_hooks([*instances("a", "g", conflicts=("b",)), *instances("b", "d", "g")])


def test_hook_that_watches_the_run_conflicts_whatever_the_network() -> None:
    class Watching(StatelessHook, HostHook):
        def state_dict(self) -> dict:
            return {}

    watching = Watching("b")
    watching.network = "d"
    with pytest.raises(UserError, match="'a@g' and 'b' cannot run together"):
        order_hooks([*instances("a", "g", conflicts=("b",)), watching])


def test_first_instance_stands_for_its_hook() -> None:
    hooks = [*instances("a", "g", "d"), named("b")]
    assert [hook.name for hook in first_instances(hooks)] == ["a@g", "b"]
