"""Two who write one variable in one step must say who comes first."""

from __future__ import annotations

import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from tests.support.toy import StatelessHook, build_context, toy_loop, toy_network


class Writer(StatelessHook):
    """Assign a number to a shared variable, as often as it has numbers."""

    def __init__(self, name: str, shared: tf.Variable, *numbers: float, **declared: tuple[str, ...]) -> None:
        super().__init__(name)
        self.shared, self.numbers = shared, numbers
        for attribute, names in declared.items():
            setattr(self, attribute, names)

    def state(self):
        return {"shared": self.shared} if self.name == "owner" else {}

    def update_ops(self, context):
        return [self.shared.assign(number) for number in self.numbers]


@pytest.fixture
def shared() -> tf.Variable:
    return tf.Variable(0.0, trainable=False)


@pytest.mark.parametrize("declared", [{"after": ("owner",)}, {"reads": ("owner/shared",)}, {"after": ("between",)}])
def test_the_later_of_two_hooks_with_a_declared_order_decides(shared: tf.Variable, declared: dict) -> None:
    between = StatelessHook("between")
    between.after = ("owner",)
    toy_loop([Writer("other", shared, 2.0, **declared), Writer("owner", shared, 1.0), between]).run(0, 1)
    assert shared.numpy() == 2.0


def test_writers_without_an_order_are_named(shared: tf.Variable) -> None:
    with pytest.raises(UserError, match="'other' and 'owner' both write 'owner/shared'"):
        toy_loop([Writer("owner", shared, 1.0), Writer("other", shared, 2.0)])
    first = Writer("owner", shared, 1.0, 5.0, before=("second", "third"))
    with pytest.raises(UserError, match="'second' and 'third' both write 'owner/shared'"):
        toy_loop([first, Writer("second", shared, 2.0), Writer("third", shared, 3.0)])
    network = toy_network()
    hook = Writer("probe", network.variables["toy/norm/moving_mean"].value)
    hook.build(build_context(network))
    hook.update_ops = lambda context: [hook.shared.assign(tf.zeros([8]))]
    with pytest.raises(UserError, match="'probe' writes 'toy/norm/moving_mean' in update_ops, and so does the step"):
        toy_loop([hook], network=network)
