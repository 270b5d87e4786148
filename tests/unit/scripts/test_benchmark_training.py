"""The contenders of `what=training` do the same work, all of it, and what they report of it is true."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from recipes.classification import Classification
from recipes.models.lenet_5 import lenet_5
from recipes.models.lenet_300_100 import lenet_300_100
from scripts.benchmarks.contender import Settings
from scripts.benchmarks.training import CONTENDERS, case, hookline, keras_loops, limit
from scripts.benchmarks.training.contenders import TECHNIQUES
from scripts.benchmarks.training.gate import Gate
from scripts.benchmarks.training.networks import four_convolutions
from scripts.benchmarks.training.products import products
from trainer.network import Network
from trainer.run.fit import Fit
from trainer.step.trainer import Trainer

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def few_images(monkeypatch) -> None:
    monkeypatch.setattr(case, "GENERATED", 400)
    monkeypatch.setattr(case, "HELD_OUT", 40)
    monkeypatch.setattr(hookline, "HELD_OUT", 40)


def test_images_come_from_the_file_or_are_generated_where_it_holds_others(tmp_path: Path) -> None:
    file = tmp_path / "digits.npz"
    images, labels = np.full([4, 28, 28], 255, np.uint8), np.arange(4, dtype=np.uint8)
    np.savez(file, x_train=images, y_train=labels, x_test=images, y_test=labels)
    inputs, targets = case.examples(Settings(str(file)), case.DIGITS)
    assert inputs.shape == (4, 28, 28, 1)
    assert inputs.dtype == np.float32
    assert inputs.min() == inputs.max() == 1.0
    assert (targets.dtype, targets.tolist()) == (np.int64, [0, 1, 2, 3])
    generated = case.pixels(Settings(str(file)), case.COLOURED)
    assert generated["x_train"].shape == (400, 32, 32, 3)
    again = case.pixels(Settings(), case.COLOURED)
    assert all(np.array_equal(generated[key], again[key]) for key in case.KEYS)


def test_what_is_generated_can_be_learned() -> None:
    arrays = case.pixels(Settings(), case.DIGITS)
    means = np.stack([arrays["x_train"][arrays["y_train"] == label].mean(axis=0) for label in range(10)])
    distances = np.abs(arrays["x_test"][:, None] - means).mean(axis=(2, 3, 4))
    assert np.mean(distances.argmin(axis=1) == arrays["y_test"]) > 0.99


def overrides_of(contender) -> tuple[str, ...]:
    return tuple(contender.prepare.keywords.get("overrides", ()))


@pytest.mark.parametrize("name", ["bnn/hookline", "pruning/hookline frozen_mask", "hooks/hookline gradient_override"])
def test_our_overrides_make_a_config(name: str, tmp_path: Path) -> None:
    (contender,) = [each for each in CONTENDERS if each.key == f"training/{name}"]
    own = contender.prepare.keywords["case"]
    config = hookline.compose(Settings(batch_size=own.batch_size), own, overrides_of(contender), tmp_path).config
    assert config["trainer"]["batch_size"] == own.batch_size == contender.batch_size
    assert config["model"]["_target_"].endswith(own.model)


def test_without_host_hooks_the_step_is_guarded_still(tmp_path: Path) -> None:
    settings = Settings(batch_size=100)
    config = hookline.compose(settings, case.CNN, hookline.host_hooks(watched=False), tmp_path).config
    assert sorted(config["hooks"]) == ["fused_batch_norm", "nan_guard"]
    assert config["model"]["_target_"].endswith("networks.four_convolutions")


def test_each_technique_is_a_hook_of_the_catalogue() -> None:
    named = [
        each.removeprefix("+hooks=") for own in CONTENDERS if own.case == "hooks" for each in overrides_of(own)[:1]
    ]
    assert set(named) == set(TECHNIQUES)
    assert all((ROOT / "configs" / "hooks" / f"{name}.yaml").is_file() for name in named)


class EndError(Exception):
    """The run had an end."""


def test_a_gate_holds_the_run_between_pieces_and_hands_on_its_end() -> None:
    gate, made = Gate(), []

    class Run:
        step = 0

    def train() -> None:
        run = Run()
        gate.on_fit_begin(run)
        while run.step < 7:
            run.step += 1
            assert run.step <= gate.next_step(run.step - 1)
            made.append(run.step)
            gate.on_chunk_end(run, None)
        raise EndError

    gate.start(train)
    assert made == []
    assert gate.work(2) > 0
    assert made == [1, 2]
    gate.work(3)
    assert made == [1, 2, 3, 4, 5]
    with pytest.raises(EndError):
        gate.work(9)


@pytest.fixture
def fits(monkeypatch) -> Iterator[list[Fit]]:
    """Return the fits that are started. A contender has its own process; here their threads must end."""
    before, gates, open_gate = set(threading.enumerate()), [], hookline.open_gate
    found, start = [], hookline.start
    monkeypatch.setattr(hookline, "start", lambda *given: found.append(start(*given)) or found[-1])
    monkeypatch.setattr(hookline, "open_gate", lambda fit: gates.append(open_gate(fit)) or gates[-1])
    yield found
    for fit, gate in zip(found, gates, strict=True):
        fit.run.control.stop("the test is over")
        with pytest.raises(RuntimeError, match="The run ended"):
            gate.work(1)
        fit.call_all("on_exception", fit.run, EndError())
    deadline = time.monotonic() + 10.0
    while left := [each for each in threading.enumerate() if each not in before]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def test_our_run_has_the_losses_of_a_loop_by_hand_from_the_same_start(fits) -> None:
    settings = Settings(batch_size=20)
    work = hookline.ours(settings, case=case.LENET_300_100, overrides=["trainer.compile=off"])
    (run,) = [each.run for each in fits]
    (network,) = run.networks.values()
    model = lenet_300_100(case.DIGITS, case.CLASSES)
    model.set_weights(network.model.get_weights())
    step = tf.function(keras_loops.step_by_hand(model, keras.optimizers.Adam(case.LEARNING_RATE)), autograph=False)
    assert run.steps_per_epoch == 18
    assert work.facts == {"products": products(model)}
    for first, count in ((0, 3), (3, 20), (23, 13)):  # a report in between, and one at the end
        batches = [run.training.batch(tf.constant(each, tf.int64)) for each in range(first, first + count)]
        losses = [float(step(each["inputs"], each["targets"])) for each in batches]
        done = work(count)
        assert run.step == first + count
        assert done.loss == pytest.approx(np.mean(losses[18 - 23 :] if first == 3 else losses), rel=1e-4)
        assert done.seconds > 0
    np.testing.assert_allclose(network.model.get_weights()[0], model.get_weights()[0], atol=1e-5)


def test_whole_epochs_are_made_with_everything_that_a_run_writes(fits) -> None:
    work = hookline.whole_epochs(Settings(batch_size=100), case=case.HOST_HOOKS, watched=True)
    (fit,) = fits
    assert fit.run.steps_per_epoch == 3.6
    steps = []
    for count in (1, 4, 7):
        assert work(count).seconds > 0
        steps.append(fit.run.step)
    assert steps == [4, 8, 15]  # the ends of the epochs 1, 2 and 4
    fit.wait_for_checkpoints()
    assert fit.store.tags()
    assert (fit.run.directory / "metrics.jsonl").is_file()


@pytest.mark.parametrize("many", [1, 3])
def test_fit_makes_as_many_steps_as_are_asked_for_in_whole_executions(many: int) -> None:
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(10)])
    criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", criterion, steps_per_execution=many)
    work = keras_loops.fitted(
        model, np.ones([20, 2], np.float32), np.zeros([20], np.int64), batch_size=2, many=many
    )  # 10 steps an epoch
    expected = 0
    for count, made in ((1, 2 * many), (6, 6), (24, 24)):
        done = work(count)
        expected += made
        assert int(model.optimizer.iterations) == expected
        assert done.seconds > 0
    assert 0 < done.loss < np.log(10)


@pytest.mark.parametrize("xla", [False, True])
def test_the_limit_makes_every_gradient_and_changes_nothing(xla: bool) -> None:
    model = lenet_300_100([4, 4, 1], 3)
    before = [each.copy() for each in model.get_weights()]
    images, labels = tf.random.stateless_uniform([5, 4, 4, 1], [0, 1]), tf.constant([0, 1, 2, 0, 1], tf.int64)
    kept = [tf.Variable(tf.zeros(each.shape)) for each in model.trainable_variables]
    network = Network("model", model, keras.optimizers.SGD())
    trainer = Trainer([network], [Classification(classes=3)], [], seed=0)
    limit.steps(trainer, images, labels, kept, xla=xla)(3)
    with tf.GradientTape() as tape:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, model(images))
    for found, expected in zip(kept, tape.gradient(loss, model.trainable_variables), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert np.any(found)
    for found, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("build", "shape", "forward", "first"),
    [
        (lenet_300_100, case.DIGITS, 784 * 300 + 300 * 100 + 1000, 784 * 300),
        (lenet_5, case.DIGITS, 24 * 24 * 500 + 64 * 25_000 + 400_000 + 5000, 24 * 24 * 500),
        (four_convolutions, case.COLOURED, 1024 * 9 * (96 + 1024) + 256 * 9 * (2048 + 4096) + 40_960, 1024 * 9 * 96),
    ],
)
def test_products_are_counted(build, shape, forward: int, first: int) -> None:
    assert products(build(shape, 10)) == 3 * forward - first


def test_the_peak_is_a_speed(monkeypatch) -> None:
    monkeypatch.setattr(limit, "SIDE", 64)
    assert limit.peak() > 1e6
