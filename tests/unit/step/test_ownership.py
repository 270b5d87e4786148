"""Networks belong to objectives: nobody else changes them, by any route."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.pairs import Fool, Judge, discriminator, generator, pairs_loop, samples
from tests.support.toy import StatelessHook, ToyObjective, toy_network
from trainer.errors import UserError
from trainer.network import Network
from trainer.objective import Objective, ObjectiveOutput
from trainer.step.copy_network import fingerprint, snapshot
from trainer.step.ownership import find_objective
from trainer.step.trainer import Trainer
from trainer.step.writes import all_writes


def local_pair() -> list[Network]:
    return [generator("generator_0"), discriminator("discriminator_0")]


def local_objectives() -> list[Objective]:
    return [
        Judge("local_discriminators", "discriminator_0", ["generator_0"]),
        Fool("local_generators", "generator_0", ["discriminator_0"]),
    ]


def global_judge(kind: type[Judge] = Judge) -> Judge:
    return kind("global_discriminator", "global_discriminator", ["generator_0"])


def sgan(judge: Judge) -> tuple[list[Network], list[Objective]]:
    """Return a local pair, and a global discriminator that judges the local generator."""
    return [*local_pair(), discriminator("global_discriminator")], [*local_objectives(), judge]


class TrainsTheGenerator(Judge):
    """Train the local generator through the global discriminator, as the published re-implementation does."""

    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        made = samples(forward, "generator_0", batch)
        output.losses["fooled"] = tf.nn.softplus(-forward(self.network, made)[:, 0])
        return output


def test_the_published_bug_as_a_network_that_two_objectives_change_is_named() -> None:
    judge = global_judge(TrainsTheGenerator)
    judge.changes = ("global_discriminator", "generator_0")
    message = (
        "objectives 'local_generators' and 'global_discriminator' change the network 'generator_0', which one "
        "objective alone may own. Take it out of the `changes` of the others"
    )
    with pytest.raises(UserError, match=message):
        pairs_loop(*sgan(judge))


@pytest.mark.parametrize("xla", [False, True])
def test_the_published_bug_as_a_step_of_the_other_optimizer_is_named(xla: bool) -> None:
    class Steps(Judge):
        """Apply gradients of the local generator by hand."""

        def compute(self, forward, batch):
            output = super().compute(forward, batch)
            network = networks[0]
            variables = network.model.trainable_variables
            reads = [forward.passes[network.name].context.latent[name] for name in network.trainable_variables]
            network.optimizer.apply(tf.gradients(tf.reduce_mean(output.losses["generator_0"]), reads), variables)
            return output

    networks, objectives = sgan(global_judge(Steps))
    message = (
        "objective 'global_discriminator' writes '.*' of the network 'generator_0', which it may not change: that "
        "network belongs to the objective 'local_generators'. Take the op '.*Assign.*' .* out"
    )
    with pytest.raises(UserError, match=message):
        pairs_loop(networks, objectives, xla=xla)


def kernel(network: Network) -> tf.Variable:
    return next(iter(network.trainable_variables.values())).value


def bump(variable: tf.Variable) -> tf.Tensor:
    return variable.assign_add(tf.ones_like(variable)).read_value()


@tf.function(autograph=False)
def bump_the_argument(variable: tf.Variable) -> tf.Tensor:
    return tf.reduce_sum(bump(variable))


@tf.function(autograph=False, jit_compile=True)
def bump_compiled(variable: tf.Variable) -> tf.Tensor:
    return tf.reduce_sum(bump(variable))


def in_loop_and_branch(variable: tf.Variable) -> None:
    def body(index):
        tf.cond(index > 0, lambda: tf.reduce_sum(bump(variable)), lambda: 0.0)
        return index + 1

    tf.while_loop(lambda index: index < 2, body, [tf.constant(0)])


def through_identity(variable: tf.Variable) -> None:
    tf.raw_ops.AssignAddVariableOp(resource=tf.identity(variable.handle), value=tf.ones_like(variable))


def in_training_op(variable: tf.Variable) -> None:
    tf.raw_ops.ResourceApplyGradientDescent(
        var=variable.handle, alpha=tf.constant(0.1), delta=tf.ones_like(variable), use_locking=True
    )


ROUTES = {
    "assign": lambda variable: variable.assign(tf.zeros_like(variable)),
    "entry": lambda variable: variable[0].assign(tf.zeros_like(variable)[0]),
    "scatter": lambda variable: variable.scatter_sub(tf.IndexedSlices(tf.ones_like(variable)[:1], tf.constant([0]))),
    "branch": lambda variable: tf.cond(tf.constant(1) > 0, lambda: tf.reduce_sum(bump(variable)), lambda: 0.0),
    "case": lambda variable: tf.switch_case(tf.constant(0), [lambda: tf.reduce_sum(bump(variable)), lambda: 0.0]),
    "loop_and_branch": in_loop_and_branch,
    "function_with_an_argument": bump_the_argument,
    "compiled_function": bump_compiled,
    "handle_through_identity": through_identity,
    "training_op": in_training_op,
    "classic_collection": lambda variable: tf.compat.v1.add_to_collection(
        tf.compat.v1.GraphKeys.UPDATE_OPS, variable.assign(tf.zeros_like(variable)).op
    ),
}


@pytest.mark.parametrize("route", ROUTES)
def test_a_write_is_found_by_every_route(route: str) -> None:
    class Writes(Judge):
        def compute(self, forward, batch):
            ROUTES[route](kernel(networks[0]))
            return super().compute(forward, batch)

    networks, objectives = sgan(global_judge(Writes))
    with pytest.raises(UserError, match="'global_discriminator' writes 'generator_0/hidden/kernel' of the network"):
        pairs_loop(networks, objectives)


@pytest.mark.parametrize("what", ["slot", "statistics", "seed_state", "iterations"])
def test_a_write_to_any_part_of_a_network_is_found(what: str) -> None:
    class Writes(Judge):
        def compute(self, forward, batch):
            variables = {**networks[1].variables, **networks[1].optimizer_variables}
            ends = {"slot": "velocity", "statistics": "moving_mean", "seed_state": "state", "iterations": "iteration"}
            variable = next(v for name, v in variables.items() if name.endswith(ends[what])).value
            variable.assign(variable + tf.ones_like(variable))
            return super().compute(forward, batch)

    networks, objectives = sgan(global_judge(Writes))
    with pytest.raises(UserError, match="of the network 'discriminator_0', which it may not change"):
        pairs_loop(networks, objectives)


@pytest.mark.parametrize("stage", ["update_ops", "project", "transform_weights", "measure"])
@pytest.mark.parametrize("guarded", [False, True])
def test_a_hook_that_writes_another_network_is_found(stage: str, guarded: bool) -> None:
    class Meddles(StatelessHook):
        network = "global_discriminator"

        def veto(self, context):
            return {"never": tf.constant(False)} if guarded else {}

    def meddle(self, *arguments):
        operation = kernel(networks[1]).assign_add(tf.ones([6, 5]))
        return {"update_ops": [operation], "transform_weights": arguments[0], "measure": {}, "project": None}[stage]

    setattr(Meddles, stage, meddle)
    networks, objectives = sgan(global_judge())
    # A network's weights are transformed for every objective: the owner's own run comes first, and passes.
    writer = "local_generators" if stage == "transform_weights" else "global_discriminator"
    with pytest.raises(UserError, match=f"'{writer}' writes 'discriminator_0/hidden/kernel'"):
        pairs_loop(networks, objectives, [Meddles("meddles")])


def test_begin_that_writes_another_network_is_found() -> None:
    class Begins(Judge):
        def begin(self, networks):
            return [kernel(networks["generator_0"]).assign_add(tf.ones([2, 5])).op]

    with pytest.raises(UserError, match="'global_discriminator' writes 'generator_0/hidden/kernel'"):
        pairs_loop(*sgan(global_judge(Begins)))


def test_a_write_before_all_objectives_is_found() -> None:
    class Early(StatelessHook):
        network = "generator_0"

        def transform_batch(self, batch, context):
            kernel(context.network).assign_add(tf.ones([2, 5]))
            return batch

    with pytest.raises(UserError, match="What runs before the objectives writes 'generator_0/hidden/kernel'"):
        pairs_loop(*sgan(global_judge()), [Early("early")])


def test_a_write_to_a_fixed_network_says_that_it_is_fixed() -> None:
    class Writes(ToyObjective):
        def compute(self, forward, batch):
            kernel(fixed).assign_add(tf.ones([6, 8]))
            return super().compute(forward, batch)

    fixed = toy_network("classifier")
    fixed.fixed = True
    with pytest.raises(UserError, match="network 'classifier', which it may not change: that network is fixed"):
        pairs_loop([toy_network(), fixed], [Writes()])


def test_reading_by_every_route_is_no_write() -> None:
    class Reads(Judge):
        def compute(self, forward, batch):
            variable = kernel(networks[0])
            read = tf.function(lambda own: tf.reduce_sum(own) + tf.reduce_sum(tf.gather(own, [0])), autograph=False)
            tf.cond(read(variable) > 0, lambda: tf.reduce_sum(variable), lambda: 0.0)
            tf.while_loop(lambda index: index < 2, lambda index: index + tf.size(variable), [tf.constant(0)])
            tf.gather_nd(variable, [[0, 0]])
            return super().compute(forward, batch)

    networks, objectives = sgan(global_judge(Reads))
    pairs_loop(networks, objectives)


def test_writes_name_the_handles_in_order() -> None:
    first, second = tf.Variable([1.0]), tf.Variable([2.0])

    @tf.function(autograph=False)
    def step():
        tf.cond(tf.constant(1) > 0, lambda: bump(second), lambda: second.read_value())
        bump_the_argument(first)

    found = [write.handle for write in all_writes(step.get_concrete_function().graph.get_operations())]
    assert found == [id(second.handle), id(first.handle)]


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_no_byte_of_a_network_changes_but_by_its_own_objective(xla: bool, accumulation_steps: int) -> None:
    """The real traced step: what the local objectives own stays in a global one, and the other way round."""
    networks, objectives = sgan(global_judge())
    local, whole = networks[:2], networks[2:]
    for running, still in ((objectives[2:], local), (objectives[:2], whole)):
        for network in networks:
            network.fixed = network in still
        before = {network.name: fingerprint(network) for network in networks}
        pairs_loop(networks, running, xla=xla, accumulation_steps=accumulation_steps).run(0, 3)
        after = {network.name: fingerprint(network) for network in networks}
        assert {name for name in after if after[name] == before[name]} == {network.name for network in still}


def test_a_discriminator_in_training_mode_keeps_its_statistics_in_the_generators_step() -> None:
    made, judge = local_pair()
    judge.fixed = True
    before = snapshot(judge)
    loop = pairs_loop([made, judge], local_objectives()[1:])
    loop.run(0, 3)
    for name, value in snapshot(judge).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    statistics = [name for name in before if "moving_" in name or name.endswith("seed_generator_state")]
    assert len(statistics) == 3  # there is something to move


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fixed": True}, "'second' is fixed, but the objective 'two' changes it"),
        ({"untrained": True}, "No objective changes the network 'second', so it would never be trained"),
        ({"twice": True}, "objectives 'one' and 'two' change the network 'first', which one objective alone may own"),
        ({"network": "first"}, "Two of the networks are named 'first'"),
        ({"network": "a/b"}, "A network is named 'a/b'. Expected a name without '/'"),
        ({"objective": "one"}, "Two of the objectives are named 'one'"),
        ({"objective": ""}, "An objective is named ''"),
        (
            {"model": True},
            "'first' and 'second' share the variable 'toy/hidden/kernel', so each would",
        ),
        ({"optimizer": True}, "'first' and 'second' share one optimizer. Expected one for each"),
        ({"changes": ("third",)}, "Objective 'two' changes the network 'third'. Expected: first, second"),
        ({"updates": 0}, "Objective 'two' has updates=0. Expected how often a step runs it"),
        ({"updates": 1.5}, "Objective 'two' has updates=1.5"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(change: dict, message: str) -> None:
    first, second = toy_network("first"), toy_network(change.get("network", "second"))
    second.fixed = "fixed" in change
    if "model" in change:
        second.model = first.model
    if "optimizer" in change:
        second.optimizer = first.optimizer
    objectives = [ToyObjective("first", "one"), ToyObjective("second", change.get("objective", "two"))]
    if "twice" in change:
        objectives[1].changes = ("first", "second")
    objectives[1].changes = change.get("changes", objectives[1].changes)
    objectives[1].updates = change.get("updates", 1)
    with pytest.raises(UserError, match=message) as refusal:
        Trainer([first, second], objectives[: 1 if "untrained" in change else 2], [], seed=0)
    assert "\n" not in str(refusal.value)


def test_a_shared_network_is_trained_by_both() -> None:
    network = toy_network()
    network.shared = True
    pairs_loop([network], [ToyObjective(name="one"), ToyObjective(name="two")]).run(0, 3)
    assert network.optimizer.iterations.numpy() == 6


def test_variables_of_one_path_in_two_networks_of_one_objective_are_told_apart() -> None:
    """The statistics of one network are written; those of the other, of the same path, are dropped."""

    class Both(ToyObjective):
        def compute(self, forward, batch):
            logits = forward("first", batch["inputs"]) + forward("second", batch["inputs"])
            return ObjectiveOutput({"loss": tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits)})

    class Drops(StatelessHook):
        network = "second"

        def transform_state(self, new_state, context):
            return {}

    objective = Both("first")
    objective.changes = ("first", "second")
    networks = [toy_network("first"), toy_network("second", keras.optimizers.SGD(0.1))]
    with pytest.raises(UserError, match="changes second/toy/norm/moving_mean, second/toy/norm/moving_variance, but no"):
        pairs_loop(networks, [objective], [Drops("drops")])


def test_an_objective_is_found_by_its_name_or_the_nearest_is_named() -> None:
    objectives = [ToyObjective("first", "one"), ToyObjective("second", "judge")]
    assert find_objective("judge", objectives) is objectives[1]
    with pytest.raises(UserError, match="^Unknown objective 'juge'. Did you mean 'judge'?"):
        find_objective("juge", objectives)
