"""The pictures and embeddings of a run: of hooks from what they observe, of objectives from what they collect."""

from __future__ import annotations

from dataclasses import dataclass, replace

import keras
import numpy as np
import pytest

from tests.support.toy import SIZE, StatelessHook, ToyObjective, toy_arrays, toy_network
from trainer.embedding import Embedding
from trainer.input.batches import EvaluationBatches, TrainingBatches
from trainer.input.data import Split
from trainer.input.source import ArraySource
from trainer.network import Network
from trainer.run.views import Evaluated, Views
from trainer.step.evaluate import Evaluator
from trainer.step.observe import Observer
from trainer.step.trainer import Trainer

ROWS = {"validation": np.arange(24), "test": np.arange(24, SIZE)}


class Painter(StatelessHook):
    """Paint the mean of the observed outputs, and give them as embeddings."""

    observed_examples = 4
    painted = 0

    def observe(self, context):
        return {"outputs": context.outputs}

    def pictures(self, observed):
        self.painted += 1
        return {"probe/mean": np.full((2, 2, 1), 1.0 / (1.0 + np.exp(-observed["outputs"].mean())))}

    def embeddings(self, observed):
        return {"probe": Embedding(observed["outputs"])}


class Blind(StatelessHook):
    """Show whether anything was observed for a hook that observes nothing."""

    def pictures(self, observed):
        return {"blind": np.full((1, 1, 1), float(len(observed)))}


class Album(ToyObjective):
    """Show the row whose logits are the largest, and the logits of the split with the inputs as labels."""

    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        output.collected = {"logits": output.outputs}
        return output

    def pictures(self, collected, examples):
        row = int(collected["logits"].max(-1).argmax())
        return {f"{self.name}/row": np.clip(examples([row])["inputs"].reshape(1, 6, 1), 0.0, 1.0)}

    def embeddings(self, collected, examples):
        inputs = examples(range(len(collected["logits"])))["inputs"]
        return {self.name: Embedding(collected["logits"], {"first": inputs[:, 0]})}


@dataclass
class Scene:
    """Hold views with what they are made from."""

    views: Views
    painter: Painter
    networks: list[Network]


@pytest.fixture
def scene() -> Scene:
    inputs, targets = toy_arrays()
    source = ArraySource({"inputs": inputs, "targets": targets}, lambda batch: batch)
    splits = {name: Split(name, source, rows.astype(np.int64)) for name, rows in ROWS.items()}
    networks, painter = [toy_network("first"), toy_network("second")], Painter()
    painter.network = "first"
    blind = Blind("blind")
    blind.network = "second"
    objectives = [Album("first", "album_1"), Album("second", "album_2")]
    trainer = Trainer(networks, objectives, [painter, blind], seed=0)
    evaluated = {}
    for name, split in splits.items():
        batches = EvaluationBatches(split, batch_size=16)
        evaluated[name] = Evaluated(split, Evaluator(trainer, batches.batch, batches.count))
        evaluated[name].evaluator.run(1)
    observer = Observer(trainer, splits["validation"], batch_size=16)
    return Scene(Views(trainer.hooks, trainer.objectives, observer, evaluated), painter, networks)


def logits_of(network: Network, rows: np.ndarray) -> np.ndarray:
    return network.model.predict(toy_arrays()[0][rows], verbose=0)


@pytest.mark.parametrize("split", ROWS)
def test_pictures_are_of_hooks_and_of_the_split_that_was_evaluated(scene: Scene, split: str) -> None:
    made = scene.views.pictures(1, split)
    assert made.keys() == {"probe/mean", "blind", "album_1/row", "album_2/row"}
    for number, network in enumerate(scene.networks, start=1):
        best = ROWS[split][logits_of(network, ROWS[split]).max(-1).argmax()]
        expected = np.clip(toy_arrays()[0][best], 0.0, 1.0).reshape(1, 6, 1)
        np.testing.assert_array_equal(made[f"album_{number}/row"], expected)
    observed = logits_of(scene.networks[0], ROWS["validation"][[0, 8, 15, 23]])
    np.testing.assert_allclose(made["probe/mean"], np.full((2, 2, 1), 1 / (1 + np.exp(-observed.mean()))), atol=1e-5)
    assert made["blind"] == 0.0


@pytest.mark.parametrize("split", ROWS)
def test_embeddings_are_of_hooks_and_of_the_split_that_was_evaluated(scene: Scene, split: str) -> None:
    found = scene.views.embeddings(1, split)
    assert found.keys() == {"probe", "album_1", "album_2"}
    for number, network in enumerate(scene.networks, start=1):
        shown = found[f"album_{number}"]
        np.testing.assert_allclose(shown.vectors, logits_of(network, ROWS[split]), atol=1e-5)
        np.testing.assert_array_equal(shown.labels["first"], toy_arrays()[0][ROWS[split], 0])
    observed = logits_of(scene.networks[0], ROWS["validation"][[0, 8, 15, 23]])
    np.testing.assert_allclose(found["probe"].vectors, observed, atol=1e-5)


def test_who_looks_second_gets_the_pictures_that_were_made_for_the_first(scene: Scene) -> None:
    first = scene.views.pictures(1, "validation")
    assert scene.views.pictures(1, "validation") is first
    assert scene.painter.painted == 1
    assert scene.views.pictures(1, "test") is not first
    assert scene.views.pictures(2, "test") is not first
    assert scene.painter.painted == 3


def test_training_examples_are_drawn_once_and_where_they_are_images_alone(scene: Scene) -> None:
    assert scene.views.first_pictures() == {}
    images = ArraySource({"inputs": np.ones((4, 5, 5, 1), np.float32)}, lambda batch: batch)
    training = TrainingBatches(Split("train", images, np.arange(4)), batch_size=4, seed=0)
    shown = Views([], [], scene.views.observer, {}, training)
    first = shown.first_pictures()
    assert first["input/training_examples"].max() == 1.0
    assert shown.first_pictures() is first


def image_network(name: str) -> Network:
    inputs = keras.Input((6, 6, 1))
    return Network(name, keras.Model(inputs, keras.layers.Conv2D(2, 3, name="conv")(inputs)), keras.optimizers.SGD())


@pytest.mark.parametrize("images", [[], ["first"], ["first", "second"]])
def test_weights_are_read_for_pictures_where_a_network_sees_images_alone(scene: Scene, images: list[str]) -> None:
    networks = {name: (image_network if name in images else toy_network)(name) for name in ("first", "second")}
    asked = []

    def shipped(step):
        asked.append(step)
        return {name: {key: each.value.numpy() for key, each in it.weights.items()} for name, it in networks.items()}

    made = replace(scene.views, networks=networks, shipped=shipped).pictures(3, "test")
    assert {name for name in made if "filters" in name} == {f"{name}/filters/conv" for name in images}
    assert asked == [3] * bool(images)


def test_who_has_nothing_to_show_gives_none() -> None:
    assert StatelessHook().pictures({}) == StatelessHook().embeddings({}) == {}
    assert ToyObjective().pictures({}, lambda positions: {}) == {}
    assert ToyObjective().embeddings({}, lambda positions: {}) == {}
