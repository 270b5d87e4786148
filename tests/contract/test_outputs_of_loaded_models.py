"""A model loaded from a file gives the outputs of Keras, with hooks that change nothing before the first step."""

import keras
import numpy as np
import pytest

import hookline
from tests.support.spread import spread
from tests.trainer.run.test_initial_weights import X as SEQUENCES
from tests.trainer.run.test_initial_weights import transformer

QUIET = [{"advisor": None}, {"nan_guard": None}]
HOOKS = {
    "pruned": [{"prune": {"begin_epoch": 0.5}}, "ema", "clip_gradients", "synchronized_batch_norm"],
    "frozen": [{"frozen_mask": {"masks": "magnitude"}}, {"freeze_layers": {"layers": "*", "but": "head"}}],
    "quantized": [{"incremental_quantization": {"begin_epoch": 0.5}}],
}
OF_GRAPHS = {
    "pruned": ["center_loss"],
    "frozen": [{"gradient_override": {"layers": "head", "backward": {"name": "reverse"}}}],
}
"""Further hooks, which a subclassed model cannot have."""


def recurrent():
    units = [keras.layers.GRU(5, return_sequences=True), keras.layers.GRU(5)]
    return keras.Sequential([keras.Input((12, 4)), *units, keras.layers.Dense(3, name="head")])


def saved(make, path):
    model = spread(make())
    model.save(path) if path.suffix == ".keras" else model.save_weights(path)
    return model


def compare(make, name, hooks, inputs, place):
    wanted = np.asarray(saved(make, place / name)(inputs, training=False))
    after = make()
    assert np.abs(np.asarray(after(inputs, training=False)) - wanted).max() > 1e-2 * np.abs(wanted).max()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trainer = hookline.Trainer(after, "sgd", loss, hooks=[*QUIET, *hooks], init_from=place / name)
    trainer.prepare(inputs, np.arange(len(inputs)) % 3, epochs=4, batch_size=len(inputs))
    np.testing.assert_allclose(trainer.predict(inputs), wanted, atol=1e-5 * max(1.0, np.abs(wanted).max()))
    assert wanted.std(axis=0).min() > 0  # they depend on the inputs


@pytest.mark.parametrize("hooks", HOOKS)
def test_loaded_transformer_and_recurrent_network_match_keras(hooks, tmp_path):
    if hooks == "pruned":
        compare(transformer, "a.weights.h5", HOOKS[hooks], SEQUENCES, tmp_path)
    compare(recurrent, "a.keras", [*HOOKS[hooks], *OF_GRAPHS.get(hooks, [])], SEQUENCES, tmp_path)
