"""Bernoulli attention in real training steps: draws, gradients, evaluation, repeats, losses, what it says."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hooks.attention.gate
from hooks.bernoulli_attention import BernoulliAttention
from tests.support.attention import BATCH, SIDE, attention, image_loop, image_model, prepare, square_batch
from tests.support.toy import StatelessHook, ToyObjective, toy_network, values_of
from trainer.errors import UserError
from trainer.run.state import assign_variables, read_variables, run_variables
from trainer.step.evaluate import Evaluator
from trainer.step.loop import ChunkLoop

STEPS = 6


class Recorder(StatelessHook):
    """Keep the mask and the gradient of every step."""

    after = ("bernoulli_attention",)

    def build(self, context):
        self.masks = tf.Variable(tf.zeros([STEPS, BATCH, 4, 4, 1]), trainable=False)

    def state(self):
        return {"masks": self.masks}

    def writes(self):
        return self.state()

    def update_ops(self, context):
        index = tf.reshape(tf.cast(context.step, tf.int32), [1, 1])
        return [self.masks.scatter_nd_update(index, context.taps["bernoulli_attention/mask"][tf.newaxis])]


def seeded(seed: int, *hooks, **options) -> ChunkLoop:
    """Return a loop with attention, after the seeds were set as a run does."""
    keras.utils.set_random_seed(seed)
    return image_loop([attention(**options), *hooks])


def network_of(loop: ChunkLoop):
    return loop.trainer.networks["model"]


def variables_of(loop: ChunkLoop) -> dict[str, tf.Variable]:
    return run_variables(loop.trainer.networks.values(), loop.trainer.hooks, loop.accumulators.variable)


def assert_equal(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def evaluate(loop_or_trainer, batches: int = 2) -> dict[str, float]:
    trainer = getattr(loop_or_trainer, "trainer", loop_or_trainer)
    return Evaluator(trainer, square_batch, batches).run(0)


def test_every_step_draws_a_mask_of_zeros_and_ones_for_each_example_and_position():
    recorder = Recorder("recorder")
    loop = seeded(0, recorder, branch={"filters": [4], "initial_keep_rate": 0.5})
    loop.run(0, STEPS)
    masks = recorder.masks.numpy()
    assert set(np.unique(masks)) == {0.0, 1.0}
    patterns = masks.reshape(STEPS * BATCH, 16)
    assert len(np.unique(patterns, axis=0)) == STEPS * BATCH  # none is shared by examples or steps
    measures = loop.accumulators.read()
    assert measures["attention/keep_rate"] == pytest.approx(masks.mean(), abs=1e-6)
    assert measures["attention/mean"] == pytest.approx(0.5, abs=0.05)


def test_two_runs_of_one_seed_are_bit_identical_and_another_seed_is_not():
    runs = []
    for seed in (1, 1, 2):
        loop = seeded(seed, Recorder("recorder"))
        loop.run(0, STEPS)
        runs.append(read_variables(variables_of(loop)))
    assert_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0]["hook/recorder/masks"], runs[2]["hook/recorder/masks"])
    assert "network/model/attention_gate/seed_generator_state" in runs[0]


def test_a_run_that_goes_on_from_a_checkpoint_draws_what_the_whole_run_draws():
    whole, first = seeded(1, Recorder("recorder")), seeded(1, Recorder("recorder"))
    whole.run(0, STEPS)
    first.run(0, 3)
    saved = read_variables(variables_of(first))
    assert saved["network/model/attention_gate/seed_generator_state"][1] == 3
    resumed = seeded(9, Recorder("recorder"))
    assign_variables(variables_of(resumed), saved, "here")
    resumed.run(3, STEPS - 3)
    assert_equal(read_variables(variables_of(resumed)), read_variables(variables_of(whole)))


def test_every_variable_of_the_branch_trains_and_without_the_straight_through_the_audit_refuses(monkeypatch):
    loop = seeded(0)
    before = values_of(network_of(loop))
    loop.run(0, 3)
    moved = {name for name, value in values_of(network_of(loop)).items() if not np.array_equal(value, before[name])}
    branch = {name for name in network_of(loop).trainable_variables if name.startswith("attention_branch/")}
    assert len(branch) == 4
    assert branch <= moved

    def compared(features, probability, *, seed, uniform):
        del uniform
        mask = tf.cast(tf.random.stateless_uniform(tf.shape(probability), seed) < probability, tf.float32)
        return mask * features, mask

    monkeypatch.setattr(hooks.attention.gate, "bernoulli_gate", compared)
    with pytest.raises(
        UserError, match="No gradient reaches attention_branch/attention_conv_1/kernel, .*straight-through"
    ):
        seeded(0)


def test_gradients_of_a_step_are_the_closed_form():
    """The gradient that reaches the logits is A (1 - A) / T times the sum over channels of x dL/dy."""
    hook = attention(temperature=2.0, branch={"filters": [3], "initial_keep_rate": 0.4})
    model = hook.rebuild_model(image_model(batch_norm=False))
    gate = model.get_layer("attention_gate")
    x_input, map_output = gate.input
    inner = keras.Model(model.input, [x_input, map_output, *gate.output])
    upper = keras.Model(gate.output[0], model.output)
    batch = square_batch(tf.constant(0, tf.int64))
    kernel = model.get_layer("attention_branch").layers[-1].bias.value
    kernel.assign([0.3])
    with tf.GradientTape(persistent=True) as tape:
        features, probability, gated, mask = inner(batch["inputs"], training=True)
        loss = tf.reduce_sum(upper(gated) ** 2)
    upstream = tape.gradient(loss, gated)
    expected = tf.reduce_sum(features * upstream, axis=-1, keepdims=True)
    np.testing.assert_allclose(tape.gradient(loss, probability), expected, rtol=1e-5, atol=1e-6)
    slope = probability * (1 - probability) / 2.0
    np.testing.assert_allclose(tape.gradient(loss, kernel), [tf.reduce_sum(expected * slope)], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(gated, mask * features)
    assert set(np.unique(mask)) == {0.0, 1.0}


@pytest.mark.parametrize("options", [{}, {"mode": "product"}], ids=str)
def test_evaluation_is_deterministic_and_takes_no_seed(options):
    loop = seeded(0, **options)
    loop.run(0, 2)
    before = values_of(network_of(loop))
    assert evaluate(loop) == evaluate(loop)
    assert_equal(values_of(network_of(loop)), before)


def test_expectation_is_what_evaluation_uses():
    trainer = prepare([attention(branch={"filters": [2], "initial_keep_rate": 0.25})])
    model, plain = trainer.networks["model"].model, image_model()
    plain.set_weights([variable for variable in model.weights if "attention" not in variable.path])
    features = keras.Model(plain.input, plain.get_layer("pool_1").output)
    upper = keras.Model(plain.get_layer("pool_1").output, plain.output)
    batch = square_batch(tf.constant(0, tf.int64))
    expected = upper(0.25 * features(batch["inputs"]))
    np.testing.assert_allclose(model(batch["inputs"], training=False), expected, rtol=1e-4, atol=1e-6)


def test_none_leaves_the_model_as_it_is():
    model = image_model()
    hook = attention(mode=None, supervision={"key": "no_such_map"})
    assert hook.mode == "none"
    assert hook.rebuild_model(model) is model
    loop = image_loop([hook], model)
    loop.run(0, 1)
    names = {*loop.accumulators.read(), *evaluate(loop)}
    assert not any("attention" in name for name in names)
    assert hook.observed_examples == 0
    assert hook.summary() == {"mode": "none"}
    assert hook.pictures({}) == {}


def test_product_has_no_draws_and_no_seed():
    loop = seeded(0, mode="product")
    loop.run(0, 1)
    assert not any("seed" in name for name in network_of(loop).state_variables)
    assert "attention/keep_rate" not in loop.accumulators.read()


def test_losses_are_added_only_when_asked_for():
    loop = seeded(0)
    loop.run(0, 1)
    assert {name for name in loop.accumulators.read() if name.startswith("loss/")} == {
        "loss/cross_entropy",
        "loss/total",
    }
    asked = seeded(
        0, temperature=2.0, keep_rate={"target": 0.2, "weight": 2.0}, entropy=0.5, supervision={"weight": 3.0}
    )
    asked.run(0, 1)
    values = asked.accumulators.read()
    at, target = 0.6, 0.2  # A is what the branch starts with, everywhere
    divergence = target * np.log(target / at) + (1 - target) * np.log((1 - target) / (1 - at))
    entropy = -(at * np.log2(at) + (1 - at) * np.log2(1 - at))
    covered = square_batch(tf.constant(0, tf.int64))["map"].numpy().mean()
    cross_entropy = -(covered * np.log(at) + (1 - covered) * np.log(1 - at))
    assert values["loss/attention_keep_rate"] == pytest.approx(2.0 * divergence, rel=1e-4)
    assert values["loss/attention_entropy"] == pytest.approx(0.5 * entropy, rel=1e-4)
    assert values["loss/attention_supervision"] == pytest.approx(3.0 * cross_entropy, rel=1e-4)
    assert values["attention/entropy"] == pytest.approx(entropy, rel=1e-4)
    assert values["attention/mean"] == pytest.approx(at, rel=1e-4)
    assert values["attention/mass_in_box"] == pytest.approx(covered, rel=1e-4)


def test_supervision_ends_after_its_epochs():
    loop = seeded(0, supervision={"epochs": 0.5})  # of 4 steps
    losses = []
    for step in range(4):
        loop.accumulators.reset()
        loop.run(step, 1)
        losses.append(loop.accumulators.read()["loss/attention_supervision"])
    assert [loss > 0.0 for loss in losses] == [True, True, False, False]


def test_supervision_moves_the_mass_into_the_map_and_evaluations_say_so():
    loop = seeded(0, supervision={"weight": 3.0}, branch={"filters": [8], "kernel_size": 5})
    before = evaluate(loop)["metric/attention/mass_in_box"]
    loop.run(0, 60)
    assert before == pytest.approx(0.25, abs=0.03)
    assert evaluate(loop)["metric/attention/mass_in_box"] > 0.5


@pytest.mark.parametrize("start", [0.98, 0.04])
def test_a_keep_rate_is_reached_from_both_sides(start: float):
    hook = attention(keep_rate={"target": 0.3, "weight": 20.0}, branch={"filters": [4], "initial_keep_rate": start})
    loop = ChunkLoop(prepare([hook], optimizer=keras.optimizers.Adam(0.05)), square_batch, xla=False)
    loop.run(0, 120)
    assert evaluate(loop)["metric/attention/mean"] == pytest.approx(0.3, abs=0.1)


def test_by_default_a_mean_near_1_comes_back():
    options = {"branch": {"filters": [4], "initial_keep_rate": 0.98}}
    means = {}
    for name, keep_rate in (("default", BernoulliAttention().keep_rate), ("none", None)):
        hook = attention(**options)
        hook.keep_rate = keep_rate
        loop = ChunkLoop(prepare([hook], optimizer=keras.optimizers.Adam(0.02)), square_batch, xla=False)
        loop.run(0, 120)
        means[name] = evaluate(loop)["metric/attention/mean"]
    assert means["default"] < 0.9 < means["none"]


def test_a_map_that_the_batch_does_not_have_is_one_clear_line():
    with pytest.raises(
        UserError, match="supervision.key=mask is not in the batch. Expected one of: inputs, map, targets"
    ):
        seeded(0, supervision={"key": "mask"})


def test_evaluation_metrics_are_exact_means_over_examples():
    trainer = prepare([attention(branch={"filters": [2]})])
    logits = keras.Model(
        trainer.networks["model"].model.input, trainer.networks["model"].model.get_layer("attention_map").output
    )
    trainer.networks["model"].variables["attention_branch/attention_logits/kernel"].assign(np.ones((1, 1, 2, 1)))

    def padded(index):
        """Return the first 12 examples in batches of 8, the rest marked as padding."""
        rows = index * 8 + tf.range(8, dtype=tf.int64)
        return {**square_batch(index), "weights": tf.cast(rows < 12, tf.float32)}

    values = Evaluator(trainer, padded, 2).run(0)
    batches = [square_batch(tf.constant(index, tf.int64)) for index in range(2)]
    images, maps = (np.concatenate([batch[key] for batch in batches])[:12] for key in ("inputs", "map"))
    a = logits(images).numpy()[..., 0].astype(np.float64)
    covered = maps.reshape(12, 4, 2, 4, 2).mean(axis=(2, 4))
    assert values["metric/attention/mean"] == pytest.approx(a.mean(), rel=1e-5)
    mass = (a * covered).sum(axis=(1, 2)) / a.sum(axis=(1, 2))
    assert values["metric/attention/mass_in_box"] == pytest.approx(mass.mean(), rel=1e-5)
    entropy = -(a * np.log2(a) + (1 - a) * np.log2(1 - a))
    assert values["metric/attention/entropy"] == pytest.approx(entropy.mean(), rel=1e-4)


def test_concatenate_doubles_the_outputs_and_trains_all_there_is():
    hook = attention(join="concatenate", branch_input="input")
    trainer = prepare([hook])
    network = trainer.networks["model"]
    assert network.model.output_shape == (None, 6)

    class Both(ToyObjective):
        def compute(self, forward, batch):
            return super().compute(lambda name, inputs: tf.add_n(tf.split(forward(name, inputs), 2, -1)), batch)

    trainer.objectives = [Both()]
    before = values_of(network)
    ChunkLoop(trainer, square_batch, xla=False).run(0, 3)
    for name in network.trainable_variables:
        assert not np.array_equal(values_of(network)[name], before[name]), name


def test_features_of_lower_precision_are_gated_by_a_map_in_float32():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        loop = seeded(0)
    finally:
        keras.config.set_dtype_policy("float32")
    taps = network_of(loop).taps
    assert {taps[f"bernoulli_attention/{name}"].dtype for name in ("attention", "mask")} == {"float32"}
    loop.run(0, 2)
    assert np.isfinite(loop.accumulators.read()["loss/total"])


def test_xla_compiles_the_step():
    loop = image_loop([attention(keep_rate={"target": 0.5}, supervision={}, branch_input="input")], xla=True)
    loop.run(0, 2)
    assert np.isfinite(loop.accumulators.read()["loss/total"])


def test_the_input_branch_sees_the_image_and_needs_one_of_known_size():
    hook = attention(branch_input="input")
    model = hook.rebuild_model(image_model())
    assert model.get_layer("attention_branch").input_shape == (None, 4, 4, 1)
    inputs = keras.Input((None, None, 1))
    x = keras.layers.Conv2D(2, 3, name="conv")(inputs)
    open_size = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(2, 3)(x)))
    with pytest.raises(UserError, match="branch_input=input received for inputs of shape .* or branch_input=features"):
        attention(branch_input="input").rebuild_model(open_size)
    assert attention().rebuild_model(open_size).output_shape == (None, 2)


def test_a_branch_of_the_users_own_is_put_in_and_trained():
    own = keras.Sequential(
        [keras.layers.Conv2D(3, 3, padding="same", activation="relu"), keras.layers.Conv2D(1, 1)], name="own"
    )
    loop = seeded(0, branch=own)
    assert {name for name in network_of(loop).trainable_variables if name.startswith("own/")} == {
        variable.path for variable in own.trainable_variables
    }
    loop.run(0, 1)


def test_the_model_saves_loads_and_predicts_the_same(tmp_path):
    loop = seeded(0, branch_input="input")
    loop.run(0, 2)
    model, inputs = network_of(loop).model, square_batch(tf.constant(0, tf.int64))["inputs"]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(inputs, training=False), model(inputs, training=False))


REPORTS = [
    ({"attention/mean": 0.5, "attention/entropy": 0.9, "attention/keep_rate": 0.5}, None),
    ({"attention/mean": 0.3, "attention/entropy": 0.001, "attention/keep_rate": 0.3}, None),  # decided, not collapsed
    ({"attention/mean": 0.01, "attention/entropy": 0.1, "attention/keep_rate": 0.01}, "to 0: nothing passes the gate"),
    ({"attention/mean": 0.99, "attention/entropy": 0.1, "attention/keep_rate": 0.99}, "to 1: the gate does nothing"),
    ({"attention/mean": 0.021, "attention/entropy": 0.001, "attention/keep_rate": 0.019}, "to 0: nothing"),
    ({"first/attention/mean": 0.001, "first/attention/entropy": 0.01}, "to 0: nothing passes"),
    ({"loss/total": 1.0}, None),
]


@pytest.mark.parametrize(("values", "expected"), REPORTS)
def test_a_collapse_is_warned_of_in_one_line_with_a_remedy(values, expected):
    warning = attention().warning(values)
    if expected is None:
        assert warning is None
    else:
        assert expected in warning
        assert "\n" not in warning
        assert "hooks.bernoulli_attention.keep_rate={target: 0.3}" in warning
        assert "more weight than 0.1" in attention(keep_rate={"target": 0.3}).warning(values)


def test_pictures_show_eight_examples_with_inputs_maps_and_draws():
    hook = attention()
    trainer = prepare([hook])
    batch = square_batch(tf.constant(0, tf.int64))
    forward = trainer.forward(tf.constant(3, tf.int64), batch, objective="objective", training=False)
    trainer.losses(trainer.objectives[0], forward, batch)
    observed = {name: value.numpy() for name, value in hook.observe(forward.passes["model"].context).items()}
    assert hook.observed_examples == 8
    assert {name: value.shape for name, value in observed.items()} == {
        "inputs": (8, SIDE, SIDE, 1),
        "attention": (8, 4, 4),
        "draw": (8, 4, 4),
    }
    assert set(np.unique(observed["draw"])) == {0.0, 1.0}
    (name,), (sheet,) = zip(*hook.pictures(observed).items(), strict=True)
    assert name == "attention/pool_1"
    assert sheet.shape == (3 * 96 + 4, 8 * 96 + 14, 3)


def test_a_hook_of_another_name_puts_its_own_name_everywhere():
    first, second = attention(), attention(layer="conv_1", supervision={})
    second.name = "low"
    trainer = prepare([first, second])
    names = {layer.name for layer in trainer.networks["model"].model.layers}
    assert {"attention_gate", "attention_branch", "low_gate", "low_branch"} <= names
    values = evaluate(trainer)
    assert {"metric/attention/mean", "metric/low/mean", "loss/low_supervision"} <= set(values)


def test_the_summary_says_what_was_gated():
    hook = attention()
    hook.rebuild_model(image_model())
    summary = hook.summary()
    assert (summary["layer"], summary["map"]) == ("pool_1", [4, 4, 4])
    assert summary["branch_entries"] == 4 * 4 * 9 + 4 + 4 + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "bernouli"}, "Unknown mode 'bernouli'. Did you mean 'bernoulli'?"),
        ({"eval_mode": "mean"}, "Unknown eval_mode 'mean'"),
        ({"join": "add"}, "Unknown join 'add'"),
        ({"branch_input": "image"}, "Unknown branch_input 'image'"),
        ({"temperature": 0}, "Invalid temperature: 0"),
        ({"entropy": "high"}, "Invalid entropy: 'high'"),
        ({"layer": ["a"]}, "Invalid layer: .'a'.. Expected a pattern that matches one layer"),
        ({"keep_rate": 0.3}, "Invalid keep_rate: 0.3"),
        ({"supervision": True}, "Invalid supervision: True"),
        ({"branch": None}, "Invalid branch: None"),
    ],
)
def test_bad_options_are_refused(options, message: str):
    with pytest.raises(UserError, match=message):
        attention(**options)


def test_a_network_without_maps_is_one_clear_line():
    with pytest.raises(UserError, match="has no 2-D convolution.*Expected a convolutional network"):
        attention().rebuild_model(toy_network().model)
