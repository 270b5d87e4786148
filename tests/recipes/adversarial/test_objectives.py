"""The two objectives: who sees what, losses by their formulas, and what reaches which network."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.adversarial.objectives import Discriminate, Game, Generate, Group
from hookline.recipes.adversarial.settings import LOSSES, Noise, Penalty
from tests.support.refusals import assert_refused


class PlainForward:
    """Stand for the forward of an objective: networks are functions."""

    def __init__(self, networks: Mapping[str, Callable[[tf.Tensor], tf.Tensor]], *, training: bool = True) -> None:
        self.networks, self.training = dict(networks), training
        self.called: list[str] = []
        self.sizes: dict[str, list[int]] = {}

    def __call__(self, name: str, inputs: Any) -> Any:
        self.called.append(name)
        self.sizes.setdefault(name, []).append(inputs.shape[0])
        return self.networks[name](inputs)

    def stateless_seed(self, salt: str) -> tf.Tensor:
        """Return a seed for each salt."""
        digest = hashlib.sha256(salt.encode()).digest()
        return tf.constant([int.from_bytes(digest[:3]), int.from_bytes(digest[3:6])])

    def gradients(self, value: tf.Tensor, sources: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
        """Return gradients without a scale."""
        return tf.gradients(value, list(sources))


BATCH = 12
PAIRS = 3


def makers(name, place):
    """A generator that multiplies noise by a number of its own."""
    return lambda noise: noise * (place + 1.0)


def judge(place):
    """A discriminator that adds both numbers of an example and a number of its own."""
    return lambda examples: tf.reduce_sum(examples, axis=-1, keepdims=True) + 0.5 * place


def forward_of(**options):
    networks = {f"g{place}": makers("g", place) for place in range(PAIRS)}
    networks |= {f"d{place}": judge(place) for place in range(PAIRS)}
    return PlainForward(networks, **options)


LOCAL = Group(("g0", "g1", "g2"), PAIRS)
JUDGES = Group(("d0", "d1", "d2"), PAIRS)
ONE_MAKER, ONE_JUDGE = Group(("g1",), 1), Group(("d1",), 1)


def game(generators=LOCAL, discriminators=JUDGES, loss="hinge", updates=1):
    return Game(generators, discriminators, LOSSES[loss], Noise(2), updates)


def batch_of(size=BATCH, **more):
    return {"inputs": tf.random.stateless_normal([size, 2], [1, 2]), **more}


def noise_of(forward, group, count, use="noise"):
    return Noise(2).draw(forward, group.count, count, use=use).numpy()


def test_every_pair_plays_alone_with_data_of_its_own():
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


def test_one_generator_is_judged_by_all_and_gets_their_mean():
    forward = forward_of()
    output = Generate("global", game(ONE_MAKER)).compute(forward, batch_of())
    fakes = (noise_of(forward, ONE_MAKER, BATCH)[0] * 2.0).reshape(PAIRS, 4, 2)
    scores = [(fakes[n].sum(-1) + 0.5 * n).mean() for n in range(PAIRS)]
    assert float(output.losses["generator"]) == pytest.approx(-np.mean(scores), rel=1e-4)
    assert sorted(forward.called) == ["d0", "d1", "d2", "g1"]


def test_one_discriminator_sees_all_data_and_a_part_of_every_generator():
    forward, batch = forward_of(), batch_of()
    output = Discriminate("global", game(LOCAL, ONE_JUDGE)).compute(forward, batch)
    noise = noise_of(forward, LOCAL, 4)
    fakes = np.concatenate([noise[n] * (n + 1) for n in range(PAIRS)])
    assert float(output.losses["fake"]) == pytest.approx(np.maximum(0, 1.5 + fakes.sum(-1)).mean(), rel=1e-5)
    real = batch["inputs"].numpy().sum(-1)
    assert float(output.losses["real"]) == pytest.approx(np.maximum(0, 0.5 - real).mean(), rel=1e-5)


def test_an_evaluation_shows_every_example_without_the_padding():
    inputs = batch_of(7)["inputs"]
    padded = {"inputs": tf.concat([inputs, 1e6 * tf.ones([3, 2])], 0), "weights": tf.constant([1.0] * 7 + [0.0] * 3)}
    output = Discriminate("local", game(loss="wasserstein")).compute(forward_of(training=False), padded)
    real = inputs.numpy().sum(-1).mean()
    assert float(output.losses["real"]) == pytest.approx(-sum(real + 0.5 * n for n in range(PAIRS)), rel=1e-4)
    together = Discriminate("global", game(LOCAL, ONE_JUDGE)).compute(forward_of(training=False), padded)
    assert float(together.metrics["real_score"]) == pytest.approx(real + 0.5, rel=1e-4)


def test_nothing_flows_from_a_discriminators_loss_into_generators():
    forward = forward_of()
    weight = tf.constant(2.0)
    forward.networks["g0"] = lambda noise: noise * weight
    with tf.GradientTape() as tape:
        tape.watch(weight)
        losses = Discriminate("local", game()).compute(forward, batch_of()).losses
        total = tf.add_n(list(losses.values()))
    assert tape.gradient(total, weight) is None


def test_samples_are_of_every_generator_and_have_noise_of_their_own():
    class Count:
        def collect(self, batch):
            return {"seen": batch["inputs"]}

        def metrics(self, samples, collected):
            return {"modes": tf.reduce_mean(samples), "size": tf.cast(len(collected["seen"]), tf.float32)}

    objective = Generate("local", game(), quality=Count(), samples=40)
    forward = forward_of(training=False)
    (samples,) = objective.sample(forward).values()
    noise = noise_of(forward, LOCAL, 40, use="sample")
    np.testing.assert_allclose(samples, noise * np.array([1.0, 2.0, 3.0])[:, None, None], rtol=1e-6)
    assert not np.array_equal(noise[:, :4], noise_of(forward, LOCAL, 4))
    collected = objective.compute(forward, batch_of(5)).collected
    assert objective.compute(forward_of(), batch_of()).collected == {}  # training keeps nothing
    metrics = objective.split_metrics({"samples": samples, **collected})
    means = samples.numpy().mean(axis=(1, 2))
    assert float(metrics["modes"]) == pytest.approx(means.mean(), rel=1e-4)
    assert float(metrics["best_modes"]) == pytest.approx(means.max(), rel=1e-4)
    assert float(metrics["size"]) == 5.0


def test_samples_and_penalties_are_by_update_and_discriminator():
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
        objective = Discriminate("local", game(loss="wasserstein"), penalty=Penalty("r1", 0.1))
        return objective.compute(forward_of(), {"inputs": inputs}).losses["gradient_penalty"]

    found = tf.function(compute, autograph=False)(batch_of()["inputs"])
    assert float(found) == pytest.approx(PAIRS * 0.1 * 0.5 * 2.0, rel=1e-5)  # each slope is (1, 1)


COUNT, EXAMPLES = 3, 6
