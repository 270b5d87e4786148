"""The pictures and embeddings of a run: of hooks from what they observe, of objectives from what they collect."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import layers

from hookline.trainer import hook
from hookline.trainer.input.batches import EvaluationBatches
from hookline.trainer.input.data import Split
from hookline.trainer.input.source import ArraySource
from hookline.trainer.network import Network
from hookline.trainer.objective import Embedding, Shown
from hookline.trainer.run.views import GAP, Evaluated, Views, first_filters, first_kernel, weight_distributions
from hookline.trainer.step.evaluate import Evaluator, Observer
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import SIZE, StatelessHook, ToyObjective, toy_arrays, toy_network

ROWS = {"validation": np.arange(24), "test": np.arange(24, SIZE)}


class Painter(StatelessHook):
    """Paint the mean of the observed outputs, and give them as embeddings."""

    observed_examples = 4
    painted = 0

    def evaluate(self, context):
        return hook.Evaluated(collected={"outputs": context.outputs} if context.observing else {})

    def show(self, observed):
        self.painted += 1
        mean = np.full((2, 2, 1), 1.0 / (1.0 + np.exp(-observed["outputs"].mean())))
        return Shown({"probe/mean": mean}, {"probe": Embedding(observed["outputs"])})


class Blind(StatelessHook):
    """Show whether anything was observed for a hook that observes nothing."""

    def show(self, observed):
        return Shown({"blind": np.full((1, 1, 1), float(len(observed)))})


class Album(ToyObjective):
    """Show the row whose logits are the largest, and the logits of the split with the inputs as labels."""

    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        output.collected = {"logits": output.outputs}
        return output

    def show(self, collected, examples):
        row = int(collected["logits"].max(-1).argmax())
        picture = np.clip(examples([row])["inputs"].reshape(1, 6, 1), 0.0, 1.0)
        inputs = examples(range(len(collected["logits"])))["inputs"]
        embedding = Embedding(collected["logits"], {"first": inputs[:, 0]})
        return Shown({f"{self.name}/row": picture}, {self.name: embedding})


@pytest.fixture
def scene() -> SimpleNamespace:
    inputs, targets = toy_arrays()
    source = ArraySource({"inputs": inputs, "targets": targets}, lambda batch: batch)
    splits = {name: Split(name, source, rows.astype(np.int64)) for name, rows in ROWS.items()}
    networks, painter, blind = [toy_network("first"), toy_network("second")], Painter(), Blind("blind")
    painter.network, blind.network = "first", "second"
    objectives = [Album("first", "album_1"), Album("second", "album_2")]
    trainer = Trainer(networks, objectives, [painter, blind], seed=0)
    evaluated = {}
    for name, split in splits.items():
        batches = EvaluationBatches(split, batch_size=16)
        evaluated[name] = Evaluated(split, Evaluator(trainer, batches.batch, batches.count))
        evaluated[name].evaluator.run(1)
    observer = Observer(trainer, splits["validation"], batch_size=16)
    views = Views(trainer.hooks, trainer.objectives, observer, evaluated)
    return SimpleNamespace(views=views, painter=painter, networks=networks)


def logits_of(network: Network, rows: np.ndarray) -> np.ndarray:
    return network.model.predict(toy_arrays()[0][rows], verbose=0)


@pytest.mark.parametrize("split", ROWS)
def test_views_are_of_hooks_and_of_the_split_that_was_evaluated(scene, split: str) -> None:
    made, found = scene.views.pictures(1, split), scene.views.embeddings(1, split)
    assert made.keys() == {"probe/mean", "blind", "album_1/row", "album_2/row"}
    assert found.keys() == {"probe", "album_1", "album_2"}
    inputs = toy_arrays()[0]
    for number, network in enumerate(scene.networks, start=1):
        logits, shown = logits_of(network, ROWS[split]), found[f"album_{number}"]
        best = ROWS[split][logits.max(-1).argmax()]
        np.testing.assert_array_equal(made[f"album_{number}/row"], np.clip(inputs[best], 0.0, 1.0).reshape(1, 6, 1))
        np.testing.assert_allclose(shown.vectors, logits, atol=1e-5)
        np.testing.assert_array_equal(shown.labels["first"], inputs[ROWS[split], 0])
    observed = logits_of(scene.networks[0], ROWS["validation"][[0, 8, 15, 23]])
    np.testing.assert_allclose(found["probe"].vectors, observed, atol=1e-5)
    np.testing.assert_allclose(made["probe/mean"], np.full((2, 2, 1), 1 / (1 + np.exp(-observed.mean()))), atol=1e-5)
    assert made["blind"] == 0.0


def test_who_looks_second_gets_the_pictures_that_were_made_for_the_first(scene) -> None:
    first = scene.views.pictures(1, "validation")
    assert scene.views.pictures(1, "validation") is first
    assert scene.views.pictures(1, "test") is not first
    assert scene.views.pictures(2, "test") is not first
    assert scene.painter.painted == 3


def test_latent_weights_stand_beside_used_ones_where_they_differ() -> None:
    inputs = keras.Input((6, 5, 1))
    outputs = layers.Dense(2, name="d")(layers.Flatten()(layers.Conv2D(2, 3, name="conv")(inputs)))
    network = Network("model", keras.Model(inputs, outputs), keras.optimizers.SGD())
    used, latent = ({name: each.value.numpy() for name, each in network.weights.items()} for _ in range(2))
    used["conv/kernel"] = np.sign(used["conv/kernel"])
    found = weight_distributions({"model": network}, {"model": used})
    assert list(found) == ["weights/conv/kernel/latent", "weights/conv/kernel/forward", "weights/d/kernel/latent"]
    np.testing.assert_array_equal(found["weights/conv/kernel/forward"], used["conv/kernel"])
    np.testing.assert_array_equal(found["weights/conv/kernel/latent"], latent["conv/kernel"])
    several = weight_distributions({"a": network, "b": network}, dict.fromkeys("ab", latent))
    assert list(several) == [
        f"{name}/weights/{kernel}/latent" for name in "ab" for kernel in ("conv/kernel", "d/kernel")
    ]


def network_of(*stack, shape=(6, 5, 1)):
    keras.utils.clear_session()
    network = Network("model", keras.Sequential([keras.Input(shape), *stack]), keras.optimizers.SGD())
    return network, {name: each.value.numpy() for name, each in network.weights.items()}


@pytest.mark.parametrize("channels", [1, 3])
def test_a_convolution_shows_its_filters_in_order(channels: int) -> None:
    network, weights = network_of(layers.Conv2D(5, 3, name="conv"), shape=(8, 8, channels))
    ((name, sheet),) = first_filters(network, weights).items()
    kernel = next(value for value in weights.values() if value.ndim == 4)
    assert name.endswith("conv")
    assert sheet.shape == (2 * (24 + GAP) + GAP, 3 * (24 + GAP) + GAP, channels)
    for index in range(5):
        top, left = GAP + index // 3 * (24 + GAP), GAP + index % 3 * (24 + GAP)
        tile = sheet[top : top + 24 : 8, left : left + 24 : 8]
        np.testing.assert_allclose((tile - 0.5) * 2 * np.abs(kernel).max(), kernel[..., index], atol=1e-6)
    assert (sheet[-24:, -24:] == 1.0).all()  # no sixth filter
    kernel[0, 0, 0, 0] = np.nan
    assert first_filters(network, weights) == {}


def test_other_first_layers_have_no_picture() -> None:
    for stack, shape in (
        ([layers.Dense(3)], (4,)),
        ([layers.Conv2D(4, 1)], (6, 6, 1)),
        ([layers.Conv2D(4, 3)], (6, 6, 2)),
        ([layers.GlobalAveragePooling2D(), layers.Dense(4)], (6, 6, 3)),
    ):
        network, weights = network_of(*stack, shape=shape)
        assert (first_kernel(network), first_filters(network, weights)) == (None, {})
