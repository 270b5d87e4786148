"""Files against their run: what is as good passes, what is not never does."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.finished import Halve, finished_run
from tests.support.toy import StatelessHook, toy_arrays
from trainer.errors import UserError
from trainer.export.compare import Difference, Stand, compare
from trainer.export.formats import FORMATS, Format
from trainer.export.keras_file import KerasPredictor
from trainer.export.plain_model import finished_model
from trainer.run.precision import computing_in

ONNX = FORMATS["onnx"]
EXACT = Format("exact", ".exact", "", "", every_prediction=True)


def predictor(run, change=lambda inputs, outputs: outputs):
    """Return what predicts as a file does, with NumPy alone: the small network, and a change to its outputs."""
    hidden, logits = (finished_model(run, "model").get_layer(name).get_weights() for name in ("hidden", "logits"))

    def predict(inputs: np.ndarray) -> np.ndarray:
        outputs = np.tanh(inputs @ hidden[0] + hidden[1]) @ logits[0] + logits[1]
        return change(inputs, outputs.astype(np.float32))

    return predict


def one_wrong(run):
    """Return what predicts another class for one example of 64, for which the run is right."""
    inputs, targets = (array[:64] for array in toy_arrays())
    right = predictor(run)(inputs).argmax(axis=1) == targets
    spoiled = inputs[np.flatnonzero(right)[0]]

    def change(given: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        here = (given == spoiled).all(axis=1, keepdims=True)
        return np.where(here, -outputs, outputs)

    return predictor(run, change)


def test_a_file_that_predicts_alike_has_the_metrics_of_the_run():
    run = finished_run(Halve("halve"))
    metrics, difference = compare(run, "model", EXACT, predictor(run))
    assert metrics == {"metric/accuracy": run.parts.test.run(7)["metric/accuracy"]}
    assert difference.others == 0
    assert difference.largest < 1e-5
    assert str(difference).endswith("at most; the largest one is another for 0 of 64 test examples")


def test_a_file_that_is_not_as_good_as_the_run_is_refused():
    run = finished_run()
    with pytest.raises(UserError, match=r"^The onnx file has metric/accuracy=.* more than tolerance=0.001 apart\."):
        compare(run, "model", ONNX, predictor(run, lambda _, outputs: -outputs))


def test_a_file_that_returns_nan_is_refused_whatever_the_metrics():
    run = finished_run()
    with pytest.raises(UserError, match="The onnx file returns NaN on the test split"):
        compare(run, "model", ONNX, predictor(run, lambda _, outputs: outputs * np.nan), tolerance=1.0)


def test_a_higher_tolerance_takes_it_and_the_difference_is_told():
    run = finished_run()
    _, difference = compare(run, "model", ONNX, predictor(run, lambda _, outputs: -outputs), tolerance=1.0)
    assert difference.others == 64
    assert difference.largest > 0.1


def test_a_lossy_file_may_be_a_little_worse_and_another_may_not():
    run = finished_run()
    with pytest.raises(UserError, match="more than tolerance=0.001"):
        compare(run, "model", ONNX, one_wrong(run))
    metrics, difference = compare(run, "model", ONNX, one_wrong(run), lossy=True)
    assert difference.others == 1
    assert metrics["metric/accuracy"] == pytest.approx(run.parts.test.run(7)["metric/accuracy"] - 1 / 64)


def test_where_every_prediction_counts_one_that_differs_is_refused():
    run = finished_run()
    with pytest.raises(UserError, match="predicts another class than the run for 1 of 64 test examples"):
        compare(run, "model", EXACT, one_wrong(run), tolerance=1.0)


def test_outputs_of_another_shape_are_refused():
    run = finished_run()
    with pytest.raises((UserError, tf.errors.OpError), match=r"returns outputs of shape \(16, 1\)"):
        compare(run, "model", ONNX, predictor(run, lambda _, outputs: outputs[:, :1]))


class Negate(StatelessHook):
    """Ship another network than the one that evaluation sees."""

    def strip_model(self, model: keras.Model) -> keras.Model:
        return keras.Model(model.inputs[0], -model.outputs[0])


def test_a_hook_that_no_file_can_hold_is_told_apart_from_a_format_that_fails():
    run = finished_run(Negate("negate"))
    with pytest.raises(UserError, match=r"The plain model has metric/accuracy=.* but the run has .* a hook changes"):
        compare(run, "model", FORMATS["keras"], KerasPredictor(finished_model(run, "model")))


def test_a_keras_file_is_compared_layer_for_layer():
    run = finished_run()
    model = finished_model(run, "model")
    assert compare(run, "model", FORMATS["keras"], KerasPredictor(model)) == (
        {"metric/accuracy": run.parts.test.run(7)["metric/accuracy"]},
        None,
    )
    model.get_layer("logits").kernel.assign(-model.get_layer("logits").kernel)
    with pytest.raises(UserError, match="The keras file has"):
        compare(run, "model", FORMATS["keras"], KerasPredictor(model))


def test_a_run_in_half_precision_is_compared_in_its_own_and_its_file_in_float32():
    with computing_in("bfloat16"):
        run = finished_run()
    metrics, difference = compare(run, "model", ONNX, predictor(run))
    assert metrics["metric/accuracy"] == pytest.approx(run.parts.test.run(7)["metric/accuracy"], abs=0.05)
    assert difference.largest < 1e-5


def test_metrics_that_need_a_slope_get_that_of_the_model():
    run = finished_run()
    model = finished_model(run, "model")
    stand = Stand(predictor(run), Difference(8))
    inputs = tf.constant(toy_arrays()[0][:8])

    @tf.function(autograph=False)
    def slopes() -> list[tf.Tensor]:
        outputs = model(inputs)
        return [tf.gradients(each[:, 0], inputs)[0] for each in (outputs, stand([inputs, outputs]))]

    expected, found = slopes()
    np.testing.assert_array_equal(found, expected)
    assert np.abs(expected).max() > 0


def test_an_example_that_fills_the_last_batch_counts_once():
    difference = Difference(2)
    inputs = np.array([[1.0], [2.0], [1.0]], np.float32)
    found, expected = np.eye(2, dtype=np.float32)[[0, 1, 0]], np.eye(2, dtype=np.float32)[[1, 1, 1]]
    difference.add(inputs, found, expected)
    assert (difference.others, difference.largest) == (1, 1.0)
    assert str(difference) == "outputs differ by 1 at most; the largest one is another for 1 of 2 test examples"


def test_infinities_of_one_sign_are_equal_and_others_infinitely_apart():
    difference = Difference(2)
    inputs, infinite = np.zeros((2, 1)), np.array([[np.inf], [-np.inf]])
    difference.add(inputs, infinite, infinite)
    assert difference.largest == 0.0
    difference.add(inputs, -infinite, infinite)
    assert difference.largest == np.inf


def test_nan_shows_and_outputs_that_are_no_classes_have_no_predictions():
    difference = Difference(2)
    difference.add(np.zeros((2, 1)), np.array([[np.nan], [1.0]]), np.ones((2, 1)))
    difference.add(np.zeros((2, 1)), np.ones((2, 1)), np.ones((2, 1)))
    assert str(difference) == "outputs differ by nan at most"
