"""What a trainer ships: evaluations and predictions, each traced once, and exports in every format."""

import keras
import numpy as np
import pytest

import hookline
from hookline.deploy.formats import FORMATS
from hookline.inputs import Examples, Form, split_of
from hookline.trainer.errors import import_optional
from tests.support.door import SETTINGS, held_out, images, small_model, small_trainer, train
from tests.support.refusals import assert_refused

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
QUICK = ("keras", "packed", "sparse")


@pytest.fixture(scope="module")
def fit(tmp_path_factory):
    model = small_model("softmax")
    trainer = small_trainer(hookline.hooks.Prune(final_sparsity=0.8, frequency=2), "bnn_rounding", model=model)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here := tmp_path_factory.mktemp("here"))
        history = train(trainer, epochs=2)
    assert not list(here.iterdir())
    return model, trainer, history


def test_fit_evaluate_and_predict_agree_and_leave_the_model_unchanged(fit):
    model, trainer, history = fit
    assert list(history.history) == ["loss", "accuracy", "val_loss", "val_accuracy"]
    assert all(len(values) == 2 for values in history.history.values())
    inputs, labels = held_out()
    values = trainer.evaluate(inputs, labels)
    assert list(values) == ["loss", "accuracy"]
    assert values["accuracy"] == pytest.approx(history.history["val_accuracy"][-1])
    found = trainer.predict(inputs)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-5)
    assert np.mean(found.argmax(axis=1) == labels) == pytest.approx(values["accuracy"])
    np.testing.assert_allclose(found, np.asarray(trainer.model(inputs)), atol=1e-5)
    assert model.layers[-1].activation is keras.activations.softmax  # unchanged
    assert "hookline" not in trainer.model.to_json()
    assert "prune" in repr(trainer)
    assert "2 epochs: loss" in repr(history)


def exports():
    options = {"litert int8": {"int8": True}, "packed float16": {"float16": True}, "sparse codebook": {"codebook": 5}}
    cases = {**{name: {} for name in FORMATS}, **options}
    return [
        pytest.param(name.split()[0], each, id=name, marks=() if name in QUICK else pytest.mark.full)
        for name, each in cases.items()
    ]


@pytest.mark.parametrize(("name", "options"), exports())
def test_every_export_format_matches_predict(name, options, fit, tmp_path):
    form, trained = FORMATS[name], fit[1]
    try:
        form.check_packages()
    except hookline.UserError as error:
        pytest.skip(str(error))
    path = tmp_path / f"model{form.suffix}"
    assert trained.export(path, format=name, tolerance=0.1 if options else None, **options) == path
    inputs, labels = held_out()
    if name == "keras":
        assert_refused("exists already", trained.export, path, format=name)
        assert_refused("Did you mean 'litert'", trained.export, path, format="literte")
        assert_refused("option of format=keras 'int8'", trained.export, path, format=name, int8=True)
        assert trained.export(path, format=name, overwrite=True, x=inputs, y=labels) == path
    precision = 0.01 if "int8" in options else 1e-4  # eight bits are steps of 1/256
    np.testing.assert_allclose(form.load(path)(inputs), trained.predict(inputs), atol=precision)


def test_restored_best_weights_ship_as_evaluated_at_their_step():
    int8, freeze = hookline.hooks.QuantizationAwareTraining, {"freeze_layers": {"layers": "outputs", "begin_epoch": 2}}
    rounding = {"a": int8(layers="*_conv")}, {"b": int8(layers="outputs", activation_bits=None)}
    trainer = small_trainer(*rounding, "ema", freeze, monitor="loss/total", monitor_mode="max")
    best = max(train(trainer, 3, restore_best=True).history["val_loss"])
    assert trainer.evaluate(*held_out())["loss"] == pytest.approx(best, rel=1e-5)
    np.testing.assert_allclose(trainer.predict(held_out()[0]), trainer.model(held_out()[0]), atol=1e-5)


def test_export_of_regression_without_metrics_is_compared_by_loss(tmp_path):
    inputs = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
    trainer = hookline.Trainer(model, loss="mse", **SETTINGS)
    trainer.fit(inputs, inputs[:, :1], verbose=0)
    trainer.export(tmp_path / "exact.sparse.safetensors", "sparse", tolerance=1e-5)
    coarse = tmp_path / "coarse.sparse.safetensors"
    assert_refused("has loss/mse=", trainer.export, coarse, "sparse", codebook=1, tolerance=1e-5)


WORDS = np.random.default_rng(0).integers(1, 9, (64, 6)) * (np.arange(6) < 3 + np.arange(64)[:, None] % 4)


def test_masked_model_exports_to_keras_and_saved_model(tmp_path):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.Dense(3, "softmax")]
    model = keras.Sequential([keras.Input((6,), dtype="int32"), *layers])
    trainer = hookline.Trainer(model, loss="sparse_categorical_crossentropy", metrics=["accuracy"], **SETTINGS)
    trainer.fit(WORDS, WORDS % 3, verbose=0)
    for form in ("keras", "saved_model"):
        trainer.export(tmp_path / f"model{FORMATS[form].suffix}", form)


def test_masks_reach_attention_in_the_shipped_model():
    inputs = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(9, 4, mask_zero=True)(inputs)
    for _ in range(2):  # the second attention gets no mask: in Keras, the first one removes that of its inputs
        x = keras.layers.Add()([x, keras.layers.MultiHeadAttention(2, 3)(x, x)])
        x = keras.layers.Attention()([keras.layers.Dense(4)(x)] * 2)
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.LSTM(4)(x)))
    trainer = hookline.Trainer(model, loss="mse", hooks=["quantization_aware_training"], **SETTINGS)
    trainer.fit(WORDS, np.zeros((64, 3)), verbose=0)
    np.testing.assert_allclose(trainer.predict(WORDS), trainer.model(WORDS), atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("last", [None, "softmax", "sigmoid"])
def test_int8_export_keeps_last_activation_and_resizing_without_augmentation(last, tmp_path):
    keras.utils.set_random_seed(0)
    ends = [keras.layers.Dense(3, last), *([] if last else [keras.layers.Softmax()])]
    first = [keras.Input((8, 8, 1)), keras.layers.RandomFlip(), keras.layers.Resizing(6, 6)]
    layers = [*first, keras.layers.Conv2D(4, 3), keras.layers.Flatten()]
    loss = "binary_crossentropy" if last == "sigmoid" else "categorical_crossentropy"
    trainer = hookline.Trainer(keras.Sequential([*layers, *ends]), loss=loss, hooks=["quantization_aware_training"])
    inputs, labels = held_out()
    trainer.fit(inputs, np.eye(3)[labels], epochs=2, verbose=0)
    for form in (FORMATS["litert"], FORMATS["onnx"]):
        found = form.load(trainer.export(tmp_path / f"model{form.suffix}", format=form.name))(inputs)
        np.testing.assert_allclose(found, trainer.predict(inputs), atol=5 / 256)


@pytest.mark.full
@pytest.mark.parametrize("hooks", [[], ["quantization_aware_training"]])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16"])
def test_export_takes_inputs_of_the_model_dtype(dtype, hooks, tmp_path):
    inputs, labels = np.arange(40).reshape(20, 2).astype(dtype), np.arange(20) % 3
    first = [keras.layers.Embedding(40, 4), keras.layers.Flatten()] if dtype == "int32" else []
    layers = [keras.Input((2,), dtype=dtype), *(first or [keras.layers.Rescaling(0.1)]), keras.layers.Dense(3)]
    trainer = hookline.Trainer(keras.Sequential(layers), loss="sparse_categorical_crossentropy", hooks=hooks)
    trainer.fit(inputs, labels, verbose=0)
    for form in (FORMATS["saved_model"], FORMATS["litert"], FORMATS["onnx"]):
        path = tmp_path / f"model{form.suffix}"
        found = form.load(trainer.export(path, format=form.name))(inputs)
        np.testing.assert_allclose(found, trainer.predict(inputs), atol=0.1 if hooks else 1e-5)
        if form.name == "onnx":
            (given,) = import_optional("onnxruntime", extra="", needed_by="").InferenceSession(path).get_inputs()
            assert given.type == f"tensor({'float' if hooks and dtype != 'int32' else dtype})"


class Counted(keras.layers.Layer):
    """Count the Python calls of the layer, one per trace."""

    calls = 0

    def call(self, inputs):
        Counted.calls += 1
        return inputs


def test_evaluate_and_predict_trace_once():
    keras.utils.set_random_seed(0)
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), Counted(), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    trainer = hookline.Trainer(model, loss="sparse_categorical_crossentropy", metrics=["accuracy"], **SETTINGS)
    x, y = images()["x_train"], images()["y_train"]
    trainer.fit(x, y, batch_size=16, verbose=0)
    trainer.evaluate(x[:40], y[:40])
    trainer.predict(x[:40])
    before = Counted.calls
    for part in (slice(0, 40), slice(40, 80)):
        values = trainer.evaluate(x[part], y[part])
        scores = trainer.predict(x[part], batch_size=32)
        assert values["accuracy"] == pytest.approx(np.mean(scores.argmax(axis=1) == y[part]))
        expected = keras.losses.sparse_categorical_crossentropy(y[part], scores, from_logits=True)
        assert values["loss"] == pytest.approx(np.mean(expected), rel=1e-5)
    assert Counted.calls == before
    split = split_of("mine", Examples(x, y), Form({"image": "float32"}))
    first = trainer.evaluate(split)
    assert first == pytest.approx(trainer.evaluate(x, y))
    before = Counted.calls
    assert trainer.evaluate(split) == first
    assert Counted.calls == before


@keras.saving.register_keras_serializable(package="tests")
class Noise(keras.layers.Layer):
    """Add random noise, also in inference."""

    def __init__(self, **options):
        super().__init__(**options)
        self.generator = keras.random.SeedGenerator(1)

    def call(self, inputs):
        return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.generator)


def test_model_with_random_inference_draws_anew_per_batch_and_exports(tmp_path):
    keras.utils.set_random_seed(0)
    x = np.ones((300, 2), np.float32)  # two batches of the comparison
    model = keras.Sequential([keras.Input((2,)), Noise(), keras.layers.Dense(1)])
    trainer = hookline.Trainer(model, "sgd", "mse", **SETTINGS)
    trainer.fit(x, x[:, :1], verbose=0)
    found = trainer.predict(x, batch_size=64)
    assert len(np.unique(found)) == len(x)
    np.testing.assert_array_equal(trainer.predict(x, batch_size=64), found)
    trainer.export(tmp_path / "model.keras")
    refused = "draws random numbers in inference, and the saved_model file draws others"
    assert_refused(refused, trainer.export, tmp_path / "model", format="saved_model")


def test_trainer_model_follows_set_weights(tmp_path):
    given = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    trainer = hookline.Trainer(given, "sgd", "mse")
    trainer.fit(np.ones((4, 2)), np.ones(4), verbose=0)
    assert np.any(trainer.model(np.ones((1, 2))))
    given.set_weights([np.zeros_like(each) for each in given.get_weights()])
    assert not np.any(trainer.model(np.ones((1, 2))))


def test_bfloat16_weights_are_refused_by_formats_without_bfloat16(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="bfloat16", name="dense")])
    trainer = hookline.Trainer(model, loss="mse")
    trainer.fit(np.ones((4, 2)), np.ones(4), verbose=0)
    for form in (FORMATS["litert"], FORMATS["onnx"], FORMATS["sparse"]):
        refused = rf"dense/kernel is of bfloat16\. Expected float32 for format={form.name}"
        assert_refused(refused, trainer.export, tmp_path / f"model{form.suffix}", format=form.name)


class Bare(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)


def test_model_that_cannot_be_copied_is_reported_in_one_line():
    model = Bare()
    model(np.ones((1, 2)))
    trainer = hookline.Trainer(model, "sgd", "mse")
    trainer.fit(np.ones((4, 2)), np.ones(4), verbose=0)
    assert_refused("Keras cannot copy 'bare' .*get_config", getattr, trainer, "model")
