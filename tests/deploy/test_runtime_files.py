"""Tables of plain models, and LiteRT, ONNX and SavedModel files."""

import keras
import numpy as np
import pytest

from hookline.deploy.compare import compare
from hookline.deploy.formats import FORMATS, ExportOptions
from hookline.deploy.plain_model import finished_model
from hookline.deploy.runtime_files import calibration_examples, layer_table
from hookline.trainer.errors import UserError
from tests.support.finished import finished_run
from tests.support.toy import StatelessHook, toy_arrays

layers = keras.layers


def rows_of(model: keras.Model) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in layer_table(model).rows}


def test_entries_values_zeros_and_bytes_are_counted_by_layer():
    dense, norm = layers.Dense(3, name="dense"), layers.BatchNormalization(name="norm")
    model = keras.Sequential([keras.Input((4,)), dense, norm])
    dense.kernel.assign(np.array([[1, -1, 0]] * 4, np.float32))
    assert rows_of(model) == {
        "dense": ("12", "3", "4", "0.3333", "48"),
        "others": ("15", "2", "9", "0.6000", "60"),  # a bias, beta and mean of 0; gamma and variance of 1
        "total": ("27", "3", "13", "0.4815", "108"),
    }


def test_weights_of_shared_and_nested_layers_are_counted_once():
    shared = layers.Dense(4, use_bias=False, name="shared")
    inner = keras.Sequential([keras.Input((4,)), shared, layers.Dense(2, use_bias=False, name="head")], name="inner")
    inputs = keras.Input((4,))
    found = rows_of(keras.Model(inputs, layers.GRU(1, name="gru")(layers.Reshape((2, 1))(inner(shared(inputs))))))
    sizes = {"shared": "16", "inner/head": "8", "gru": "6", "others": "6", "total": "36"}
    assert {name: row[0] for name, row in found.items()} == sizes


LITERT = FORMATS["litert"]


@pytest.mark.full
def test_int8_file_is_close_and_calibrated_on_evenly_spaced_examples(tmp_path, monkeypatch):
    run = finished_run()
    model, path = finished_model(run, "model"), tmp_path / "a.tflite"
    np.testing.assert_array_equal(calibration_examples(run, "model", model), toy_arrays()[0][:64])
    with monkeypatch.context() as patch:
        patch.setattr("hookline.deploy.runtime_files.CALIBRATION_EXAMPLES", 4)
        np.testing.assert_array_equal(calibration_examples(run, "model", model), toy_arrays()[0][[0, 21, 42, 63]])
    exact = LITERT.write(run, "model", tmp_path / "b.tflite", ExportOptions())
    assert (exact.lossy, exact.notes) == (False, ())
    dark = np.zeros_like(toy_arrays()[0][:64])
    dark[1:] = toy_arrays()[0][1:64]  # the ranges must come from all examples, not only the first one
    monkeypatch.setattr("hookline.deploy.runtime_files.calibration_examples", lambda *_: dark)
    assert LITERT.write(run, "model", path, ExportOptions(int8=True)).lossy
    _, difference = compare(run, "model", LITERT, LITERT.load(path), tolerance=0.2)
    assert 1e-4 < difference.largest < 0.3


class Gelu(StatelessHook):
    """Begin the network with a layer that is random in training only, and end it with a GELU."""

    def strip_model(self, model: keras.Model) -> keras.Model:
        inputs = keras.Input((6,))
        drawn = layers.RandomFlip()(layers.Reshape((2, 3, 1))(inputs))
        return keras.Model(inputs, layers.Activation("gelu")(model(layers.Reshape((6,))(drawn))))


class Padded(StatelessHook):
    """Pad twice before a dilated convolution."""

    def strip_model(self, model: keras.Model) -> keras.Model:
        padded = layers.ZeroPadding2D(1)(layers.Reshape((2, 3, 1))(model.inputs[0]))
        made = layers.Conv2D(1, 3, dilation_rate=2, padding="same", kernel_initializer="ones")(padded)
        return keras.Model(model.inputs[0], layers.Flatten()(made))


class Normalized(StatelessHook):
    """Begin the network with means and variances that are constants, not variables."""

    def strip_model(self, model: keras.Model) -> keras.Model:
        inputs = keras.Input((6,))
        return keras.Model(inputs, model(layers.Normalization(mean=[0.5] * 6, variance=[4.0] * 6)(inputs)))


@pytest.mark.parametrize("hook", [Gelu("gelu"), Padded("padded"), Normalized("normalized")])
def test_onnx_file_matches_model_with_gelu_double_padding_or_constants(hook, tmp_path):
    run, path = finished_run(hook), tmp_path / "a.onnx"
    FORMATS["onnx"].write(run, "model", path, ExportOptions())
    expected = finished_model(run, "model")(toy_arrays()[0], training=False)
    np.testing.assert_allclose(FORMATS["onnx"].load(path)(toy_arrays()[0]), expected, atol=1e-6)


class Lookup(StatelessHook):
    """Begin the network with a lookup table."""

    def strip_model(self, model: keras.Model) -> keras.Model:
        inputs = keras.Input((6,))
        whole = layers.IntegerLookup(vocabulary=[-1, 0, 1])(keras.ops.cast(inputs, "int64"))
        return keras.Model(inputs, model(keras.ops.cast(whole, "float32")))


def test_lookup_table_is_saved_in_saved_model_but_refused_for_onnx(tmp_path):
    run, path = finished_run(Lookup("lookup")), tmp_path / "saved"
    FORMATS["saved_model"].write(run, "model", path, ExportOptions())
    expected = finished_model(run, "model")(toy_arrays()[0], training=False)
    np.testing.assert_allclose(FORMATS["saved_model"].load(path)(toy_arrays()[0]), expected, atol=1e-6)
    with pytest.raises(UserError, match="^ONNX cannot hold this network: no operation LookupTableFind.*saved_model"):
        FORMATS["onnx"].write(run, "model", tmp_path / "a.onnx", ExportOptions())


class Recurrent(StatelessHook):
    def strip_model(self, model: keras.Model) -> keras.Model:
        return keras.Model(model.inputs[0], layers.GRU(2)(layers.Reshape((3, 1))(model.outputs[0])))


@pytest.mark.full
def test_loop_that_litert_lacks_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(UserError, match="^LiteRT cannot hold this network: no operation TensorList.*unroll=True"):
        LITERT.write(finished_run(Recurrent("recurrent")), "model", tmp_path / "a.tflite", ExportOptions())
