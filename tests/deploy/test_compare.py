"""Comparison of files with their run: a file that is as good passes, a worse one never does."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.deploy.compare import Difference, Stand, compare
from hookline.deploy.formats import FORMATS
from hookline.deploy.plain_model import finished_model
from hookline.deploy.runtime_files import KerasPredictor
from hookline.trainer.errors import UserError
from hookline.trainer.run.machine import computing_in
from tests.support.finished import Halve, finished_run
from tests.support.toy import StatelessHook, toy_arrays

ONNX = FORMATS["onnx"]


def predictor(run, change=lambda inputs, outputs: outputs):
    """Return a predictor that stands in for a file's: the small network in NumPy, and a change to its outputs."""
    hidden, logits = (finished_model(run, "model").get_layer(name).get_weights() for name in ("hidden", "logits"))

    def predict(inputs: np.ndarray) -> np.ndarray:
        outputs = np.tanh(inputs @ hidden[0] + hidden[1]) @ logits[0] + logits[1]
        return change(inputs, outputs.astype(np.float32))

    return predict


def one_wrong(run):
    """Return a predictor that is wrong for one example of 64 for which the run is right."""
    inputs, targets = (array[:64] for array in toy_arrays())
    right = predictor(run)(inputs).argmax(axis=1) == targets
    spoiled = inputs[np.flatnonzero(right)[0]]
    return predictor(run, lambda given, outputs: np.where((given == spoiled).all(1, keepdims=True), -outputs, outputs))


def test_file_worse_than_run_beyond_tolerance_is_refused():
    run = finished_run()
    for predict, options, words in (
        (predictor(run, lambda _, outputs: outputs * np.nan), {"tolerance": 1.0}, "returns NaN on the test split"),
        (predictor(run, lambda _, outputs: outputs[:, :1]), {}, r"returns outputs of shape \(16, 1\)"),
        (one_wrong(run), {}, r"^The onnx file has metric/accuracy=.* more than tolerance=0.001 apart\."),
        (one_wrong(run), {"lossy": True, "tolerance": 0}, "more than tolerance=0 "),
        (one_wrong(run), {"tolerance": 0.015}, "more than tolerance=0.015 "),  # 1 of 64 is 0.0156
        (predictor(run, lambda _, outputs: outputs * 1.02), {}, "differ from the run's by 2.0% on average"),
    ):
        with pytest.raises((UserError, tf.errors.OpError), match=words):
            compare(run, "model", ONNX, predict, **options)
    metrics, difference = compare(run, "model", ONNX, one_wrong(run), lossy=True)  # a lossy file may be a little worse
    assert len(difference.others) == 1
    assert metrics["metric/accuracy"] == pytest.approx(run.held_out["test"].run(7)["metric/accuracy"] - 1 / 64)


class Negate(StatelessHook):
    """Ship a network other than the one that is evaluated."""

    def strip_model(self, model: keras.Model) -> keras.Model:
        return keras.Model(model.inputs[0], -model.outputs[0])


def test_keras_file_and_plain_model_must_match_metrics_of_run():
    run = finished_run()
    model = finished_model(run, "model")
    metrics, difference = compare(run, "model", FORMATS["keras"], KerasPredictor(model))
    assert metrics == {"metric/accuracy": run.held_out["test"].run(7)["metric/accuracy"]}
    assert difference is None
    model.get_layer("logits").kernel.assign(-model.get_layer("logits").kernel)
    with pytest.raises(UserError, match="The keras file has"):
        compare(run, "model", FORMATS["keras"], KerasPredictor(model))
    for precision in ("float32", "bfloat16"):
        with computing_in(precision):
            run = finished_run(Negate("negate"))
        predict = KerasPredictor(finished_model(run, "model"))
        with pytest.raises(UserError, match=r"^The plain model has metric/accuracy=.* a hook changes"):
            compare(run, "model", FORMATS["keras"], predict)
        compare(run, "model", FORMATS["keras"], predict, tolerance=1.0)


def test_file_of_half_precision_run_is_compared_in_float32():
    with computing_in("bfloat16"):
        run = finished_run(Halve("halve"))
    metrics, difference = compare(run, "model", ONNX, predictor(run))
    assert metrics["metric/accuracy"] == pytest.approx(run.held_out["test"].run(7)["metric/accuracy"], abs=0.05)
    assert difference.largest < 1e-5
    assert len(difference.others) == 0


def test_metrics_that_need_gradients_get_those_of_model():
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


def test_differences_of_repeated_examples_infinities_and_nan():
    difference = Difference(2)
    found, expected = np.eye(2, dtype=np.float32)[[0, 1, 0]], np.eye(2, dtype=np.float32)[[1, 1, 1]]
    difference.add(np.float32([[1], [2], [1]]), found, expected)  # the third only fills the batch: not counted again
    assert (len(difference.others), difference.largest) == (1, 1.0)
    difference, infinite = Difference(2), np.array([[np.inf], [-np.inf]])
    difference.add(np.zeros((2, 1)), infinite, infinite)
    assert difference.largest == 0.0
    difference.add(np.zeros((2, 1)), -infinite, infinite)
    assert difference.largest == np.inf
    difference = Difference(2)
    for found in (np.array([[np.nan], [1.0]]), np.ones((2, 1))):
        difference.add(np.zeros((2, 1)), found, np.ones((2, 1)))
    assert np.isnan(difference.largest)
