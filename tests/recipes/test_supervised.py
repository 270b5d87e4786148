"""Any loss and metrics of Keras: steps and evaluations match those of Keras, on targets of every kind."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hookline
from hookline.inputs import Examples, Form, split_of
from hookline.recipes.classification import classification
from hookline.recipes.losses import OUTPUTS, TARGETS, Loss, Measures
from hookline.recipes.models.mlp import mlp
from hookline.recipes.retrieval import retrieval
from hookline.recipes.supervised import supervised
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import Data
from hookline.trainer.objective import ObjectiveOutput
from tests.support.adversarial import evaluator_of, loop_of, parts_of
from tests.support.refusals import assert_refused

pytestmark = pytest.mark.filterwarnings(
    "ignore:Network 'model' trains from the logits", "ignore:You are passing weight"
)

STEPS, BATCH, RATE = 8, 8, 0.01
RANDOM = np.random.default_rng(3)
VECTORS = RANDOM.normal(size=(150, 6)).astype(np.float32)
IMAGES = RANDOM.normal(size=(150, 6, 6, 1)).astype(np.float32)
WEIGHTS = RANDOM.gamma(1.0, size=150).astype(np.float32)
WORDS = RANDOM.integers(0, 9, (150, 6)) * (np.arange(6) < RANDOM.integers(1, 7, (150, 1)))
SUMS = VECTORS[:, :1] + 0.5 * VECTORS[:, 1:2] ** 2


def dense(outputs: int, end: str | None = None) -> keras.Model:
    keras.utils.set_random_seed(4)
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(outputs, end)]
    return keras.Sequential([keras.Input((6,)), *layers])


def maps(end: str | None = None) -> keras.Model:
    keras.utils.set_random_seed(4)
    layers = [keras.layers.Conv2D(4, 3, padding="same", activation="tanh"), keras.layers.Conv2D(1, 1, activation=end)]
    return keras.Sequential([keras.Input((6, 6, 1)), *layers])


def two_heads() -> keras.Model:
    keras.utils.set_random_seed(4)
    inputs = keras.Input((6,))
    x = keras.layers.Dense(8, "tanh")(inputs)
    return keras.Model(inputs, {"sum": keras.layers.Dense(1)(x), "sign": keras.layers.Dense(3, "sigmoid")(x)})


def data_of(inputs: Any, targets: Any, weights: np.ndarray | None = None) -> Data:
    whole = split_of("train", Examples(inputs, targets, weights), Form())
    rows = np.split(np.arange(150), [90, 120])
    parts = dict(zip(("train", "validation", "test"), rows, strict=True))
    splits = {name: type(whole)(name, whole.source, each) for name, each in parts.items()}
    return Data("mine", **splits, input_shape=inputs.shape[1:], classes=0)


MASKED = "words of which some are padding, and labels to ignore"
IOU = keras.metrics.MeanIoU(6, sparse_y_pred=False, name="iou", dtype="float32")
CTC = {"loss": "ctc", "metrics": [], "outputs": 6}
SIGNS = (VECTORS[:, :3] > 0).astype(np.int64)
KINDS: dict[str, tuple[np.ndarray, Any, Callable[[], keras.Model], dict[str, Any]]] = {
    "one output": (VECTORS, SUMS[:, 0], lambda: dense(1), {"loss": "huber", "metrics": ["mae", "R2Score"]}),
    "maps": (
        *(IMAGES, (IMAGES > 0.3).astype(np.int64), lambda: maps("sigmoid")),
        {"loss": "binary_crossentropy", "metrics": ["binary_accuracy", keras.metrics.BinaryIoU(name="iou")]},
    ),
    "labels of a sequence": (
        *(IMAGES[..., 0], np.argmax(IMAGES[..., 0], -1), lambda: sequence()),
        {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy", IOU], "outputs": 6},
    ),
    MASKED: (
        *(WORDS, np.where(WORDS % 5 == 1, 255, WORDS % 3), lambda: masked()),
        {"loss": keras.losses.SparseCategoricalCrossentropy(ignore_class=255), "metrics": ["accuracy"], "outputs": 3},
    ),
    "texts": (IMAGES[..., 0], IMAGES[:, :3, :, 0].argmax(-1) % 5 + 1, lambda: sequence(), CTC),
    "dict": (
        *(VECTORS, {"sum": SUMS, "sign": SIGNS}, two_heads),
        {
            "loss": {"sum": "mean_squared_error", "sign": "binary_crossentropy"},
            "metrics": {"sum": ["mae"], "sign": ["AUC"]},
            "loss_weights": {"sum": 0.5},
        },
    ),
}


def sequence() -> keras.Model:
    keras.utils.set_random_seed(4)
    layers = [keras.layers.GRU(5, return_sequences=True), keras.layers.Dense(6, "softmax")]
    return keras.Sequential([keras.Input((6, 6)), *layers])


def masked() -> keras.Model:
    keras.utils.set_random_seed(4)
    words = [keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.GRU(5, return_sequences=True)]
    return keras.Sequential([keras.Input((6,), dtype="int64"), *words, keras.layers.Dense(3, "softmax")])


def for_keras(weights: Any, kind: str) -> Any:
    """Return weights of examples as Keras expects them for maps and sequences: one for each value of the loss."""
    more = {"maps": (6, 6), "labels of a sequence": (6,), MASKED: (6,)}.get(kind, ())
    return np.broadcast_to(np.reshape(weights, [-1, *([1] * len(more))]), [len(weights), *more])


def trained_by_keras(kind: str, data: Data) -> tuple[keras.Model, list[float]]:
    """Return the model that `train_on_batch` trains on the same batches, and the loss of each batch."""
    *_, build, options = KINDS[kind]
    model = build()
    weights = {} if "loss_weights" not in options else {"loss_weights": {"sign": 1.0, **options["loss_weights"]}}
    iou = keras.metrics.BinaryIoU(name="iou", dtype="float32")  # by default Keras truncates weights to whole numbers
    metrics = ["binary_accuracy", iou] if kind == "maps" else options["metrics"]
    model.compile(keras.optimizers.SGD(RATE), options["loss"], weighted_metrics=metrics, **weights)
    batches, losses = TrainingBatches(data.train, batch_size=BATCH, seed=0), []
    for step in range(STEPS):
        batch = batches.batch(tf.constant(step, tf.int64))
        found = model.train_on_batch(
            batch["inputs"], batch["targets"], sample_weight=for_keras(batch["sample_weights"], kind), return_dict=True
        )
        model.reset_metrics()
        losses.append(found["loss"])
    return model, losses


@pytest.mark.parametrize(
    "kind",
    [pytest.param(each, marks=() if each in ("one output", "texts", MASKED) else pytest.mark.full) for each in KINDS],
)
def test_steps_and_evaluations_match_keras(kind) -> None:
    inputs, targets, build, options = KINDS[kind]
    data = data_of(inputs, targets, WEIGHTS)
    recipe = supervised(parts=parts_of(data, model=build, optimizer=keras.optimizers.SGD), **options)
    recipe.networks[0].optimizer.learning_rate = RATE
    loop = loop_of(recipe, data, batch_size=BATCH)
    model, losses = trained_by_keras(kind, data)
    ours = []
    for step in range(STEPS):
        loop.run(step, 1)
        ours.append(loop.accumulators.read()["loss/total"])
        loop.accumulators.reset()
    np.testing.assert_allclose(ours, losses, rtol=1e-5, atol=1e-6)

    found = evaluator_of(recipe, data).run(STEPS)
    rows = np.arange(90, 120)
    chosen = tf.nest.map_structure(lambda each: each[rows], targets)
    own = for_keras(WEIGHTS[rows], kind)
    expected = model.evaluate(inputs[rows], chosen, sample_weight=own, verbose=0, return_dict=True)
    assert found["loss/total"] == pytest.approx(expected["loss"], rel=1e-4)
    names = {name.removeprefix("metric/"): value for name, value in found.items() if name.startswith("metric/")}
    names = {name: value for name, value in names.items() if not name.endswith("_loss")}
    assert len(names) == len(tf.nest.flatten(options["metrics"]))
    of_keras = {key.replace("_", "").lower(): value for key, value in expected.items()}
    for name, value in names.items():
        assert value == pytest.approx(of_keras[name.replace("_", "").lower()], rel=1e-4), name


class Hits(keras.metrics.Metric):
    def __init__(self) -> None:
        super().__init__(name="hits")
        self.hits = self.add_weight(shape=(), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.hits.assign_add(tf.reduce_sum(tf.cast(tf.argmax(y_pred, axis=-1) == y_true, tf.float32)))

    def result(self) -> Any:
        return self.hits


class Percent(keras.metrics.SparseCategoricalAccuracy):
    def result(self) -> Any:
        return 100 * super().result()


class Positive(keras.metrics.SparseCategoricalAccuracy):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(y_true, y_pred, sample_weight=tf.cast(y_true > 0, tf.float32))


class Both(Hits):
    def result(self) -> Any:
        return {"hits": self.hits}


LABELS, FOUND = np.array([0, 1, 2, 3]), np.eye(4, dtype=np.float32)[[1, 1, 2, 3]]  # as many classes as examples
MEASURED = {
    "a variable": (Hits(), LABELS, FOUND, 3.0),
    "a result of its own": (Percent(), LABELS, FOUND, 75.0),
    "an update of its own": (Positive(), LABELS, FOUND, 1.0),
    "classes": ("accuracy", LABELS, FOUND, 0.75),
    "a column of classes": ("accuracy", LABELS[:, None], FOUND, 0.75),
    "rows": ("accuracy", np.eye(4, dtype=np.float32), FOUND, 0.75),
    "numbers": ("accuracy", LABELS % 2, FOUND[:, 1], 0.5),
    "a function": (lambda y_true, y_pred: tf.abs(y_true - y_pred), LABELS[:, None], FOUND[:, 1], 1.5),
}


@pytest.mark.parametrize("case", MEASURED)
def test_keras_and_custom_metrics_give_expected_values(case) -> None:
    metric, targets, outputs, expected = MEASURED[case]
    measures, output = Measures([metric], activation=None, kind=None), ObjectiveOutput({})
    measures.add(output, {}, tf.constant(targets), tf.constant(outputs), training=False)
    (found,) = (output.metrics | measures.of_split(output.collected)).values()
    assert np.mean(found) == expected


@pytest.mark.parametrize("loss", [lambda y_true, y_pred: tf.square(y_true - y_pred), "mse"])
def test_loss_of_numbers_is_one_value_per_example(loss) -> None:
    found, _ = Loss(loss).each(tf.constant(LABELS[:, None]), tf.constant(FOUND[:, 1]), from_logits=False)
    np.testing.assert_array_equal(found, [1.0, 0.0, 4.0, 9.0])


def test_micro_batches_divide_by_unmasked_count_of_whole_batch() -> None:
    words, labels, build, options = KINDS[MASKED]
    data, values, weights = data_of(words, labels), [], []
    for count in (1, 4):
        recipe = supervised(parts=parts_of(data, model=build, optimizer=keras.optimizers.SGD), **options)
        loop = loop_of(recipe, data, batch_size=BATCH, accumulation_steps=count)
        loop.run(0, STEPS)
        values.append([value for name, value in loop.accumulators.read().items() if not name.startswith("grad_norm")])
        weights.append([each.numpy() for each in recipe.networks[0].model.weights])
    np.testing.assert_allclose(*values, rtol=1e-5)
    for one, several in zip(*weights, strict=True):
        np.testing.assert_allclose(one, several, atol=1e-6)


def test_evaluation_in_batches_averages_over_all_unmasked_values() -> None:
    words, labels, build, _ = KINDS[MASKED]
    trainer = hookline.Trainer(build(), keras.optimizers.SGD(1e-9), KINDS[MASKED][3]["loss"], ["accuracy"])
    trainer.fit(words, labels, epochs=1, verbose=0)
    whole, parts = (trainer.evaluate(words, labels, batch_size=size) for size in (150, 7))
    assert whole == pytest.approx(parts, rel=1e-5)
    found = trainer.predict(words).argmax(-1)
    assert whole["accuracy"] == pytest.approx(np.mean((found == labels)[words > 0]))


def test_network_without_final_activation_gives_logits() -> None:
    data, loss = data_of(VECTORS, SIGNS), {"loss": "binary_crossentropy", "metrics": ["accuracy"]}
    ends = [supervised(parts=parts_of(data, model=lambda end=end: dense(3, end)), **loss) for end in ("sigmoid", None)]
    assert [len(each.networks[0].final_activations) for each in ends] == [1, 0]
    found = [evaluator_of(each, data).run(0) for each in ends]
    assert found[0] == found[1]
    linear = ends[1].networks[0].model
    normed = keras.Model(linear.inputs[0], keras.layers.BatchNormalization(epsilon=0.0)(linear.outputs[0]))
    recipe = supervised(parts=parts_of(data, model=lambda: normed), **loss)
    assert evaluator_of(recipe, data).run(0) == pytest.approx(found[0], rel=1e-5)
    probabilities = dense(3, "sigmoid")(VECTORS[90:120]).numpy()
    assert found[0]["metric/accuracy"] == pytest.approx(np.mean((probabilities > 0.5) == SIGNS[90:120]))
    for end in ("sigmoid", None):  # a loss that takes no logits
        parts, loss["loss"] = parts_of(data, model=lambda end=end: dense(3, end)), "binary_focal_crossentropy"
        recipe = supervised(parts=parts, **loss)
        found.append(evaluator_of(recipe, data).run(0))
    assert found[3] == pytest.approx(found[2], rel=1e-5)
    assert found[2]["metric/accuracy"] == found[0]["metric/accuracy"]
    assert_refused("'.*' ends without an activation", supervised, parts=parts, loss="dice")


class Listed(keras.Model):
    def __init__(self, network: keras.Model) -> None:
        super().__init__()
        self.network = network
        self(VECTORS)

    def call(self, inputs: Any) -> Any:
        return [self.network(inputs), 1.0 - self.network(inputs)]


def test_outputs_of_unknown_last_layer_are_taken_as_probabilities() -> None:
    model, loss = dense(3, "sigmoid"), "binary_crossentropy"
    ended = keras.Model(model.inputs[0], keras.layers.Rescaling(0.9)(model.outputs[0]))
    expected = np.mean(keras.losses.binary_crossentropy(SIGNS[90:120].astype("float32"), ended(VECTORS[90:120])))
    for own, y, losses in ((ended, SIGNS, loss), (Listed(ended), {"a": SIGNS, "b": 1 - SIGNS}, {"a": loss, "b": loss})):
        data = data_of(VECTORS, y)
        recipe = supervised(parts=parts_of(data, model=lambda own=own: own), loss=losses)
        found = evaluator_of(recipe, data).run(0)["loss/total"]
        assert found == pytest.approx(expected * (1 + isinstance(own, Listed)), rel=1e-5)


def test_inputs_can_be_the_targets() -> None:
    data = data_of(VECTORS, SUMS)
    recipe = supervised(parts=parts_of(data, model=lambda classes: dense(classes)), loss="mse", targets="inputs")
    expected = np.mean((dense(6)(VECTORS[90:120]).numpy() - VECTORS[90:120]) ** 2)
    assert evaluator_of(recipe, data).run(0)["loss/total"] == pytest.approx(expected, rel=1e-5)


def test_unsuitable_data_losses_and_metrics_are_refused() -> None:
    parts = parts_of(data_of(VECTORS, SUMS), model=lambda: dense(3))
    recipe = supervised(parts=parts, loss="mean_squared_error")  # [n, 1] against [n, 3] would be broadcast
    assert_refused("task.outputs=1", loop_of, recipe, parts.data, batch_size=BATCH)
    assert_refused("recipe=regression", classification, parts=parts)
    assert_refused("Expected 0 and 1", supervised, parts=parts, loss="binary_crossentropy")
    labels, sparse = data_of(VECTORS, np.arange(150) % 4), "sparse_categorical_crossentropy"
    wide = parts_of(labels, model=lambda: dense(3))
    assert_refused("lie outside 0..2, the first is 3 .* `ignore_class`", supervised, parts=wide, loss=sparse, outputs=3)
    assert_refused("task=retrieval", retrieval, parts=parts)
    assert_refused("mean_squared_error", supervised, parts=parts, loss="mean_square_error")
    assert_refused("loss_weights", supervised, parts=parts, loss="mse", loss_weights={"sum": 2.0})
    assert_refused("sign, sum", supervised, parts=parts_of(parts.data, model=two_heads), loss="mse")
    words = parts_of(data_of(VECTORS, SIGNS), model=mlp)
    assert_refused("task.outputs", supervised, parts=words, loss="sparse_categorical_crossentropy")
    measures = Measures([Both()], activation=None, kind=None)
    assert_refused("gives hits", measures.of_split, {TARGETS: tf.constant(LABELS), OUTPUTS: tf.constant(FOUND)})
    trainer = hookline.Trainer(masked(), "adam", lambda y_true, y_pred: tf.reduce_mean(y_pred, axis=[1, 2]))
    assert_refused("mask_zero=False", trainer.fit, WORDS, WORDS, verbose=0)


def test_python_trainer_accepts_targets_of_several_outputs() -> None:
    rows = slice(0, 90)
    y = {"sum": SUMS[rows], "sign": SIGNS[rows]}
    losses = {"sum": "mse", "sign": "binary_crossentropy"}
    trainer = hookline.Trainer(two_heads(), "adam", losses, {"sign": ["AUC"]}, loss_weights={"sum": 0.5})
    history = trainer.fit(VECTORS[rows], y, epochs=2, batch_size=30, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    values = trainer.evaluate(VECTORS[rows], y)
    assert {"loss", "sum_loss", "sign_loss", "sign_AUC"} == {*values}
    assert values["loss"] == pytest.approx(0.5 * values["sum_loss"] + values["sign_loss"], rel=1e-5)
    np.testing.assert_allclose(trainer.model(VECTORS[rows])["sign"], trainer.predict(VECTORS[rows])["sign"], atol=1e-6)
    assert_refused("'sign'", trainer.fit, VECTORS[rows], {"sum": y["sum"]}, verbose=0)
