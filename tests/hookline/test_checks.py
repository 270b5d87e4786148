"""Inputs, targets and weights that a model or its losses would misread are refused; valid ones are accepted."""

import keras
import numpy as np
import pytest

import hookline
from hookline.checks import check_inputs, class_weights_of, embedded_inputs
from hookline.inputs import Examples, Form, read_examples, split_of, training_data
from hookline.recipes.losses import ONE, Loss
from hookline.recipes.model_checks import model_inputs
from tests.support.door import images, small_model, train
from tests.support.refusals import assert_refused

SPARSE, BINARY = "sparse_categorical_crossentropy", "binary_crossentropy"
ROWS = np.zeros((6, 3), np.float32)
LABELS = np.arange(6) % 3


def two_inputs(*, by_name):
    words, numbers = keras.Input((1,), dtype="int32", name="words"), keras.Input((3,), name="numbers")
    both = keras.layers.Concatenate()([keras.layers.Flatten()(keras.layers.Embedding(9, 2)(words)), numbers])
    inputs = {"words": words, "numbers": numbers} if by_name else [words, numbers]
    return keras.Model(inputs, keras.layers.Dense(1)(both))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "hook",
    ["center_loss", "bernoulli_attention", {"bnn_rounding": {"all_binary": True, "quantize_first_input": True}}],
)
def test_hooks_that_read_inputs_accept_several(hook, tmp_path):
    image, table = keras.Input((6, 6, 1), name="image"), keras.Input((4,), name="table")
    hidden = keras.layers.Flatten()(keras.layers.Conv2D(4, 3, activation="tanh")(image))
    hidden = keras.layers.Dense(4, "tanh")(keras.layers.Concatenate()([hidden, keras.layers.Dense(3)(table)]))
    model = keras.Model({"image": image, "table": table}, keras.layers.Dense(3)(hidden))
    x = {"image": np.ones((24, 6, 6, 1), np.float32), "table": np.ones((24, 4), np.float32)}
    trainer = hookline.Trainer(model, loss=SPARSE, hooks=[hook], run_dir=tmp_path / "run")
    trainer.fit(x, np.arange(24) % 3, validation_data=(x, np.arange(24) % 3), verbose=0)
    split = split_of("mine", Examples(x, np.arange(24) % 3), trainer._spec.form)
    assert_refused("sample_weight received beside a Split", trainer.evaluate, split, sample_weight=np.ones(24))


@pytest.mark.parametrize("by_name", [True, False])
def test_inputs_must_match_the_model(by_name):
    model = two_inputs(by_name=by_name)
    taken, rows, words = model_inputs(model), embedded_inputs(model), LABELS[:, None]
    assert rows == {"words": 9}
    check_inputs({"numbers": ROWS, "words": words[:, 0]}, taken, rows, "x")
    assert_refused(r"inputs words \[6, 1\]. Expected words \[n, 1\]", check_inputs, {"words": words}, taken, rows, "x")
    assert_refused(r"numbers \[n, 3\]", check_inputs, {"words": words, "numbers": ROWS[:, :2]}, taken, rows, "x")
    assert_refused(r"shape \[6, 3\]. Expected words", check_inputs, ROWS, taken, rows, "x")
    assert_refused(r"0\.\.8", check_inputs, {"words": words + 7, "numbers": ROWS}, taken, rows, "x")
    surplus = {"a": ROWS, "numbers": ROWS, "words": words}
    for given, message in (([words, ROWS], "in a dict,"), (surplus, "in a dict without 'a',")):
        if by_name:
            assert_refused(message, check_inputs, given, taken, rows, "x")
        else:
            check_inputs(given, taken, rows, "x")


def test_single_input_must_be_a_batch():
    taken = model_inputs(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    for given in (ROWS, [ROWS], ROWS[..., None]):
        check_inputs(given, taken, {}, "x")
    assert_refused(r"x has the shape \[3\]. Expected \[n, 3\]", check_inputs, ROWS[0], taken, {}, "x")
    check_inputs(ROWS, None, {}, "x")


def test_class_weights_are_validated():
    data, _ = training_data(ROWS, LABELS, form=Form(classes=3))
    assert class_weights_of({np.int64(0): np.float32(2)}, data) == {0: 2.0}
    assert class_weights_of("balanced", data) == "balanced"
    for given in ([1, 2, 3], {"a": 1.0}, {0: -1.0}, {3: 1.0}, {0: np.nan}, "balance"):
        assert_refused("Expected 'balanced'", class_weights_of, given, data)
    loss = Loss(keras.losses.SparseCategoricalCrossentropy(ignore_class=2))
    assert training_data(ROWS, LABELS, form=Form(losses={ONE: loss}))[0].classes == 0  # the ignored label is no class
    numbers, _ = training_data(ROWS, ROWS, form=Form())
    assert_refused("sample_weight=", class_weights_of, {0: 1.0}, numbers)


def test_single_hook_and_callback_need_no_list(tmp_path):
    hook, model = {"clip_gradients": {"limit": 0.5}}, small_model()
    trainer = hookline.Trainer(model, loss=SPARSE, hooks=hook, compile="off")
    train(trainer, callbacks=keras.callbacks.CSVLogger(tmp_path / "log.csv"), class_weight="balanced")
    assert "clip_gradients" in trainer.hooks
    assert (tmp_path / "log.csv").read_text().startswith("epoch")
    assert_refused(r"shape \[8, 8, 1\]. Expected \[n, 8, 8, 1\]", trainer.predict, images()["x_test"][0])


def test_single_output_may_be_named():
    name, model = "o", keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="o")])
    for loss, metrics in (({name: "mse"}, {name: "mae"}), (["mse"], ["mae"]), ("mse", "mae")):
        spec = hookline.Trainer(model, "adam", loss, metrics)._spec
        assert list(spec.losses) == [ONE]
        assert spec.metrics == {ONE: ["mae"]}
    assert read_examples(ROWS, [LABELS], None, "x", spec.form).targets.shape == (6,)
    assert_refused("'typo'. Expected one of: o", lambda: hookline.Trainer(model, loss="mse", metrics={"typo": []}))
    assert_refused("loss_weights received for one", lambda: hookline.Trainer(model, loss="mse", loss_weights={name: 2}))


def test_lists_of_losses_and_metrics_match_outputs():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, [keras.layers.Dense(3, name="a")(inputs), keras.layers.Dense(1, name="b")(inputs)])
    trainer = hookline.Trainer(model, "adam", [SPARSE, "mse"], [["accuracy"], ["mae"]], compile="off")
    assert trainer._spec.metrics == {"a": ["accuracy"], "b": ["mae"]}
    weighed = hookline.Trainer(model, "adam", {"b": "mse", "a": SPARSE}, loss_weights=[1, 0.5])
    assert weighed._spec.loss_weights == {"a": 1.0, "b": 0.5}
    assert_refused("'b' is None", lambda: hookline.Trainer(model, loss=[SPARSE, None]))
    assert_refused("metrics is a list", lambda: hookline.Trainer(model, "adam", [SPARSE, "mse"], ["accuracy", "mae"]))
