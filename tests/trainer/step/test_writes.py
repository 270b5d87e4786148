"""Several updates of one objective in a step; updates that are not wired, and writes to what belongs to another."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import Declaration
from hookline.trainer.step.copy_network import copy_network
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from hookline.trainer.step.writes import all_operations, all_writes
from tests.support.networks import fingerprint
from tests.support.pairs import Judge, discriminator, pairs_loop
from tests.support.refusals import assert_refused
from tests.support.toy import (
    BATCH,
    CountingHook,
    StatelessHook,
    ToyObjective,
    build_context,
    network_of,
    toy_batch,
    toy_loop,
    toy_network,
    updated,
    values_of,
)


def often(updates, objective=None):
    objective = objective or ToyObjective()
    objective.updates = updates
    return objective


def half_batch(step):
    """Return half of a toy batch as a separate batch: step 2k + i gets part i of batch k."""
    whole = toy_batch(step // 2)
    size = BATCH // 2
    start = tf.cast(step % 2, tf.int32) * size
    return {name: tensor[start : start + size] for name, tensor in whole.items()}


def test_several_updates_equal_as_many_steps_on_parts_of_the_batch():
    network, twin = toy_network(), toy_network()
    twin.model.set_weights(network.model.get_weights())
    loop = toy_loop(network=network, objectives=[often(2)])
    loop.run(0, 3)
    by_hand = toy_loop(network=twin, batch=half_batch)
    by_hand.run(0, 6)
    for name, value in values_of(network).items():
        np.testing.assert_allclose(value, values_of(twin)[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert network.optimizer.iterations.numpy() == 6
    ours, theirs = loop.accumulators.read(), by_hand.accumulators.read()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():  # the averages over all updates
        np.testing.assert_allclose(value, theirs[name], rtol=1e-4, err_msg=name)


class Begins(Judge):
    def __init__(self, *arguments, counter, difference):
        super().__init__(*arguments)
        self.counter, self.difference = counter, difference

    def begin(self, networks):
        copies = copy_network(networks["source"], networks["messenger"], optimizer="reset")
        return [*copies, self.counter.assign_add(1).op]

    def compute(self, forward, batch):
        read = forward.passes["messenger"].context.latent["messenger/hidden/kernel"]
        own = forward.passes["source"].context.latent["source/hidden/kernel"]
        self.difference.assign_add(tf.reduce_sum(tf.abs(read - own)))
        return super().compute(forward, batch)


def test_begin_runs_once_per_update_and_a_veto_skips_everything_after_it():
    counter, difference = tf.Variable(0), tf.Variable(0.0)
    networks = [discriminator(name, keras.optimizers.SGD(0.05, momentum=0.9)) for name in ("source", "messenger")]
    follow = often(2, Begins("follow", "messenger", [], counter=counter, difference=difference))
    objectives = [Judge("judge", "source", []), follow]
    guard = StatelessHook("guard")
    guard.network, guard.veto = "source", lambda context: {"no": tf.equal(context.step, 2)}

    def project(context):
        for variable in context.network.trainable_variables.values():
            variable.assign(0.9 * variable.value)

    guard.project = project
    loop = pairs_loop(networks, objectives, [guard])
    assert counter.numpy() == 0  # tracing runs nothing
    loop.run(0, 2)
    assert (counter.numpy(), difference.numpy()) == (4, 0.0)
    assert [each.optimizer.iterations.numpy() for each in networks] == [2, 1]  # the messenger's is reset, then 1
    before = [fingerprint(network) for network in networks]
    assert loop.run(2, 3) == (2, ["judge/no"])
    assert [fingerprint(network) for network in networks] == before
    assert counter.numpy() == 4


def test_veto_in_the_second_update_keeps_the_first_and_stops_the_loop():
    class Second(StatelessHook):
        def veto(self, context):
            return {"odd": tf.constant(context.update == 1)}

    network = toy_network()
    loop = toy_loop([Second()], network=network, objectives=[often(2)])
    assert loop.run(0, 3) == (0, ["odd"])
    assert network.optimizer.iterations.numpy() == 1
    assert loop.accumulators.variable.numpy()[:, 1].tolist() == [1.0] * len(loop.accumulators.names)


def test_indivisible_batch_is_refused():
    for updates, steps, match in ((3, 1, "updates=3 .*16 examples"), (8, 4, "accumulation_steps=4 .*2 examples")):
        assert_refused(match, toy_loop, objectives=[often(updates)], accumulation_steps=steps)


def test_hooks_update_exactly_once_per_optimizer_step():
    networks, hooks = [toy_network("first"), toy_network("second")], [CountingHook("one"), CountingHook("two")]
    networks[0].shared = True
    for network, hook in zip(networks, hooks, strict=True):
        hook.network = network.name
        hook.build(build_context(network))
    hooks[1].veto = lambda context: {"late": tf.equal(context.step, 5)}
    objectives = [ToyObjective("first", "one"), ToyObjective("first", "three"), ToyObjective("second", "two")]
    loop = ChunkLoop(Trainer(networks, objectives, hooks, seed=0, accumulation_steps=4), toy_batch, xla=False)
    for start, steps in ((0, 0), (0, 1), (1, 4)):  # tracing counts nothing
        if steps:
            loop.run(start, steps)
        for network, hook, per_step in zip(networks, hooks, (2, 1), strict=True):
            count = per_step * (start + steps)
            assert network.optimizer.iterations.numpy() == hook.count.numpy() == count
    assert loop.run(5, 2) == (5, ["two/late"])
    assert hooks[1].count.numpy() == 5


def upstream(operation):
    found, stack = set(), [operation]
    while stack:
        current = stack.pop()
        parents = [*(tensor.op for tensor in current.inputs), *current.control_inputs]
        stack += [parent for parent in parents if parent.name not in found]
        found |= {parent.name for parent in parents}
    return found


def test_every_batch_norm_assignment_is_upstream_of_every_apply():
    veto = StatelessHook()
    veto.veto = lambda context: {"never": tf.constant(False)}
    layers = [keras.Input((6,))]
    for index in range(2):
        layers += [keras.layers.Dense(4, name=f"dense_{index}"), keras.layers.BatchNormalization(name=f"norm_{index}")]
    network = network_of(keras.Sequential([*layers, keras.layers.Dense(3, name="last")]))
    loop = toy_loop([veto], network=network)
    commit = loop.trainer.commits[0]
    expected = {name for name in network.variables if "moving_" in name}
    assert len(expected) == 4
    assert set(updated(commit, network)) == expected
    assert set(commit.apply_ops) == set(network.trainable_variables)
    for operations in commit.apply_ops.values():
        for operation in operations:
            assert {update.name for update in commit.update_ops} <= upstream(operation)


def test_grouped_and_conditional_updates_run():
    class Groups(CountingHook):
        def update_ops(self, context):
            branch = tf.cond(context.step >= 2, lambda: self.count.assign_add(10.0).read_value(), lambda: 0.0)
            with tf.control_dependencies([branch]):
                return [tf.group(self.count.assign_add(1.0)), branch.op]

    hook = Groups("counter")
    toy_loop([hook]).run(0, 3)
    assert hook.count.numpy() == 13.0


def test_apply_outside_the_control_dependencies_is_refused():
    class Early(Trainer):
        """Apply without waiting for UPDATE_OPS, as a hand-written loop does."""

        def apply_gradients(self, network, gradients):
            with tf.control_dependencies(None):
                for variable in network.trainable_variables.values():
                    variable.value.assign_sub(0.1 * tf.zeros(variable.shape))

    with pytest.raises(UserError, match="are not control ancestors of the op .* that applies the gradient of 'toy/"):
        ChunkLoop(Early([toy_network()], [ToyObjective()], [], seed=0), toy_batch, xla=False)


class Early(CountingHook):
    def transform_gradients(self, gradients, context):
        self.operation = self.count.assign_add(1.0)
        return gradients

    def update_ops(self, context):
        return [self.operation]

    def veto(self, context):
        return {"never": tf.constant(False)}


def leave_out(hook):
    hook.count.assign_add(1.0)
    return []


def test_unwired_update_is_refused():
    for update, match in (
        (lambda hook: [1.0], "'counter' returned something that is not an op"),
        (lambda hook: [hook.count + 1.0], "'counter' returned the op .*Add.* writes no variable"),
        (lambda hook: [], "'counter' declares that it writes 'count', but no op"),
        (leave_out, "'counter' writes 'count' outside UPDATE_OPS"),
    ):
        hook = CountingHook("counter")
        hook.update_ops = lambda context, hook=hook, update=update: update(hook)
        assert_refused(match, toy_loop, [hook])
    assert_refused("'counter' returned the op .*Assign", toy_loop, [Early("counter")])


def test_dropped_batch_norm_updates_are_refused():
    names = "changes toy/norm/moving_mean, toy/norm/moving_variance, but no op"
    objectives = [ToyObjective(name="one"), ToyObjective(name="two")]
    drops = StatelessHook()
    drops.transform_state = lambda new_state, context: {} if context.objective == "two" else new_state
    assert_refused(f"objective 'two' {names}", toy_loop, [drops], objectives=objectives, accumulation_steps=2)


class Cut(StatelessHook):
    def transform_weights(self, weights, context):
        return {n: tf.stop_gradient(w) if n == "toy/hidden/kernel" else w for n, w in weights.items()}


class Freeze(Cut):
    def declare(self):
        return Declaration(frozen={"toy/hidden/kernel"})


def test_variable_without_gradient_is_refused_unless_frozen():
    assert_refused("No gradient reaches toy/hidden/kernel", toy_loop, [Cut()])
    network = toy_network()
    before = network.variables["toy/hidden/kernel"].numpy()
    toy_loop([Freeze()], network=network).run(0, 3)
    assert (network.variables["toy/hidden/kernel"].numpy() == before).all()


def bump(variable):
    return variable.assign_add(tf.ones_like(variable)).read_value()


def bump_in_function(variable, **options):
    tf.function(lambda given: tf.reduce_sum(bump(given)), autograph=False, **options)(variable)


def in_loop_and_branch(variable):
    def body(index):
        tf.cond(index > 0, lambda: tf.reduce_sum(bump(variable)), lambda: 0.0)
        return index + 1

    tf.while_loop(lambda index: index < 2, body, [tf.constant(0)])


def through_identity(variable):
    tf.raw_ops.AssignAddVariableOp(resource=tf.identity(variable.handle), value=tf.ones_like(variable))


def in_training_op(variable):
    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=tf.constant(0.1), delta=tf.ones_like(variable))


ROUTES = {
    "assign": lambda variable: variable.assign(tf.zeros_like(variable)),
    "entry": lambda variable: variable[0].assign(tf.zeros_like(variable)[0]),
    "reads": lambda variable: tf.gather_nd(variable, [[0]]) + tf.function(tf.reduce_sum, autograph=False)(variable),
    "scatter": lambda variable: variable.scatter_sub(tf.IndexedSlices(tf.ones_like(variable)[:1], tf.constant([0]))),
    "branch": lambda variable: tf.cond(tf.constant(1) > 0, lambda: tf.reduce_sum(bump(variable)), lambda: 0.0),
    "case": lambda variable: tf.switch_case(tf.constant(0), [lambda: tf.reduce_sum(bump(variable)), lambda: 0.0]),
    "loop_and_branch": in_loop_and_branch,
    "function_with_an_argument": bump_in_function,
    "compiled_function": lambda variable: bump_in_function(variable, jit_compile=True),
    "handle_through_identity": through_identity,
    "training_op": in_training_op,
}


def test_writes_are_found_by_every_route_and_reads_are_not_writes():
    variable = tf.Variable([1.0, 2.0])
    for name, route in ROUTES.items():
        with tf.__internal__.FuncGraph(name).as_default() as graph:
            route(variable)
        found = {write.handle for write in all_writes(graph.get_operations())}
        assert found == (set() if name == "reads" else {id(variable.handle)}), name


class Meddles(Judge):
    def __init__(self, other, part, place):
        super().__init__("judge", "own", [])
        self.other, self.part, self.place = other, part, place

    def meddle(self):
        named = {**self.other.variables, **self.other.optimizer_variables}
        variable = next(each for name, each in named.items() if name.endswith(self.part)).value
        return variable.assign(variable + tf.ones_like(variable)).op

    def begin(self, networks):
        return [self.meddle()] if self.place == "begin" else []

    def compute(self, forward, batch):
        if self.place == "compute":
            self.meddle()
        return super().compute(forward, batch)


def test_writes_of_objectives_and_hooks_to_another_network_are_refused():
    networks = [discriminator("other"), discriminator("own")]
    networks[0].fixed = True
    for part, place in (("kernel", "begin"), ("velocity", "compute")):
        with pytest.raises(UserError, match=f"'judge' writes .*{part}' of .*, which it may not change"):
            pairs_loop(networks, [Meddles(networks[0], part, place)])
    hook, kernel = StatelessHook("hook"), networks[0].variables["other/hidden/kernel"].value

    def project(context):
        kernel.assign_add(tf.ones([6, 5]))

    hook.network, hook.project = "own", project
    hook.veto = lambda context: {"never": tf.constant(False)}
    match = "'judge' writes 'other/hidden/kernel'"
    assert_refused(match, pairs_loop, networks, [Judge("judge", "own", [])], [hook])


class Writer(StatelessHook):
    def __init__(self, name, shared, *numbers, **declared):
        super().__init__(name)
        self.shared, self.numbers = shared, numbers
        for attribute, names in declared.items():
            setattr(self, attribute, names)

    def declare(self):
        return Declaration({"shared": self.shared} if self.name == "owner" else {})

    def update_ops(self, context):
        return [self.shared.assign(number) for number in self.numbers]


def test_two_hooks_may_write_one_variable_only_in_a_declared_order():
    shared = tf.Variable(0.0, trainable=False)
    between = StatelessHook("between")
    between.after = ("owner",)
    for declared in ({"reads": ("owner/shared",)}, {"after": ("between",)}):
        toy_loop([Writer("other", shared, 2.0, **declared), Writer("owner", shared, 1.0), between]).run(0, 1)
        assert shared.numpy() == 2.0
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


def test_tensorflow_1_while_op_without_a_graph_is_listed():
    ctc = tf.function(lambda logits: keras.losses.ctc(np.ones((2, 3)), logits), autograph=False)
    operations = ctc.get_concrete_function(tf.TensorSpec([2, 6, 5])).graph.get_operations()
    assert "While" in {each.type for each in all_operations(operations)}
