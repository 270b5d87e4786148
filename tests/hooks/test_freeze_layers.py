"""Frozen layers keep every bit, whatever the optimizer does; layers before and after them train as usual."""

import keras
import numpy as np
import pytest

from hookline.hooks.freeze_layers import FreezeLayers
from hookline.hooks.fused_batch_norm import FusedBatchNorm
from hookline.hooks.graphs import with_upstream_layers
from hookline.trainer.errors import UserError
from hookline.trainer.graph import layer_paths, select_layers
from hookline.trainer.network import Network
from tests.support.refusals import assert_refused
from tests.support.toy import StatelessHook, build_context, network_of, toy_loop, toy_model, toy_network, values_of

HIDDEN = ["toy/hidden/kernel", "toy/hidden/bias"]
STATISTICS = ["toy/norm/moving_mean", "toy/norm/moving_variance"]
EPOCH = 4  # steps, in a toy run of 100
OPTIMIZERS = {
    "momentum": lambda **options: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01, **options),
    "adamw": lambda **options: keras.optimizers.AdamW(0.01, weight_decay=0.1, **options),
    "scaled": lambda **options: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01, **options), initial_scale=1.0
    ),
}


def named(name: str = "freeze_layers", **options) -> FreezeLayers:
    hook = FreezeLayers(**{"layers": "hidden", **options})
    hook.name = name
    return hook


def moved(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    return {name for name in before if before[name].tobytes() != after[name].tobytes()}


def latent_moved(network: Network, before: dict[str, np.ndarray]) -> set[str]:
    return moved(before, values_of(network)) & network.trainable_variables.keys()


def test_nothing_moves_a_frozen_layer_while_the_others_train():
    for optimizer, options in (("momentum", {"begin_epoch": 2}), ("adamw", {}), ("scaled", {"begin_epoch": 2})):
        built = OPTIMIZERS[optimizer](use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3)
        getattr(built, "inner_optimizer", built).global_clipnorm = 1.0
        network = toy_network(optimizer=built, regularizer=0.05)
        loop = toy_loop([named(**options)], network=network)
        start = values_of(network)
        loop.run(0, 2 * EPOCH)
        frozen = values_of(network) if options else start
        assert not options or set(HIDDEN) <= moved(start, frozen), "there must be a history to leak from"
        loop.run(2 * EPOCH, 20)
        assert latent_moved(network, frozen) == network.trainable_variables.keys() - set(HIDDEN)
        built.finalize_variable_values(list(network.trainable_variables.values()))  # an average replaces the weights
        assert not set(HIDDEN) & moved(frozen, values_of(network))


def test_optimizer_slots_of_frozen_weights_keep_their_initial_values():
    initial = 0.1
    network = toy_network(optimizer=keras.optimizers.Adagrad(0.1))
    loop = toy_loop([named(begin_epoch=1, end_epoch=3)], network=network)
    (values,) = network.optimizer_slots("toy/hidden/kernel").values()
    loop.run(0, 4)
    assert not np.allclose(values.numpy(), initial)
    for step in range(4, 12):
        loop.run(step, 1)
        np.testing.assert_array_equal(values.numpy(), np.full((6, 8), initial, np.float32))
    loop.run(12, 1)
    assert not np.allclose(values.numpy(), initial)
    toy_loop([named(begin_epoch=4)], network=network).run(13, 4)  # built on an optimizer that has trained
    np.testing.assert_array_equal(values.numpy(), np.full((6, 8), initial, np.float32))


def test_gradients_still_flow_through_a_frozen_layer():
    free, frozen = toy_network(), toy_network()
    frozen.model.set_weights(free.model.get_weights())
    toy_loop([], network=free).run(0, 1)
    loop = toy_loop([named(layers=["logits", "norm"])], network=frozen)
    start = values_of(frozen)
    loop.run(0, 1)
    assert latent_moved(frozen, start) == set(HIDDEN)
    np.testing.assert_array_equal(
        frozen.variables["toy/hidden/kernel"].numpy(), free.variables["toy/hidden/kernel"].numpy()
    )


class Decay(StatelessHook):
    """Give every weight a gradient, even those that had none."""

    def transform_gradients(self, gradients, context):
        return {name: 0.1 * context.latent[name] for name in gradients}


def test_later_hook_that_gives_frozen_weights_a_gradient_is_refused():
    later, earlier, network = Decay("later"), Decay("earlier"), toy_network()
    assert_refused("'later' returned a gradient for 'toy/hidden/kernel' .* 'freeze_layers'", toy_loop, [named(), later])
    earlier.priority, start = 0, values_of(network)
    toy_loop([named(), earlier], network=network).run(0, 2)
    assert "toy/logits/kernel" in latent_moved(network, start)
    assert not latent_moved(network, start) & set(HIDDEN)


def test_nothing_upstream_of_the_frozen_layer_moves():
    network = toy_network(optimizer=OPTIMIZERS["adamw"]())
    hook = named(layers="activation", stop="upstream", begin_epoch=1)
    loop = toy_loop([hook], network=network)
    loop.run(0, 4)
    start = values_of(network)
    loop.run(4, 20)
    after = values_of(network)
    assert moved(start, after) & network.variables.keys() == {"toy/logits/kernel", "toy/logits/bias"}
    assert hook.summary()["layers"] == ["hidden", "norm"]


def test_inference_mode_uses_moving_statistics_only_during_the_run():
    found, initial = {}, toy_model().get_weights()
    for batch_norm, trainable in (("inference", True), ("frozen", False), ("frozen", True)):
        model, hook = toy_model(), named(layers=["hidden", "norm"], batch_norm=batch_norm)
        model.set_weights(initial)
        norm, fused = model.get_layer("norm"), FusedBatchNorm(min_entries=0, network="model")
        norm.trainable, fused.name = trainable, "fused_batch_norm"
        network = network_of(model)
        start = values_of(network)
        toy_loop([hook, fused], network=network).run(0, 8)
        found[batch_norm, trainable] = values_of(network)["toy/logits/kernel"]
        assert moved(start, values_of(network)) & network.variables.keys() == {"toy/logits/kernel", "toy/logits/bias"}
        assert fused.summary()["training"]["fused"] == ["norm"]
        assert norm.trainable is trainable  # Keras and other trainers train it as before
        assert not trainable or hook.summary()["statistics_held"] == STATISTICS
    np.testing.assert_array_equal(found["inference", True], found["frozen", False])
    assert not np.allclose(found["frozen", True], found["frozen", False], atol=1e-3)


def test_layers_in_but_are_not_frozen():
    network = toy_network()
    hook = named(layers="*", but=["logits"])
    loop = toy_loop([hook], network=network)
    start = values_of(network)
    loop.run(0, 4)
    assert latent_moved(network, start) == {"toy/logits/kernel", "toy/logits/bias"}
    assert hook.summary()["layers"] == ["hidden", "norm"]
    nested, inside = network_of(keras.Sequential([keras.Input((6,)), toy_model()])), named(layers="toy", but="logits")
    inside.build(build_context(nested))
    assert inside.declare().frozen == {*HIDDEN, "toy/norm/gamma", "toy/norm/beta", *STATISTICS}
    assert inside.summary()["layers"] == ["toy/hidden", "toy/norm"]
    assert_refused("logit", named(layers="*", but="logit").build, build_context(toy_network()))


FREE = [0, 1, 2, 3, 8, 9, 10, 11]


def test_moving_statistics_are_held_while_dropout_keeps_drawing():
    seed = "dropout/seed_generator_state"
    for options, steps, gamma in (
        ({"layers": ["dropout", "norm"], "begin_epoch": 1, "end_epoch": 2}, FREE, FREE),
        ({"layers": "norm", "batch_norm": "running", "begin_epoch": 1}, range(12), range(4)),
    ):
        network = toy_network(dropout=0.5)
        loop = toy_loop([named(**options)], network=network)
        found = {name: [] for name in (*STATISTICS, "toy/norm/gamma", seed)}
        for step in range(12):
            before = values_of(network)
            loop.run(step, 1)
            for name in found.keys() & moved(before, values_of(network)):
                found[name].append(step)
        assert found["toy/norm/moving_mean"] == found["toy/norm/moving_variance"] == list(steps)
        assert (found["toy/norm/gamma"], found[seed]) == (list(gamma), list(range(12)))


def test_invalid_options_are_named_in_the_error():
    for options, word in (
        *(({"begin_epoch": 2, "end_epoch": 2}, "end_epoch"), ({"begin_epoch": 25}, "begin_epoch")),
        *(({"layers": "hiden"}, "hiden"), ({"layers": "activation"}, "no weights")),
        ({"batch_norm": "inference", "end_epoch": 1}, "inference"),
    ):
        with pytest.raises(UserError, match=word):
            named(**options).build(build_context(toy_network()))
    assert_refused("batch norm", named(batch_norm="inference").build, build_context(toy_network()))


# Which layers are upstream of others, in graphs with shared layers.

layers = keras.layers


def upstream(model: keras.Model, *patterns: str) -> set[str]:
    found = with_upstream_layers(model, select_layers(model, patterns))
    return {path for path, layer in layer_paths(model).items() if id(layer) in found}


def test_upstream_follows_all_calls_of_the_selected_layer_and_no_others():
    inputs = keras.Input((4,))
    shared, first, second = (layers.Dense(4, name=name) for name in ("shared", "first", "second"))
    a, b = first(inputs), second(inputs)
    model = keras.Model(inputs, layers.Add(name="sum")([shared(a), shared(b)]))
    assert {"first", "second", "shared"} <= upstream(model, "shared")
    inputs = keras.Input((4,))
    chosen, behind = layers.Dense(4, name="chosen"), layers.Dense(4, name="behind")
    after = chosen(shared(inputs))
    model = keras.Model(inputs, layers.Add(name="sum")([after, shared(behind(inputs))]))
    assert "behind" not in upstream(model, "chosen")
    assert {"shared", "chosen"} <= upstream(model, "chosen")
