"""The order of hooks follows declarations, then priority, then name."""

from hypothesis import given
from hypothesis import strategies as st

from hookline.trainer.hook import HostHook
from hookline.trainer.order import order_hooks
from tests.support.refusals import assert_refused
from tests.support.toy import StatelessHook


def named(name, **declarations):
    hook = StatelessHook(name)
    for key, value in declarations.items():
        setattr(hook, key, value)
    return hook


def names(*hooks):
    return [hook.name for hook in order_hooks(hooks)]


def instances(key, *networks, **declarations):
    return [named(f"{key}@{network}", network=network, **declarations) for network in networks]


def test_declarations_decide_then_priority_then_the_name():
    assert names(named("c"), named("a", priority=90), named("b")) == ["b", "c", "a"]
    assert names(named("mask", priority=99, before=("round",)), named("round", priority=0)) == ["mask", "round"]
    assert names(named("late", priority=0, after=("early",)), named("early", priority=99)) == ["early", "late"]
    assert names(named("a", reads=("z/mask",)), named("z")) == ["z", "a"]


def test_what_cannot_be_ordered_is_refused_with_both_names():
    class Watching(StatelessHook, HostHook):
        def state_dict(self):
            return {}

    watching = Watching("b")
    watching.network = "d"
    for hooks, message in (
        ([named("a", before=("b",)), named("b", before=("a",))], "hooks a, b "),
        ([named("a", conflicts=("b",)), named("b")], "'a' and 'b' cannot run together.*hooks.b=null"),
        ([named("a"), named("a")], "share a name"),
        ([*instances("a", "g", conflicts=("b",)), *instances("b", "d", "g")], "'a@g' and 'b@g'"),
        ([*instances("a", "g", conflicts=("b",)), watching], "'a@g' and 'b'"),  # it watches the run
    ):
        assert_refused(message, order_hooks, hooks)
    assert names(*instances("a", "g", conflicts=("b",)), *instances("b", "d")) == ["a@g", "b@d"]


@given(st.permutations(range(6)), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_every_declared_edge_holds_and_the_input_order_does_not_matter(permutation, pairs):
    followers = {number: set() for number in range(6)}
    for first, second in pairs:
        if first < second:  # edges that go up cannot form a cycle
            followers[first].add(second)
    hooks = {n: named(f"h{n}", before=tuple(f"h{m}" for m in followers[n])) for n in range(6)}
    ordered = names(*(hooks[number] for number in permutation))
    assert ordered == names(*hooks.values())
    for first, successors in followers.items():
        for second in successors:
            assert ordered.index(f"h{first}") < ordered.index(f"h{second}")


def test_declarations_speak_of_every_instance_of_a_hook():
    hooks = [
        *instances("a", "g", "d", priority=0),
        *instances("z", "g", "d", before=("a",)),
        named("m", after=("a",), priority=0),
        named("n", reads=("m/mask",), priority=0),
    ]
    assert names(*hooks) == ["z@d", "z@g", "a@d", "a@g", "m", "n"]
    assert names(*reversed(hooks)) == names(*hooks)
