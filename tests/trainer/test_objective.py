"""Networks and objectives that do not fit together are refused."""

from hookline.trainer.step.trainer import Trainer
from tests.support.refusals import assert_refused
from tests.support.toy import ToyObjective, toy_network

REFUSED = [
    ({"fixed": True}, "'second' is fixed"),
    ({"untrained": True}, "No objective changes the network 'second'"),
    ({"network": "first"}, "named 'first'"),
    ({"objective": "one"}, "objectives are named 'one'"),
    ({"model": True}, "'first' and 'second' share the variable"),
    ({"optimizer": True}, "'first' and 'second' share one optimizer"),
    ({"changes": ("third",)}, "'third'"),
    ({"changes": ("first", "second")}, "'one' and 'two' change the network 'first'"),
]


def test_what_does_not_fit_is_refused():
    for change, match in REFUSED:
        first, second = toy_network("first"), toy_network(change.get("network", "second"))
        second.fixed = "fixed" in change
        second.model = first.model if "model" in change else second.model
        second.optimizer = first.optimizer if "optimizer" in change else second.optimizer
        objectives = [ToyObjective("first", "one"), ToyObjective("second", change.get("objective", "two"))]
        objectives[1].trains = change.get("changes", objectives[1].trains)
        assert_refused(match, Trainer, [first, second], objectives[: 1 if "untrained" in change else 2], [], seed=0)
    first, second = toy_network("first"), toy_network("second")
    first.shared = True
    objectives = [ToyObjective("first", "one"), ToyObjective("second", "two")]
    objectives[1].trains = ("first", "second")
    Trainer([first, second], objectives, [], seed=0)
    objectives[1].updates = 0
    assert_refused("updates=0", Trainer, [first, second], objectives, [], seed=0)
