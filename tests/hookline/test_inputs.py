"""The inputs and targets that `fit` accepts, and how it converts them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hookline
from hookline.inputs import Examples, Form, read_examples, split_of, training_data
from hookline.recipes.data.digits import digits
from tests.support.door import SETTINGS, images, small_trainer
from tests.support.refusals import assert_refused

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


X, Y = images()["x_train"], images()["y_train"]
CROSS = "categorical_crossentropy"


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        rows = slice(16 * index, 16 * index + 16)
        return [X[rows], Y[rows]]


FORMS = {
    "lists": lambda: (X.tolist(), Y.tolist()),
    "float64": lambda: (X.astype(np.float64), Y.astype(np.float64)),
    "column": lambda: (X, Y[:, None]),
    "dataset": lambda: (tf.data.Dataset.from_tensor_slices((X, Y)).batch(16), None),
    "py_dataset": lambda: (Batches(), None),
    "split": lambda: (split_of("mine", Examples(X, Y), Form({"image": "float32"})), None),
}


def examples_of(x, y, form):
    data, size = training_data(x, y, form=form)
    batch = data.train.source.gather(tf.constant(data.train.indices))
    return data.classes, size, {name: (each.dtype, each.numpy().tobytes()) for name, each in batch.items()}


def test_every_input_format_gives_the_same_bits():
    form = small_trainer()._spec.form
    classes, size, expected = examples_of(X, Y, form)
    assert (classes, size, {*expected}) == (3, 32, {"inputs", "targets"})
    for kind, make in FORMS.items():
        found = examples_of(*make(), form)
        assert found == (3, 16 if "dataset" in kind else 32, expected), kind
    rows = np.eye(3, dtype=np.float32)[Y]  # one-hot rows are read as labels
    one_hot = small_trainer(loss="categorical_crossentropy")._spec.form
    assert one_hot.one_hot
    assert examples_of(X, rows, one_hot) == (3, 32, expected)


def test_slow_read_of_a_dataset_warns_once(monkeypatch):
    monkeypatch.setattr("hookline.inputs.PATIENCE", -1.0)
    with pytest.warns(UserWarning, match=r"x is read into memory, 0 batches so far.*take\(") as told:
        read_examples(tf.data.Dataset.from_tensor_slices((X, Y)).batch(16), None, None, "x")
    assert len(told) == 1


def test_one_hot_targets_give_equal_accuracy_and_categorical_accuracy():
    trainer = small_trainer(loss="categorical_crossentropy", metrics=["accuracy", "categorical_accuracy"])
    history = trainer.fit(X, np.eye(3, dtype=np.float32)[Y], batch_size=16, verbose=0)
    assert history.history["accuracy"] == pytest.approx(history.history["categorical_accuracy"])


def test_soft_and_one_hot_targets_may_be_mixed_within_a_fit():
    one_hot = np.eye(3, dtype=np.float32)[Y]
    soft = 0.9 * one_hot + 0.1 / 3
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Flatten(), keras.layers.Dense(3, "softmax")]
    for given, other in ((soft, one_hot), (one_hot, soft)):
        trainer = hookline.Trainer(keras.Sequential([keras.Input((8, 8, 1)), *layers]), "sgd", CROSS, **SETTINGS)
        history = trainer.fit(X, given, validation_data=(X, other), batch_size=80, verbose=0).history
        expected = keras.losses.categorical_crossentropy(other, trainer.predict(X)).numpy().mean()
        assert history["val_loss"][-1] == pytest.approx(expected, rel=1e-5)
        assert trainer.evaluate(X, other)["loss"] == pytest.approx(expected, rel=1e-5)
    trainer = hookline.Trainer(keras.Sequential([keras.Input((8, 8, 1)), *layers]), "sgd", CROSS, **SETTINGS)
    fitted = trainer.fit(X, one_hot, validation_data=(X, one_hot), verbose=0)
    assert fitted.summary["best"]["monitor"] == "loss/total"  # no metric requests the accuracy
    assert_refused("class probabilities", trainer.evaluate, X, soft)


def test_sample_weights_apply_and_validation_split_takes_the_end():
    kept = np.arange(80) // 16 % 2
    weighted = small_trainer()
    weighted.fit(tf.data.Dataset.from_tensor_slices((X, Y, kept)).batch(16), verbose=0)  # some batches have none
    found, some = weighted.evaluate(X, Y, sample_weight=kept), weighted.evaluate(X[kept > 0], Y[kept > 0])
    assert found["accuracy"] == pytest.approx(some["accuracy"])
    trainer = small_trainer()
    history = trainer.fit(X, Y, validation_split=0.25, batch_size=16, verbose=0)
    last = trainer.evaluate(X[60:], Y[60:])
    assert history.history["val_loss"][0] == pytest.approx(last["loss"])
    assert history.summary["steps"] == 4
    assert_refused("outside 0..2", trainer.evaluate, X, Y + 9)
    given = {"validation_split": 0.25, "class_weight": {0: 5.0}, "batch_size": 16, "verbose": 0}
    assert small_trainer().fit(X, Y, **given).summary["digest"] != history.summary["digest"]


def test_dict_of_inputs_for_a_list_model_keeps_each_dtype():
    number, scale = keras.Input((1,), dtype="int32", name="number"), keras.Input((3,), name="a_scale")
    embedded = keras.layers.Flatten()(keras.layers.Embedding(9, 2)(number))
    model = keras.Model([number, scale], keras.layers.Dense(1)(keras.layers.Concatenate()([embedded, scale])))
    inputs = {"number": np.arange(6)[:, None], "a_scale": np.full((6, 3), 0.5)}
    trainer = hookline.Trainer(model, "sgd", "mse", **SETTINGS)
    trainer.fit(inputs, np.zeros(6), verbose=0)
    np.testing.assert_allclose(trainer.predict(inputs), trainer.predict([inputs["number"], inputs["a_scale"]]))
    np.testing.assert_allclose(trainer.predict(inputs), trainer.model(inputs), atol=1e-6)


def test_list_of_targets_needs_listed_outputs_and_follows_their_order():
    inputs, x = keras.Input((2,)), X[:, 0, :2, 0]
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("b", "a")}
    trainer = hookline.Trainer(keras.Model(inputs, outputs), "sgd", {"b": "mse", "a": "mse"})
    assert_refused("dict with a, b", trainer.fit, x, [Y, Y])
    model = keras.Model(inputs, list(outputs.values()))
    form = hookline.Trainer(model, "sgd", {"a": "mse", "b": "mse"})._spec.form
    assert (read_examples(x, [Y, Y + 9], None, "x", form).targets["b"] == Y).all()


def test_plain_function_works_as_a_loss():
    def cubic(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_true - y_pred) ** 3, axis=-1)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, kernel_initializer="zeros")])
    trainer = hookline.Trainer(model, loss=cubic, metrics=[cubic], **SETTINGS)
    trainer.fit(np.zeros((10, 2)), np.ones((10, 2)), epochs=1, batch_size=5, verbose=0)
    values = trainer.evaluate(np.zeros((10, 2)), np.ones((10, 2)))
    assert values["loss"] == pytest.approx(values["cubic"])

    def spread(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_true - keras.ops.transpose(y_true)), axis=-1) + 0.0 * y_pred[:, 0]

    pairs = hookline.Trainer(model, loss=spread, **SETTINGS)
    pairs.fit(np.zeros((4, 2)), np.arange(4)[:, None], batch_size=4, verbose=0)  # a column of labels stays a column
    assert pairs.evaluate(np.zeros((4, 2)), np.arange(4)[:, None])["loss"] == pytest.approx(20 / 16)


def test_fit_evaluate_and_predict_use_the_splits_of_data():
    data = digits()
    model = keras.Sequential([keras.Input(data.input_shape), keras.layers.Flatten(), keras.layers.Dense(10)])
    trainer = hookline.Trainer(model, loss=f"sparse_{CROSS}", metrics=["accuracy"], **SETTINGS)
    history = trainer.fit(data, verbose=0).history
    assert history["val_accuracy"] == pytest.approx([trainer.evaluate(data.validation)["accuracy"]])
    labels = data.test.source.gather(tf.constant(data.test.indices))["targets"]
    expected = np.mean(trainer.predict(data).argmax(axis=1) == labels)
    assert trainer.evaluate(data)["accuracy"] == pytest.approx(expected)
