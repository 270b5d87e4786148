"""What the center loss shows: evaluations, pictures, embeddings, and what a run leaves of them."""

from __future__ import annotations

import json
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.projector.projector_plugin import ProjectorPlugin
from werkzeug.test import Client

from hooks.center_loss import CenterLoss
from tests.support.centers import built, center_loop, feature_network, features_of
from tests.support.command import run_small
from tests.support.toy import SIZE, ToyObjective, toy_arrays, toy_network
from trainer.input.batches import EvaluationBatches
from trainer.input.data import Split
from trainer.input.source import ArraySource
from trainer.run.checkpoint import CheckpointStore
from trainer.step.evaluate import Evaluator
from trainer.step.observe import Observer
from trainer.step.trainer import Trainer


def split(rows: int = 24) -> Split:
    inputs, targets = toy_arrays()
    source = ArraySource({"inputs": inputs, "targets": targets}, lambda batch: batch)
    return Split("validation", source, np.arange(rows, dtype=np.int64))


def evaluate(network, hook, *, rows: int = 24, step: int = 100) -> dict[str, float]:
    batches = EvaluationBatches(split(rows), batch_size=16)
    trainer = Trainer([network], [ToyObjective()], [hook], seed=0)
    return Evaluator(trainer, batches.batch, batches.count).run(step)


def test_an_evaluation_reports_the_loss_and_the_distances_of_the_whole_split_without_its_padding() -> None:
    network = feature_network()
    hook = built(network, weight=0.2)
    centers = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    hook.state()["centers"].assign(centers)
    values = evaluate(network, hook)
    inputs, targets = (each[:24] for each in toy_arrays())
    features = features_of(network, {"inputs": inputs})
    loss = 0.1 * np.square(features - centers[targets]).sum(axis=-1).mean()
    assert values["loss/center"] == pytest.approx(loss, rel=1e-5)
    means = np.stack([features[targets == label].mean(axis=0) for label in range(3)])
    within = np.linalg.norm(features - means[targets], axis=-1).mean()
    between = np.mean([np.linalg.norm(means[i] - means[j]) for i, j in ((0, 1), (0, 2), (1, 2))])
    assert values["metric/center_within"] == pytest.approx(within, rel=1e-5)
    assert values["metric/center_between"] == pytest.approx(between, rel=1e-5)
    assert values["metric/center_ratio"] == pytest.approx(within / between, rel=1e-5)
    np.testing.assert_array_equal(hook.state()["centers"].numpy(), centers)


def test_a_label_that_is_no_class_shows_in_an_evaluation() -> None:
    network = feature_network()
    hook = built(network)
    hook._centers = tf.Variable(tf.zeros([2, 2]))  # the data has a third class
    values = evaluate(network, hook)
    assert np.isnan(values["loss/center"])
    assert np.isnan(values["metric/center_ratio"])
    assert np.isfinite(values["metric/accuracy"])


def observe(network, hook, *, image_shape: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    given = split()
    if image_shape:
        inputs, targets = toy_arrays()
        source = ArraySource({"inputs": inputs.reshape(SIZE, *image_shape), "targets": targets}, lambda batch: batch)
        given = Split("validation", source, given.indices)
    trainer = Trainer([network], [ToyObjective()], [hook], seed=0)
    return Observer(trainer, given, batch_size=16).run(0)["center_loss"]


def test_two_features_are_drawn_as_they_are_with_their_centers() -> None:
    network = feature_network()
    hook = built(network)
    observed = observe(network, hook)
    np.testing.assert_array_equal(observed["labels"], toy_arrays()[1][:24])
    np.testing.assert_allclose(
        observed["features"], features_of(network, {"inputs": toy_arrays()[0][:24]}), rtol=1e-4, atol=1e-6
    )
    assert "images" not in observed
    (picture,) = hook.pictures(observed).values()
    assert list(hook.pictures(observed)) == ["center/features"]
    hook.state()["centers"].assign_add(tf.ones([3, 2]))
    (moved,) = hook.pictures(observed).values()
    assert (picture != moved).any()


def test_more_features_are_drawn_by_principal_components_and_the_name_says_so() -> None:
    network = toy_network()
    hook = built(network)
    observed = observe(network, hook)
    assert observed["features"].shape == (24, 8)
    pictures = hook.pictures(observed)
    assert list(pictures) == ["center/features_principal_components"]
    assert pictures["center/features_principal_components"].shape[-1] == 3
    observed["features"][:] = np.nan
    assert hook.pictures(observed) == {}


def test_embeddings_hold_features_classes_and_images() -> None:
    inputs = keras.Input((2, 3, 1))
    features = keras.layers.Dense(2, name="features")(keras.layers.Flatten()(inputs))
    network = feature_network()
    network.model = keras.Model(inputs, keras.layers.Dense(3, name="logits")(features))
    hook = built(network)
    observed = observe(network, hook, image_shape=(2, 3, 1))
    (embedding,) = hook.embeddings(observed).values()
    assert list(hook.embeddings(observed)) == ["center/features"]
    assert embedding.vectors is observed["features"]
    np.testing.assert_array_equal(embedding.labels["class"], toy_arrays()[1][:24])
    np.testing.assert_allclose(embedding.images, toy_arrays()[0][:24].reshape(24, 2, 3, 1))
    del observed["images"]
    assert next(iter(hook.embeddings(observed).values())).images is None


def test_watching_moves_nothing() -> None:
    network = feature_network()
    hook = built(network)
    loop = center_loop(network, [hook])
    loop.run(0, 3)
    before = {name: np.array(v.value) for name, v in network.variables.items()}
    centers = hook.state()["centers"].numpy()
    evaluate(network, hook)
    observe(network, hook)
    np.testing.assert_array_equal(hook.state()["centers"].numpy(), centers)
    for name, variable in network.variables.items():
        np.testing.assert_array_equal(variable.value, before[name])
    loop.run(3, 2)  # the training graph still measures its own batch
    assert np.isfinite(loop.accumulators.read()["center/distance"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the directory and the summary of a small run of the recipe, whose best step is not its last."""
    directory = tmp_path_factory.mktemp("runs") / "run"
    options = [
        "trainer.epochs=4",
        "hooks.center_loss.warm_up_epochs=0",
        "hooks.early_stopping=null",
        "optimizer.learning_rate=0.3",
        "schedule=constant",
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "At step .* the center loss dominates")  # the rate is too high on purpose
        return directory, run_small("center_loss", *options, run_dir=directory)


def test_a_run_leaves_a_picture_an_animation_and_an_embedding(run) -> None:
    directory, summary = run
    assert sorted(path.name for path in (directory / "pictures").iterdir()) == [
        *("center_features.gif", "center_features.png", "filters_conv_1_1.gif", "filters_conv_1_1.png"),
        "input_training_examples.png",
    ]
    with Image.open(directory / "pictures" / "center_features.gif") as animation:
        assert animation.n_frames == 4
        assert min(animation.size) >= 512
    projector = directory / "tensorboard" / "train"
    assert len((projector / "center_features.tsv").read_text().splitlines()) == 180
    assert set((projector / "center_features_labels.tsv").read_text().split()) == {str(digit) for digit in range(10)}
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        wanted = {"center/ratio"} if line["split"] == "train" else {"metric/center_ratio"}
        assert {"loss/center", *wanted} <= line.keys()
    assert summary["hooks"]["center_loss"] == {"weight": 0.3, "alpha": 0.5, "classes": 10, "dimensions": 2}
    assert summary["test"]["metric/center_ratio"] > 0


def test_the_embedding_is_of_the_best_weights_whose_centers_the_checkpoint_holds(run) -> None:
    directory, summary = run
    store = CheckpointStore(directory / "checkpoints")
    best, last = store.load("best"), store.load("last")
    assert best.step == summary["best"]["step"] < last.step
    centers, later = (each.tensors["hook/center_loss/centers"] for each in (best, last))
    assert centers.shape == (10, 2)
    assert np.abs(centers - later).max() > 1e-3
    vectors = np.loadtxt(directory / "tensorboard" / "train" / "center_features.tsv", delimiter="\t")[:, :2]
    labels = np.loadtxt(directory / "tensorboard" / "train" / "center_features_labels.tsv", dtype=int)
    recorded = summary["best"]["values"]["loss/center"]
    assert CenterLoss.observed_examples >= 180
    weight = 2 * recorded / np.square(vectors - centers[labels]).sum(axis=-1).mean()
    assert weight == pytest.approx(0.3, rel=1e-3)


def test_the_projector_of_tensorboard_serves_what_the_run_has_written(run) -> None:
    directory, _ = run
    plugin = projector_of(directory.parent)
    assert json.loads(plugin["/runs"].get("/").data) == ["run/tensorboard/train"]
    query = {"run": "run/tensorboard/train", "name": "center/features"}
    (info,) = json.loads(plugin["/info"].get("/", query_string=query).data)["embeddings"]
    assert info["tensorShape"] == [180, 3]
    served = np.frombuffer(plugin["/tensor"].get("/", query_string=query).data, np.float32).reshape(180, 3)
    written = np.loadtxt(directory / "tensorboard" / "train" / "center_features.tsv", delimiter="\t")
    np.testing.assert_allclose(served, written, rtol=1e-6)
    assert len(plugin["/metadata"].get("/", query_string=query).text.splitlines()) == 180
    sprite = tf.io.decode_png(plugin["/sprite_image"].get("/", query_string=query).data).numpy()
    assert sprite.shape == (13 * 8, 14 * 8, 1)
    assert sprite.max() == 255


def projector_of(logdir) -> dict[str, Client]:
    """Return clients of TensorBoard's own projector, by route."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(logdir)).Reload()
    provider = MultiplexerDataProvider(multiplexer, str(logdir))
    plugin = ProjectorPlugin(TBContext(logdir=str(logdir), data_provider=provider))
    return {route: Client(app) for route, app in plugin.get_plugin_apps().items()}
