"""Hooks of several networks and objectives in one traced step."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from hooks.monitors.nan_guard import NanGuard
from tests.support.toy import StatelessHook, ToyObjective, toy_batch, toy_model, values_of
from tests.support.two_networks import NAMES, fresh, traced_loop, watching_pair
from trainer.errors import NonFiniteError
from trainer.hook import GraphHook
from trainer.objective import ObjectiveOutput
from trainer.run.control import Control


class Counter(GraphHook):
    """Count the stages that are traced, and the steps."""

    def __init__(self, network: str = "*", objective: str = "*") -> None:
        self.network, self.objective = network, objective
        self.called: list[tuple[str, str]] = []

    def build(self, context):
        self.count = tf.Variable(0, name="count")

    def state(self):
        return {"count": self.count}

    def writes(self):
        return self.state()

    def _note(self, stage, context, value=None):
        self.called.append((stage, context.objective))
        return value

    def transform_weights(self, weights, context):
        return self._note("transform_weights", context, weights)

    def add_losses(self, context):
        return self._note("add_losses", context, {"extra": tf.constant(0.25)})

    def transform_gradients(self, gradients, context):
        return self._note("transform_gradients", context, gradients)

    def transform_state(self, new_state, context):
        return self._note("transform_state", context, new_state)

    def veto(self, context):
        return self._note("veto", context, {"never": tf.constant(False)})

    def update_ops(self, context):
        self._note("update_ops", context)
        return [self.count.assign_add(1)]

    def project(self, context):
        self._note("project", context)

    def measure(self, context):
        return self._note("measure", context, {"count": tf.convert_to_tensor(self.count)})


class Both(ToyObjective):
    """Train both networks with one loss."""

    name, changes = "both", NAMES

    def __init__(self):
        pass

    def compute(self, forward, batch):
        logits = tf.add_n([forward(name, batch["inputs"]) for name in NAMES])
        return ObjectiveOutput({"entropy": tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits)})


def looped(make, objectives=None, **settings):
    made = []

    def build(key):
        hook = make()
        hook.name = "probe"
        made.append(hook)
        return hook

    loop = traced_loop(fresh(toy_model), objectives or watching_pair(), build, **settings)
    return loop, loop.trainer.hooks


def test_instances_have_states_and_names_of_their_own() -> None:
    loop, hooks = looped(Counter)
    assert loop.run(0, 3) == (3, [])
    assert {hook.name: int(hook.count) for hook in hooks} == {"probe@generator": 3, "probe@discriminator": 3}
    values = loop.accumulators.read()
    for name in NAMES:
        assert values[f"train_{name}/{name}/count"] == 2.0  # the mean of 1, 2 and 3
        assert values[f"train_{name}/loss/{name}/extra"] == 0.25
        assert not any(
            other in key for key in values if key.startswith(f"train_{name}/{name}") for other in {*NAMES} - {name}
        )


def test_one_objective_of_two_networks_keeps_what_their_instances_report_apart() -> None:
    loop, _ = looped(Counter, [Both()])
    assert loop.run(0, 2) == (2, [])
    values = loop.accumulators.read()
    assert {"generator/count", "discriminator/count", "loss/generator/extra", "loss/discriminator/extra"} <= {*values}
    assert loop.veto_names == ["discriminator/never", "generator/never"]


def test_a_single_network_reports_as_if_there_were_no_pattern() -> None:
    loop, (hook,) = looped(lambda: Counter("gen*"))
    assert hook.name == "probe"
    loop.run(0, 1)
    assert {"train_generator/count", "train_generator/loss/extra"} <= {*loop.accumulators.read()}


def test_objective_decides_about_the_stages_of_training_and_not_about_what_the_network_is() -> None:
    networks = fresh(toy_model)
    for each in networks:
        each.shared = True
    first, second = (type("Named", (Both,), {"name": name})() for name in ("first", "second"))
    made = []

    def build(key):
        made.append(Counter("generator", "second"))
        made[-1].name = "probe"
        return made[-1]

    loop = traced_loop(networks, [first, second], build)
    assert loop.run(0, 3) == (3, [])
    (hook,) = made
    by_stage = {stage: [objective for each, objective in hook.called if each == stage] for stage, _ in hook.called}
    assert by_stage.pop("transform_weights") == ["first", "second"]
    assert by_stage.pop("project") == ["first", "second"]
    assert len(by_stage) == 6
    assert all(objectives == ["second"] for objectives in by_stage.values()), by_stage
    assert int(hook.count) == 3
    values = loop.accumulators.read()
    assert "second/count" in values
    assert "first/count" not in values
    assert "first/loss/extra" not in values


def test_batch_is_transformed_once_for_all_networks() -> None:
    class Doubler(StatelessHook):
        network = "*"

        def transform_batch(self, batch, context):
            return {**batch, "inputs": 2.0 * batch["inputs"]}

    seen = []

    class Looking(ToyObjective):
        def compute(self, forward, batch):
            seen.append(tf.reduce_mean(batch["inputs"] / toy_batch(tf.constant(0, tf.int64))["inputs"]))
            output = super().compute(forward, batch)
            output.metrics["factor"] = seen[-1]
            return output

    loop, hooks = looped(Doubler, [Looking(name, name) for name in NAMES])
    assert len(hooks) == 2
    loop.run(0, 1)
    values = loop.accumulators.read()
    assert [values[f"{name}/metric/factor"] for name in NAMES] == pytest.approx([2.0, 2.0])


def poisoned(networks, name):
    """Return a batch function, and give a network a weight that makes its loss NaN."""
    network = next(each for each in networks if each.name == name)
    next(iter(network.trainable_variables.values())).assign(np.full((6, 8), np.nan))


def guarded(bad, objectives=None):
    networks = fresh(toy_model)

    def build(key):
        guard = NanGuard(network="*")
        guard.name = "nan_guard"
        return guard

    loop = traced_loop(networks, objectives or watching_pair(), build)
    poisoned(networks, bad)
    before = {each.name: values_of(each) for each in networks}
    step, vetoes = loop.run(5, 4)
    changed = {
        each.name
        for each in networks
        for key, value in values_of(each).items()
        if not np.array_equal(value, before[each.name][key], equal_nan=True)
    }
    return loop, step, vetoes, changed


def raised(loop, vetoes, step=5):
    run = SimpleNamespace(step=step, vetoes=vetoes, control=Control(), rolled_back=[], networks={})
    with pytest.raises(NonFiniteError) as caught:
        loop.trainer.hooks[0].on_veto(run)
    return str(caught.value)


def test_nan_in_the_second_network_is_caught_and_named() -> None:
    loop, step, vetoes, changed = guarded("generator")  # its objective comes last
    assert step == 5
    assert vetoes
    assert all(veto.startswith("train_generator/generator/") for veto in vetoes)
    assert changed == {"discriminator"}  # before it in the step, so written already
    message = raised(loop, vetoes)
    assert "at step 5: objective 'train_generator', network 'generator': losses cross_entropy, total; grad" in message
    assert "Nothing of objective 'train_generator' was written, nor of those after it in this step." in message


def test_veto_holds_back_the_objectives_that_come_after_it_too() -> None:
    loop, step, vetoes, changed = guarded("discriminator")
    assert step == 5
    assert changed == set()
    assert all(veto.startswith("train_discriminator/discriminator/") for veto in vetoes)
    assert loop.accumulators.read() == {}  # what was not written is not reported
    assert "Nothing of objective 'train_discriminator' was written" in raised(loop, vetoes)


def test_equal_names_of_variables_do_not_hide_which_network_is_bad() -> None:
    loop, _, vetoes, changed = guarded("discriminator", [Both()])
    assert changed == set()
    message = raised(loop, vetoes)
    assert "network 'discriminator': losses entropy, total; gradients of " in message
    assert "network 'generator'" in message  # its gradients come out of the same loss
    assert "No variable was changed by this step." in message


def test_two_hooks_with_one_name_of_a_veto_both_count() -> None:
    class Judge(StatelessHook):
        def __init__(self, name, network, verdict):
            super().__init__(name)
            self.network, self.verdict = network, verdict

        def veto(self, context):
            return {"judged": tf.constant(self.verdict)}

    from tests.support.toy import toy_network
    from trainer.step.loop import ChunkLoop
    from trainer.step.trainer import Trainer

    for verdicts in ((True, False), (False, True)):
        hooks = [Judge(f"judge_{name}", name, verdict) for name, verdict in zip(NAMES, verdicts, strict=True)]
        networks = [toy_network(name) for name in NAMES]
        loop = ChunkLoop(Trainer(networks, [Both()], hooks, seed=0), toy_batch, xla=False)
        assert loop.run(0, 2) == (0, ["judged"])
