"""Games: who sees which data, losses and penalties by their formulas, noise, and which gradients reach whom."""

import hashlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hookline.recipes.adversarial import (
    LOSSES,
    NOISES,
    PENALTIES,
    Discriminate,
    Game,
    Generate,
    Group,
    Settings,
    draw_noise,
    slope_penalty,
)
from hookline.recipes.models.gan_mlp import gan_mlp
from tests.support.refusals import assert_refused


class PlainForward:
    """Stand in for the forward of an objective: networks are functions, salts give seeds, gradients are not scaled."""

    def __init__(self, networks, *, training=True):
        self.networks, self.training = dict(networks), training
        self.sizes = {}

    def __call__(self, name, inputs):
        self.sizes.setdefault(name, []).append(inputs.shape[0])
        return self.networks[name](inputs)

    def stateless_seed(self, salt):
        digest = hashlib.sha256(salt.encode()).digest()
        return tf.constant([int.from_bytes(digest[:3]), int.from_bytes(digest[3:6])])

    def gradients(self, value, sources):
        return tf.gradients(value, list(sources))


BATCH = 12
PAIRS = 3


def forward_of(**options):
    """Return generators that multiply noise and discriminators that sum an example, each with a different constant."""
    networks = {}
    for place in range(PAIRS):
        networks[f"g{place}"] = lambda noise, place=place: noise * (place + 1.0)
        networks[f"d{place}"] = lambda rows, place=place: tf.reduce_sum(rows, -1, keepdims=True) + 0.5 * place
    return PlainForward(networks, **options)


LOCAL = Group(("g0", "g1", "g2"), PAIRS)
JUDGES = Group(("d0", "d1", "d2"), PAIRS)
ONE_MAKER, ONE_JUDGE = Group(("g1",), 1), Group(("d1",), 1)


def game(generators=LOCAL, discriminators=JUDGES, updates=1, **settings):
    return Game(generators, discriminators, Settings(**{"loss": "hinge", "latent_size": 2, **settings}), updates)


def batch_of(size=BATCH, **more):
    return {"inputs": tf.random.stateless_normal([size, 2], [1, 2]), **more}


def noise_of(forward, group, count, use="noise"):
    return draw_noise(forward, group.count, count, 2, use=use).numpy()


def test_each_pair_plays_alone_on_its_own_data():
    forward, batch = forward_of(), batch_of()
    output = Discriminate("local", game()).compute(forward, batch)
    real, noise = batch["inputs"].numpy().reshape(PAIRS, 4, 2), noise_of(forward, LOCAL, 4)
    expected = {"real": 0.0, "fake": 0.0}
    for n in range(PAIRS):
        expected["real"] += np.maximum(0, 1 - (real[n].sum(-1) + 0.5 * n)).mean()
        expected["fake"] += np.maximum(0, 1 + (noise[n] * (n + 1)).sum(-1) + 0.5 * n).mean()
    assert {name: float(value) for name, value in output.losses.items()} == pytest.approx(expected, rel=1e-5)
    scores = [(real[n].sum(-1) + 0.5 * n).mean() for n in range(PAIRS)]
    assert float(output.metrics["real_score"]) == pytest.approx(np.mean(scores), rel=1e-5)
    generated = Generate("local", game()).compute(forward, batch)
    expected_loss = -sum(((noise[n] * (n + 1)).sum(-1) + 0.5 * n).mean() for n in range(PAIRS))
    assert float(generated.losses["generator"]) == pytest.approx(expected_loss, rel=1e-4)


def test_single_generator_gets_mean_loss_of_all_discriminators():
    forward = forward_of()
    output = Generate("global", game(ONE_MAKER)).compute(forward, batch_of())
    fakes = (noise_of(forward, ONE_MAKER, BATCH)[0] * 2.0).reshape(PAIRS, 4, 2)
    scores = [(fakes[n].sum(-1) + 0.5 * n).mean() for n in range(PAIRS)]
    assert float(output.losses["generator"]) == pytest.approx(-np.mean(scores), rel=1e-4)
    assert sorted(forward.sizes) == ["d0", "d1", "d2", "g1"]


def test_single_discriminator_sees_all_data_and_all_generators():
    forward, batch = forward_of(), batch_of()
    output = Discriminate("global", game(LOCAL, ONE_JUDGE)).compute(forward, batch)
    noise = noise_of(forward, LOCAL, 4)
    fakes = np.concatenate([noise[n] * (n + 1) for n in range(PAIRS)])
    assert float(output.losses["fake"]) == pytest.approx(np.maximum(0, 1.5 + fakes.sum(-1)).mean(), rel=1e-5)
    real = batch["inputs"].numpy().sum(-1)
    assert float(output.losses["real"]) == pytest.approx(np.maximum(0, 0.5 - real).mean(), rel=1e-5)


def test_evaluation_shows_all_examples_without_padding_to_every_pair():
    inputs = batch_of(7)["inputs"]
    padded = {"inputs": tf.concat([inputs, 1e6 * tf.ones([3, 2])], 0), "weights": tf.constant([1.0] * 7 + [0.0] * 3)}
    output = Discriminate("local", game()).compute(forward_of(training=False), padded)
    rows = inputs.numpy().sum(-1)
    expected = sum(np.maximum(0, 1 - (rows + 0.5 * n)).mean() for n in range(PAIRS))
    assert float(output.losses["real"]) == pytest.approx(expected, rel=1e-4)
    together = Discriminate("global", game(LOCAL, ONE_JUDGE)).compute(forward_of(training=False), padded)
    assert float(together.metrics["real_score"]) == pytest.approx(rows.mean() + 0.5, rel=1e-4)


def test_discriminator_loss_has_no_gradient_in_generators():
    forward = forward_of()
    weight = tf.constant(2.0)
    forward.networks["g0"] = lambda noise: noise * weight
    with tf.GradientTape() as tape:
        tape.watch(weight)
        losses = Discriminate("local", game()).compute(forward, batch_of()).losses
        total = tf.add_n(list(losses.values()))
    assert tape.gradient(total, weight) is None


def test_samples_come_from_every_generator_with_separate_noise():
    class Count:
        def collect(self, batch):
            return {"seen": batch["inputs"]}

        def metrics(self, samples, collected):
            return {"modes": tf.reduce_mean(samples), "size": tf.cast(len(collected["seen"]), tf.float32)}

    objective = Generate("local", game(samples=40), quality=Count())
    forward = forward_of(training=False)
    (samples,) = objective.sample(forward).values()
    noise = noise_of(forward, LOCAL, 40, use="sample")
    np.testing.assert_allclose(samples, noise * np.array([1.0, 2.0, 3.0])[:, None, None], rtol=1e-6)
    assert not np.array_equal(noise[:, :4], noise_of(forward, LOCAL, 4))
    collected = objective.compute(forward, batch_of(5)).collected
    assert objective.compute(forward_of(), batch_of()).collected == {}  # training collects nothing
    metrics = objective.split_metrics({"samples": samples, **collected})
    means = samples.numpy().mean(axis=(1, 2))
    assert float(metrics["modes"]) == pytest.approx(means.mean(), rel=1e-4)
    assert float(metrics["best_modes"]) == pytest.approx(means.max(), rel=1e-4)
    assert float(metrics["size"]) == 5.0


def test_batch_is_divided_by_updates_and_penalties_sum_over_pairs():
    forward = forward_of()
    Generate("local", game(updates=2)).compute(forward, batch_of())
    assert forward.sizes["d0"] == [2]
    judge = Discriminate("local", game(updates=2))
    forward = forward_of()
    judge.compute(forward, batch_of(BATCH // 2))  # as the trainer divides it
    assert (forward.sizes["d0"], judge.updates, judge.trains) == ([2, 2], 2, JUDGES.names)
    maker = Generate("any", game(ONE_MAKER, updates=2))
    assert (maker.updates, maker.trains) == (1, ("g1",))
    assert_refused("13 examples", Discriminate("any", game()).compute, forward_of(), batch_of(13))

    def compute(inputs):
        objective = Discriminate("local", game(loss="wasserstein", gradient_penalty=0.1, penalty="r1"))
        return objective.compute(forward_of(), {"inputs": inputs}).losses["gradient_penalty"]

    found = tf.function(compute, autograph=False)(batch_of()["inputs"])
    assert float(found) == pytest.approx(PAIRS * 0.1 * 0.5 * 2.0, rel=1e-5)  # each slope is (1, 1)


NETWORKS, EXAMPLES = 2, 5
SEED = (3, 4)


@pytest.fixture
def scores():
    model = gan_mlp((2,), role="discriminator", stacked=NETWORKS, units=[7], discriminator_activation="tanh")

    def of(points):
        return tf.cast(model(points), tf.float32)[..., 0]

    of.model = model
    return of


def draw(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def traced(function, *arrays):
    """Run a function in a graph, where `tf.gradients` works."""
    return tf.function(function, autograph=False)(*(tf.constant(array) for array in arrays)).numpy()


def slopes_by_differences(scores, points, step=1e-2):
    """Return the norm of each score's gradient by central differences: [networks, batch]."""
    axes = [np.eye(2, dtype=np.float32)[axis] * step for axis in range(2)]
    partial = [(scores(points + axis).numpy() - scores(points - axis).numpy()) / (2 * step) for axis in axes]
    return np.sqrt(np.sum(np.square(partial), axis=0))


def penalty(kind, scores, real, fake):
    return slope_penalty(kind, scores, real, fake, tf.constant(SEED), tf.gradients)


def test_penalties_match_papers(scores):
    real, fake = draw((NETWORKS, EXAMPLES, 2)), draw((NETWORKS, EXAMPLES, 2), 1)
    found = traced(lambda points: penalty("r1", scores, points, points), real)
    assert found.shape == (NETWORKS, EXAMPLES)
    np.testing.assert_allclose(found, 0.5 * slopes_by_differences(scores, real) ** 2, rtol=2e-3, atol=1e-5)
    share = tf.random.stateless_uniform([NETWORKS, EXAMPLES, 1], SEED).numpy()
    assert len(np.unique(share)) == NETWORKS * EXAMPLES  # a different place for each
    expected = (slopes_by_differences(scores, share * real + (1 - share) * fake) - 1) ** 2
    more = np.concatenate([fake, fake[:, :3]], axis=1)  # surplus generated examples are cut
    for made in (fake, more):
        found = traced(lambda a, b: penalty("two_sided", scores, a, b), real, made)
        np.testing.assert_allclose(found, expected, rtol=5e-3, atol=1e-4)


@pytest.mark.parametrize("kind", PENALTIES)
def test_gradient_of_penalty_matches_finite_differences(scores, kind):
    real, fake = draw((NETWORKS, EXAMPLES, 2)), draw((NETWORKS, EXAMPLES, 2), 1)
    kernel = scores.model.trainable_variables[0]

    def total(a, b):
        return tf.reduce_sum(3.0 * penalty(kind, scores, a, b))

    gradient = traced(lambda a, b: tf.gradients(total(a, b), [kernel.value])[0], real, fake)
    start, moved = kernel.numpy(), draw(kernel.shape, 2)
    step, values = 1e-2, []
    for sign in (1, -1):
        kernel.assign(start + sign * step * moved)
        values.append(float(traced(total, real, fake)))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(np.sum(gradient * moved)), rel=2e-2)


def test_zero_slope_gives_finite_gradient():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])

    def flat(points):
        return tf.reshape(model(tf.reshape(points, [-1, 2])), tf.shape(points)[:2])

    def gradient(a, b):
        return tf.gradients(tf.reduce_sum(penalty("two_sided", flat, a, b)), [model.trainable_variables[0].value])[0]

    assert np.isfinite(traced(gradient, draw((1, EXAMPLES, 2)), draw((1, EXAMPLES, 2), 1))).all()


SCORES = st.lists(st.floats(-50.0, 50.0, width=32), min_size=1, max_size=8)


def sigmoid(scores: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-scores))


ORACLES = {
    # name: (real, fake, generator) in float64, from the papers' formulas
    "non_saturating": (
        lambda s: -np.log(sigmoid(s)),
        lambda s: -np.log(sigmoid(-s)),  # 1 - sigmoid(s), without its loss of precision
        lambda s: -np.log(sigmoid(s)),
    ),
    "hinge": (lambda s: np.maximum(0.0, 1.0 - s), lambda s: np.maximum(0.0, 1.0 + s), lambda s: -s),
    "wasserstein": (lambda s: -s, lambda s: s, lambda s: -s),
}


@pytest.mark.parametrize("name", LOSSES)
@given(scores=SCORES)
def test_every_loss_term_matches_formula_of_paper(name: str, scores: list[float]):
    values = np.array(scores, np.float64)
    loss = LOSSES[name]
    for term, oracle in zip((loss.real, loss.fake, loss.generator), ORACLES[name], strict=True):
        found = term(tf.constant(scores, tf.float32)).numpy()
        np.testing.assert_allclose(found, oracle(values), rtol=1e-4, atol=1e-5)
        assert found.shape == values.shape


@pytest.mark.parametrize("kind", NOISES)
def test_noise_has_its_distribution_and_a_seed_for_each_generator(kind):
    seeds = PlainForward({})
    noise = draw_noise(seeds, 3, 4000, 4, kind=kind).numpy()
    assert (noise.shape, noise.dtype) == ((3, 4000, 4), np.float32)
    expected = {"normal": 1.0, "uniform": 1.0 / 3.0}[kind]
    np.testing.assert_allclose(noise.mean(axis=1), 0.0, atol=0.06)
    np.testing.assert_allclose(noise.var(axis=1), expected, rtol=0.08)
    assert (np.abs(noise).max() <= 1.0) == (kind == "uniform")
    assert not any(np.array_equal(noise[one], noise[two]) for one, two in ((0, 1), (0, 2), (1, 2)))
    np.testing.assert_array_equal(draw_noise(seeds, 2, 4000, 4, kind=kind), noise[:2])  # however many others draw
    assert not np.array_equal(draw_noise(seeds, 3, 4000, 4, kind=kind, use="sample"), noise)
