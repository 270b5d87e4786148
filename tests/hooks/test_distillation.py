"""Distillation: the loss and its gradients against NumPy, which teachers are accepted, what never moves."""

import shutil
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.distillation import Distillation
from hookline.hooks.prune import Prune
from hookline.trainer.errors import Interrupted
from hookline.trainer.network import Network
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.step.evaluate import Evaluator
from tests.support.command import run_small
from tests.support.door import small_trainer, train
from tests.support.hooked import hooked
from tests.support.networks import Subclassed
from tests.support.refusals import assert_refused, refusal
from tests.support.resumed import go_on, signal_at
from tests.support.toy import BATCH, CLASSES, FEATURES, build_context, toy_batch, toy_network


def student(rate: float = 0.1) -> Network:
    """Return one dense layer, whose gradients are simple in NumPy."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES, name="logits")], name="student")
    return Network("model", model, keras.optimizers.SGD(rate))


def teacher(activation: str | None = None) -> keras.Model:
    """Return a network with batch norm and dropout and with confident predictions."""
    keras.utils.set_random_seed(2)
    layers = [
        keras.layers.Dense(4, name="hidden"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dropout(0.5, name="dropout"),
        keras.layers.Dense(CLASSES, name="last", activation=activation),
    ]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers], name="teacher")
    model.get_layer("last").kernel.assign(3.0 * model.get_layer("last").kernel)
    return model


def trained(teaches: Any, steps: int = 3, **options: Any) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    network = student()
    loop = hooked(network, Distillation(teacher=teaches, **options))
    assert loop.run(0, steps) == (steps, [])
    return {name: np.array(each) for name, each in network.variables.items()}, loop.accumulators.read()


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def data() -> tuple[np.ndarray, np.ndarray]:
    batch = toy_batch(tf.constant(0, tf.int64))
    return batch["inputs"].numpy().astype(np.float64), batch["targets"].numpy()


def test_step_matches_the_equation() -> None:
    network, model, temperature, alpha = student(), teacher(), 4.0, 0.7
    kernel, bias = (np.array(each, np.float64) for each in network.model.weights)
    loop = hooked(network, Distillation(teacher=model, temperature=temperature, alpha=alpha), xla=True)
    before = [np.array(each) for each in model.variables]
    loop.run(0, 1)
    np.testing.assert_equal([np.array(each) for each in model.variables], before)
    inputs, targets = data()
    logits, hard = inputs @ kernel + bias, np.eye(CLASSES)[targets]
    soft, learned = softmax(model(inputs).numpy() / temperature), softmax(logits / temperature)
    gradient = (1 - alpha) * (softmax(logits) - hard) + alpha * temperature * (learned - soft)
    np.testing.assert_allclose(network.model.weights[0], kernel - 0.1 * inputs.T @ gradient / BATCH, atol=1e-6)
    np.testing.assert_allclose(network.model.weights[1], bias - 0.1 * gradient.mean(axis=0), atol=1e-6)
    values = loop.accumulators.read()
    divergence = temperature**2 * (soft * np.log(soft / learned)).sum(axis=-1).mean()
    task = -np.log(softmax(logits)[np.arange(BATCH), targets]).mean()
    assert values["loss/distillation"] == pytest.approx(alpha * divergence, abs=1e-5)
    assert values["loss/cross_entropy"] == pytest.approx(task, rel=1e-5)
    assert values["loss/total"] == pytest.approx((1 - alpha) * task + alpha * divergence, rel=1e-4, abs=1e-5)
    found = model(inputs).numpy().argmax(axis=-1)
    assert values["distillation/teacher_accuracy"] == pytest.approx((found == targets).mean())
    assert values["distillation/agreement"] == pytest.approx((found == logits.argmax(axis=-1)).mean())
    values = Evaluator(loop.trainer, toy_batch, 1).run(0)  # needs no teacher
    assert values["loss/total"] == values["loss/cross_entropy"]
    assert not any("distillation" in name for name in values)


def test_teacher_with_softmax_teaches_like_one_with_logits() -> None:
    expected, values = trained(teacher())
    model = teacher(activation="softmax")
    found, same = trained(model)
    np.testing.assert_equal(found, expected)
    assert same == values
    np.testing.assert_allclose(model(data()[0]).numpy().sum(axis=-1), 1.0, rtol=1e-5)  # the user's model keeps it


def test_feature_loss_compares_student_and_teacher_features() -> None:
    network, model = toy_network(), teacher()
    wide = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(8, name="wide"), keras.layers.Dense(CLASSES)])
    before = [np.array(each, np.float64) for each in network.model.get_layer("hidden").weights]
    hook = Distillation(teacher=wide, features={"wide": "hid*"}, feature_weight=0.5, alpha=0.0)
    loop = hooked(network, hook)
    loop.run(0, 1)
    inputs, _ = data()
    difference = inputs @ before[0] + before[1] - wide.get_layer("wide")(inputs).numpy()
    assert loop.accumulators.read()["loss/distillation_features"] == pytest.approx(
        0.5 * (difference**2).mean(), rel=1e-5
    )
    hook = Distillation(teacher=model, features={"hidden": "hidden"})
    assert_refused(r"\[None, 4\].*\[None, 8\]", hooked, toy_network(), hook)


def test_default_teacher_is_the_initial_network() -> None:
    network = toy_network(dropout=0.2)
    begun = network.model(data()[0]).numpy()
    hook = Distillation(alpha=1.0, temperature=1.0)
    loop = hooked(network, Prune(schedule="constant", final_sparsity=0.5), hook)
    loop.run(0, 4)
    assert not np.allclose(network.model(data()[0]), begun, atol=0.01)
    with keras.StatelessScope(list(zip(network.model.variables, hook.declare().state.values(), strict=True))):
        np.testing.assert_array_equal(network.model(data()[0]), begun)


def test_unsuitable_teachers_are_refused() -> None:
    network = student()
    assert_refused("shares variables with the trained network", hooked, network, Distillation(teacher=network.model))
    five = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(5)])
    assert_refused("the same classes", hooked, student(), Distillation(teacher=five))
    one = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
    copy = Network("model", keras.models.clone_model(one), keras.optimizers.SGD())
    assert_refused("the same classes", hooked, copy, Distillation(teacher=one))
    assert_refused("needs one class for each", Distillation().build, build_context(student()))  # several labels
    wide = keras.Sequential([keras.Input((FEATURES + 1,)), keras.layers.Dense(CLASSES)])
    assert_refused("takes inputs", hooked, student(), Distillation(teacher=wide))
    for options in ({"alpha": 1.5}, {"temperature": 0}):
        assert_refused("Expected", Distillation, **options)


def refused(path: Path) -> str:
    return refusal(Distillation(teacher=str(path)).rebuild_model, student().model)


def test_keras_file_is_loaded_without_executing_its_code(tmp_path: Path) -> None:
    model = teacher()
    model.save(tmp_path / "teacher.keras")
    hook, (inputs, _) = Distillation(teacher=str(tmp_path / "teacher.keras")), data()
    hook.rebuild_model(student().model)
    np.testing.assert_array_equal(hook._model(inputs), model(inputs))
    with zipfile.ZipFile(tmp_path / "teacher.keras") as given, zipfile.ZipFile(tmp_path / "os.keras", "w") as made:
        for name in given.namelist():
            text = given.read(name)
            made.writestr(name, text.replace(b'"module": "keras.layers"', b'"module": "os.path"'))
    assert "not from Keras" in refused(tmp_path / "os.keras")
    assert "teacher=" in refused(tmp_path / "nowhere")


def test_probabilities_are_not_taken_for_logits() -> None:
    network = student()
    network.model.layers[-1].activation = keras.activations.softmax  # as it stays with the user's own loss
    same = keras.models.clone_model(network.model)
    same.set_weights(network.model.get_weights())
    loop = hooked(network, Distillation(teacher=same, alpha=1.0))
    loop.run(0, 1)
    assert loop.accumulators.read()["loss/distillation"] == pytest.approx(0.0, abs=1e-6)
    assert network.model.layers[-1].activation is same.layers[-1].activation is keras.activations.softmax
    (unknown := Subclassed("softmax"))(np.zeros([1, 8, 8, 1]))
    assert_refused("returns probabilities", train, small_trainer(Distillation(teacher=unknown)))


@pytest.mark.full
def test_run_resumes_only_with_the_same_teacher(tmp_path: Path) -> None:
    run_small("baseline", "trainer.epochs=1", run_dir=tmp_path / "float")
    options = ["+hooks=distillation", f"hooks.distillation.teacher={tmp_path / 'float'}"]
    with pytest.raises(Interrupted):
        run_small("bnn", *options, *signal_at(7), run_dir=tmp_path / "cut")
    assert not any("teacher" in key for key in CheckpointStore(tmp_path / "cut" / "checkpoints").load("last").tensors)
    moved = f"hooks.distillation.teacher={(tmp_path / 'float').rename(tmp_path / 'moved')}"
    assert_refused("put it back", go_on, tmp_path / "cut")
    shutil.copytree(tmp_path / "cut", tmp_path / "copy")
    assert go_on(tmp_path / "copy", moved)["status"] == "completed"
    store = CheckpointStore(tmp_path / "moved" / "checkpoints")
    best = store.load("best")
    tensors = {name: 2 * each if name.endswith("kernel") else each for name, each in best.tensors.items()}
    store.save({"best"}, best.step, tensors, best.state)  # as retraining would
    store.wait()
    assert_refused(r"hooks.distillation.teacher has changed since the run began", go_on, tmp_path / "cut", moved)
    (tmp_path / "moved").rename(tmp_path / "float")
    np.savez(tmp_path / "unit.npz", x_train=np.full([200, 8, 8], 9, np.uint8), y_train=np.arange(200) % 10)
    options += ["data=arrays", f"data.path={tmp_path / 'unit.npz'}", "data.scale=unit"]
    assert_refused("inputs from -1 to 1, but", run_small, "bnn", *options, run_dir=tmp_path / "unit")
