"""The pictures and embeddings of a run: of hooks, objectives, weights and training examples."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from hookline.trainer import hook
from hookline.trainer.input.augment import Augment, Augmentation
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import ArraySource, Split
from hookline.trainer.input.order import uniform
from hookline.trainer.network import Network
from hookline.trainer.objective import Embedding, Shown
from hookline.trainer.run.control import Report
from hookline.trainer.run.views import DRAWS, GAP, PANEL_GAP, ROWS, HeldOut, Views, first_filters, training_sheet
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import SIZE, StatelessHook, ToyObjective, toy_arrays, toy_network

OF_SPLIT = {"validation": np.arange(24), "test": np.arange(24, SIZE)}


class Painter(StatelessHook):
    observed_examples = 4

    def evaluate(self, context):
        return hook.Evaluated(collected={"outputs": context.outputs} if context.observing else {})

    def show(self, observed):
        mean = np.full((2, 2, 1), 1.0 / (1.0 + np.exp(-observed["outputs"].mean())))
        return Shown({"probe/mean": mean}, {"probe": Embedding(observed["outputs"])})


class Album(ToyObjective):
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


def logits_of(network, rows):
    return network.model(toy_arrays()[0][rows]).numpy()


def test_views_show_hooks_and_objectives_for_the_evaluated_split():
    inputs, targets = toy_arrays()
    source = ArraySource({"inputs": inputs, "targets": targets}, lambda batch: batch)
    splits = {name: Split(name, source, rows.astype(np.int64)) for name, rows in OF_SPLIT.items()}
    first, second, painter = toy_network("first"), toy_network("second"), Painter()
    painter.network = "first"
    objectives = [Album("first", "album_1"), Album("second", "album_2")]
    trainer = Trainer([first, second], objectives, [painter], seed=0)
    held_out = {name: HeldOut(trainer, split, batch_size=16) for name, split in splits.items()}
    for each in held_out.values():
        each.run(1)
    settings = {"evaluation_batch_size": 16, "placement": "auto"}
    data = SimpleNamespace(validation=splits["validation"])
    given = {"trainer": trainer, "networks": trainer.networks, "hooks": trainer.hooks, "held_out": held_out}
    views = Views(SimpleNamespace(**given, data=data, settings=settings))
    for split, rows in OF_SPLIT.items():
        every = views.shown(Report(1, split, {}))
        made, found = every.pictures, every.embeddings
        assert made.keys() == {"probe/mean", "album_1/row", "album_2/row"}
        assert found.keys() == {"probe", "album_1", "album_2"}
        for number, network in enumerate((first, second), start=1):
            logits, shown = logits_of(network, rows), found[f"album_{number}"]
            best = inputs[rows[logits.max(-1).argmax()]]
            np.testing.assert_array_equal(made[f"album_{number}/row"], np.clip(best, 0.0, 1.0).reshape(1, 6, 1))
            np.testing.assert_allclose(shown.vectors, logits, atol=1e-5)
            np.testing.assert_array_equal(shown.labels["first"], inputs[rows, 0])
        observed = logits_of(first, OF_SPLIT["validation"][[0, 8, 15, 23]])
        np.testing.assert_allclose(found["probe"].vectors, observed, atol=1e-5)
        mean = np.full((2, 2, 1), 1 / (1 + np.exp(-observed.mean())))
        np.testing.assert_allclose(made["probe/mean"], mean, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_convolution_filters_are_shown_in_order(channels):
    model = keras.Sequential([keras.Input((8, 8, channels)), layers.Conv2D(5, 3, name="conv")])
    network = Network("model", model, keras.optimizers.SGD())
    weights = {name: each.value.numpy() for name, each in network.weights.items()}
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


class Lighter(Augment):
    name = "lighter"

    def __call__(self, batch, seeds):
        return {**batch, "inputs": batch["inputs"] + uniform(seeds, "light", [1, 1, 1], high=0.5)}


def test_augmented_sheet_shows_an_example_and_its_first_draws_per_row():
    shades = np.linspace(-1.0, 0.0, 200, dtype=np.float32)[:, None, None, None]
    arrays = {"inputs": np.tile(shades, (1, 16, 16, 1)), "targets": np.zeros(200, np.int64)}
    split = Split("train", ArraySource(arrays, lambda batch: batch), np.arange(200, dtype=np.int64))
    augmentation = Augmentation((Lighter(),), classes=2)
    training = TrainingBatches(split, batch_size=40, seed=0, augmentation=augmentation)
    sheet = training_sheet(training)
    middles = [np.arange(PANEL_GAP + 24, size, 48 + PANEL_GAP) for size in sheet.shape[:2]]  # of the tiles
    columns = middles[1] + np.where(np.arange(len(middles[1])) > 0, 3 * PANEL_GAP, 0)  # the first one stands apart
    shown = sheet[middles[0]][:, columns[columns < sheet.shape[1]], 0]
    assert shown.shape == (ROWS, DRAWS + 1)
    rows = training.indices(tf.constant(0, tf.int64))[:ROWS]
    drawn = [training.drawn(rows, tf.constant(draw, tf.int64)) for draw in range(DRAWS)]
    expected = np.stack([each["inputs"][:, 0, 0, 0] for each in (training.read(rows), *drawn)], axis=1)
    np.testing.assert_allclose(shown, (expected + 1) / 2, atol=1e-6)
    first = training.batch(tf.constant(0, tf.int64))["inputs"][:ROWS, 0, 0, 0]
    np.testing.assert_allclose(shown[:, 1], (first + 1) / 2, atol=1e-6)
