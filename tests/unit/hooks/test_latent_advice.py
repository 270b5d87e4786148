from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

from hooks.bnn_rounding import BnnRounding
from hooks.quantization.latent_advice import input_advice, learning_rates, rate_advice
from hooks.quantization.missing_norm import find_missing_norms
from trainer.rate_schedules import ScaledRate
from trainer.schedules import cosine

WIDTH = 64


def network(behind, *, units: int = WIDTH, activation: str | None = None) -> keras.Model:
    """Return a model whose middle layer is binarized, with `behind` after it."""
    inputs = keras.Input((8,))
    x = layers.Activation("hard_tanh", name="before")(layers.BatchNormalization()(layers.Dense(units)(inputs)))
    x = behind(layers.Dense(units, activation=activation, name="middle")(x))
    return keras.Model(inputs, layers.Dense(3, name="logits")(x))


def sign(x):
    return layers.Activation("hard_tanh", name="bounded")(x)


def advice(make_bench, run_of, model: keras.Model, optimizer=None, *, steps: int = 2000, **options) -> list[str]:
    bench = make_bench(BnnRounding(**options), model, optimizer or keras.optimizers.Adam(0.003))
    return list(bench.hook.advise(run_of(bench.network, steps)))


NORMALIZED = {
    "a batch norm": lambda x: sign(layers.BatchNormalization()(x)),
    "a layer norm behind a pooling": lambda x: sign(layers.LayerNormalization()(layers.Identity()(x))),
    "a ReLU": lambda x: layers.ReLU()(x),
    "a layer of somebody's own": lambda x: sign(layers.Lambda(lambda each: each / 8)(x)),
    "the output": lambda x: x,
}
BARE = {
    "an activation": sign,
    "an activation behind layers that keep the size": lambda x: sign(layers.Dropout(0.1)(layers.Reshape((WIDTH,))(x))),
    "a sum": lambda x: sign(layers.Add()([x, layers.BatchNormalization()(x)])),
    "an operation": lambda x: keras.ops.tanh(x),
    "a softmax": lambda x: layers.Softmax(name="bounded")(x),
}


@pytest.mark.parametrize("name", NORMALIZED)
def test_sums_that_are_normalized_or_meet_nothing_bounded_are_well(make_bench, run_of, name):
    assert advice(make_bench, run_of, network(NORMALIZED[name])) == []


@pytest.mark.parametrize("name", BARE)
def test_sums_without_a_norm_before_a_bounded_activation_are_found(make_bench, run_of, name):
    (line,) = advice(make_bench, run_of, network(BARE[name]))
    assert "no normalization stands between the binarized layer 'middle' and '" in line
    assert "spread by about 8, and only 10 % lie within 1" in line
    assert "kernel_quantizer=magnitude_aware_sign" in line


def test_an_activation_of_the_layer_itself_counts():
    model = network(lambda x: x, activation="tanh")
    assert find_missing_norms(model, {"middle": model.get_layer("middle")}) == {"middle": "activation of middle"}


def test_an_input_quantizer_is_bounded_and_a_nested_model_is_walked_through(make_bench, run_of):
    inner = keras.Sequential(
        [keras.Input((8,)), layers.Dense(WIDTH, name="first"), layers.Dense(WIDTH, name="second")], name="inner"
    )
    inputs = keras.Input((8,))
    model = keras.Model(inputs, layers.Dense(3)(layers.Dense(WIDTH, name="third")(inner(inputs))))
    (line,) = advice(make_bench, run_of, model)
    assert "'inner/second' and 'third_input_quantizer'" in line


@pytest.mark.parametrize(
    "options", [{"kernel_quantizer": "magnitude_aware_sign"}, {"clip": 1 / 8}, {"kernel_quantizer": None}]
)
def test_small_sums_need_no_norm(make_bench, run_of, options):
    adam = keras.optimizers.Adam(0.003)
    assert advice(make_bench, run_of, network(sign), adam, **options) == []


@pytest.mark.parametrize(("units", "lines"), [(9, 0), (10, 1)])
def test_the_width_from_which_on_sums_are_large(make_bench, run_of, units, lines):
    assert len(advice(make_bench, run_of, network(sign, units=units))) == lines


@pytest.mark.parametrize(
    ("rate", "steps", "expected"),
    [
        (2.4e-4, 2000, "2000 steps of Adam, at a learning rate of 0.00024 on average, move a latent weight by 0.48"),
        (2.6e-4, 2000, None),
        (0.099, 2000, None),
        (0.101, 2000, "takes a latent weight from its clip of 1 to 0 in 9.9 steps"),
        (1e-9, 99, None),  # a trial
        (1e-9, 100, "most signs stay as they were drawn"),
        (0.0, 1000, None),
    ],
)
def test_a_rate_that_does_not_suit_the_clip_is_pointed_at(rate, steps, expected):
    line = rate_advice(keras.optimizers.Adam(rate), steps=steps, clip=1.0)
    assert (line is None) if expected is None else (line is not None and expected in line)


def test_the_remedy_of_a_low_rate_reaches_the_clip():
    line = rate_advice(keras.optimizers.Adam(1e-4), steps=1000, clip=1.0)
    assert line is not None
    assert "Set optimizer.learning_rate=0.001," in line
    assert rate_advice(keras.optimizers.Adam(1e-3), steps=1000, clip=1.0) is None


def test_rates_scale_with_the_clip_and_of_sgd_nothing_is_known():
    assert rate_advice(keras.optimizers.Adam(2e-3), steps=1000, clip=1.0) is None
    assert rate_advice(keras.optimizers.Adam(2e-3), steps=1000, clip=10.0) is not None
    assert rate_advice(keras.optimizers.Adam(2e-3), steps=1000, clip=0.01) is not None
    assert rate_advice(keras.optimizers.SGD(1e-6), steps=1000, clip=1.0) is None


def test_schedules_and_loss_scales_are_seen_through():
    schedule = ScaledRate(cosine(0.002, 1000))
    inner = keras.optimizers.Adam(schedule)
    assert np.mean(learning_rates(inner, 1000)) == pytest.approx(0.001, rel=0.01)
    assert np.mean(learning_rates(keras.optimizers.LossScaleOptimizer(inner), 1000)) == pytest.approx(0.001, rel=0.01)


@pytest.mark.parametrize(
    ("optimizer", "decay", "expected"),
    [
        (keras.optimizers.AdamW, 1.9, None),
        (
            keras.optimizers.AdamW,
            2.1,
            "weight_decay=2.1 equals the steps of AdamW at 0.48: it keeps latent weights there",
        ),
        (keras.optimizers.SGD, 3.3, None),  # 2000 steps at a rate of 0.003
        (keras.optimizers.SGD, 3.4, "weight_decay=3.4 takes half of a latent weight in 68 steps"),
        (keras.optimizers.SGD, 0.0, None),
    ],
)
def test_weight_decay_on_latent_weights_is_pointed_at_where_it_is_strong(
    make_bench, run_of, optimizer, decay, expected
):
    found = advice(make_bench, run_of, network(lambda x: x), optimizer(0.003, weight_decay=decay))
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]


def test_a_kernel_that_is_left_out_of_the_decay_is_well(make_bench, run_of):
    excluded = keras.optimizers.AdamW(0.003, weight_decay=1.0)
    excluded.exclude_from_weight_decay(var_names=["kernel"])
    assert advice(make_bench, run_of, network(lambda x: x), excluded) == []


def test_a_regularizer_on_a_binarized_kernel_is_pointed_at(make_bench, run_of):
    def model():
        inputs = keras.Input((4,))
        x = layers.Dense(4, kernel_regularizer="l2", name="regular")(inputs)
        return keras.Model(inputs, layers.Dense(3)(layers.Dense(4, name="middle")(x)))

    (line,) = advice(make_bench, run_of, model(), all_binary=True)
    assert "a kernel_regularizer pulls the latent weights regular/kernel to 0" in line
    assert advice(make_bench, run_of, model()) == []  # the first layer is not binarized


@pytest.mark.parametrize(("signs", "warned"), [(1.0, True), (0.0, True), (0.985, False), (0.5, False), (0.995, True)])
def test_inputs_of_one_sign_are_pointed_at(signs, warned):
    assert (input_advice(signs, hook="bnn_rounding") is not None) is warned


@pytest.mark.parametrize(("low", "lines"), [(0.0, 1), (-1.0, 0)])
def test_the_networks_own_inputs_are_read_where_they_are_rounded(make_bench, run_of, low, lines):
    hook = BnnRounding(all_binary=True, quantize_first_input=True)
    bench = make_bench(hook, network(lambda x: x), keras.optimizers.Adam(0.003))
    run = run_of(bench.network, 2000, inputs=np.random.default_rng(0).uniform(low, 1.0, (32, 8)).astype(np.float32))
    found = [line for line in hook.advise(run) if "network's inputs" in line]
    assert len(found) == lines
    if lines:
        assert "100 % of the network's inputs are 0 or more" in found[0]
