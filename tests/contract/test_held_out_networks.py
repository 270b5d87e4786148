"""Networks that no recipe uses: every technique trains and exports them, or says in one line why it cannot."""

import copy
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.deploy.formats import FORMATS, ExportOptions
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.run.session import prepare
from tests.contract import held_out_networks
from tests.contract.held_out_networks import CLASSES, EXAMPLES, arrays_of, halves
from tests.contract.test_technique_pairs import EVERYWHERE, FUSED, TECHNIQUES
from tests.support.refusals import refusal

OWN = held_out_networks.__name__
SERIES, TOKENS, IMAGES = "series", "tokens", "images"
NETWORKS = {
    **dict.fromkeys(("subclassed_transformer", "functional_transformer"), SERIES),
    "embedding_lstm": TOKENS,
    "shared_layers": SERIES,
    **dict.fromkeys(("nested_models", "every_convolution"), IMAGES),
    "own_layer": SERIES,
    "softmax_end": IMAGES,
    "two_inputs": SERIES,
}
"""Each network with its kind of inputs."""
SUBCLASSED, PROBABILITIES, TWO_INPUTS = "subclassed_transformer", "softmax_end", "two_inputs"
OWN_CLASSES = (SUBCLASSED, "functional_transformer", "own_layer")
"""Networks that cannot be loaded from only a .keras file."""
CHAIN = ("prune", "frozen_mask", "ema", "clip_gradients")
STEPS, DESCENT, RATE = 4, 10, 0.1
NO_MAP = "No 2-D convolution"
NO_GRAPH = "Expected a functional or Sequential model"
REFUSED = {
    **{("bernoulli_attention", network): NO_MAP for network, inputs in NETWORKS.items() if inputs != IMAGES},
    **{("bnn_rounding", each): "matches only first and last layers" for each in ("two_inputs", "embedding_lstm")},
    ("bnn_rounding", "softmax_end"): "is never negative",
    **{(hook, SUBCLASSED): NO_GRAPH for hook in ("bernoulli_attention", "center_loss", "gradient_override")},
    ("bnn_rounding", SUBCLASSED): "Set input_quantizer=null",
}
"""The message where a technique cannot train a network, by hook and network."""


class Runs:
    def __init__(self, directory):
        self.directory = directory
        for kind in {*NETWORKS.values()}:
            np.savez(directory / f"{kind}.npz", **arrays_of(kind))
        given = ["plugins=[tests]", "model=custom", f"model._target_={OWN}.functional_transformer"]
        given += ["data=arrays", "data.channels=none", f"data.path={directory / SERIES}.npz"]
        given += ["optimizer=sgd", "optimizer.momentum=0.0", f"optimizer.learning_rate={RATE}", "schedule=constant"]
        given += ["trainer.compile=off", f"trainer.batch_size={EXAMPLES}", f"trainer.epochs={STEPS}"]
        given += [f"+hooks=[{','.join(TECHNIQUES)}]", "hooks.freeze_layers.layers=outputs", *FUSED]
        (job,) = preflight(parse_command(["recipe=baseline", *given]))
        self.config = job.config

    def assemble(self, network, hooks):
        config = copy.deepcopy(self.config)
        config["model"]["_target_"] = f"{OWN}.{network}"
        config["data"]["path"] = str(self.directory / f"{NETWORKS[network]}.npz")
        config["hooks"] = {name: config["hooks"][name] for name in hooks}
        if {"prune", "frozen_mask"} <= {*hooks}:
            config["hooks"]["frozen_mask"] |= {"masks": "hook", "hook": "prune"}
        if network == TWO_INPUTS:
            config["task"]["_target_"] = f"{OWN}.classify_halves"
        return prepare(config, "held_out", directory=self.directory)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("held_out"))


def check_export(parts, network, directory):
    form = FORMATS["saved_model" if network in OWN_CLASSES else "keras"]
    path = directory / f"model{form.suffix}"
    form.write(replace(parts, checkpoint="last", step=STEPS), "model", path, ExportOptions())
    arrays = arrays_of(NETWORKS[network])
    inputs, targets = arrays["x_test"].astype(np.float32), arrays["y_test"]
    predicted = np.asarray(form.load(path)(halves(inputs) if network == TWO_INPUTS else inputs), np.float64)
    shares = predicted if network == PROBABILITIES else np.exp(predicted) / np.exp(predicted).sum(axis=1, keepdims=True)
    expected = parts.held_out["test"].run(STEPS)
    loss = -np.log(shares[np.arange(EXAMPLES), targets]).mean()
    assert loss == pytest.approx(expected["loss/cross_entropy"], rel=1e-5)
    assert np.mean(shares.argmax(axis=1) == targets) == pytest.approx(expected["metric/accuracy"])


TOGETHER = {
    SUBCLASSED: (*CHAIN, "quantization_aware_training"),
    "functional_transformer": ("sam",),
    "embedding_lstm": ("distillation", "weight_clustering"),
    "shared_layers": ("bop",),
    "nested_models": ("center_loss", "bernoulli_attention", "synchronized_batch_norm"),
    "every_convolution": ("bnn_rounding",),
    "own_layer": ("freeze_layers", *CHAIN),
    PROBABILITIES: ("gradient_override",),
    TWO_INPUTS: ("incremental_quantization",),
}
"""Outside the long tier: every network and every technique, in as few runs as possible."""


def test_default_runs_cover_all_techniques_and_networks():
    assert {hook for hooks in TOGETHER.values() for hook in hooks} == {*TECHNIQUES}
    assert TOGETHER.keys() == NETWORKS.keys()


def cases():
    for network in NETWORKS:
        yield pytest.param(network, TOGETHER[network], id=f"{network}-together")
        yield pytest.param(network, CHAIN, id=f"{network}-chain", marks=pytest.mark.long)
        for hook in TECHNIQUES:
            yield pytest.param(network, (hook,), id=f"{network}-{hook}", marks=pytest.mark.long)


@pytest.mark.parametrize(("network", "hooks"), list(cases()))
def test_technique_trains_and_exports_network_or_says_why_not(network, hooks, runs, tmp_path):
    if len(hooks) == 1 and (hooks[0], network) in REFUSED:
        assert REFUSED[hooks[0], network] in refusal(runs.assemble, network, hooks)
        return
    parts = runs.assemble(network, (*hooks, *sorted(EVERYWHERE)))
    weights = parts.trainer.networks["model"].model.trainable_weights
    before = [np.array(weight) for weight in weights]
    assert parts.loop.run(0, STEPS) == (STEPS, [])
    assert all(np.isfinite(value) for value in parts.loop.accumulators.read().values())
    assert any(not np.array_equal(weight, old) for weight, old in zip(weights, before, strict=True))
    check_export(parts, network, tmp_path)


@pytest.mark.parametrize(
    "network", [pytest.param(each, marks=() if n % 4 == 1 else pytest.mark.long) for n, each in enumerate(NETWORKS)]
)
def test_network_without_hooks_trains_as_in_keras(network, runs):
    parts = runs.assemble(network, ())
    trained = parts.trainer.networks["model"].model
    twin = getattr(held_out_networks, network)(input_shape=parts.data.input_shape, classes=CLASSES)
    twin.set_weights(trained.get_weights())
    losses = []
    for step in range(DESCENT):
        assert parts.loop.run(step, 1) == (step + 1, [])
        losses.append(parts.loop.accumulators.read()["loss/total"])
        parts.loop.accumulators.reset()
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=network != PROBABILITIES)
    twin.compile(keras.optimizers.SGD(RATE), cross_entropy, jit_compile=False)
    batches = tf.data.Dataset.range(DESCENT).map(lambda step: as_keras_takes_it(parts.training.batch(step), network))
    history = twin.fit(batches, epochs=DESCENT, steps_per_epoch=1, shuffle=False, verbose=0).history
    np.testing.assert_allclose(losses, history["loss"], rtol=1e-6)
    for weight, found, expected in zip(twin.weights, trained.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=weight.path)


def as_keras_takes_it(batch, network):
    inputs = batch["inputs"]
    return tuple(halves(inputs)) if network == TWO_INPUTS else inputs, batch["targets"]
