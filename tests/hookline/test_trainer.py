"""Fits of `hookline.Trainer`: how they continue, end and resume, and what they leave behind."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

import hookline
from hookline.hook_list import hook_makers
from hookline.running import read_history
from hookline.trainer.objective import Objective, ObjectiveOutput
from tests.support.door import SETTINGS, by_python, generators_kept, held_out, images, small_model, small_trainer, train
from tests.support.refusals import assert_refused
from tests.support.signals import Signal

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Decay(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.01 / (1 + tf.cast(step, tf.float32))


@pytest.mark.full
def test_second_fit_continues_like_one_whole_fit():
    hooks = ("bernoulli_attention", "ema")
    whole, expected = by_python(*hooks, epochs=3, optimizer=keras.optimizers.Adam(Decay()))
    parts = small_trainer(*hooks, optimizer=keras.optimizers.Adam(Decay()))
    train(parts, epochs=2, validation_data=None)
    second = train(parts, epochs=1)
    assert second.summary["digest"] == expected.summary["digest"]
    assert parts.step == whole.step == 15
    assert second.epoch == [2]
    assert len(second.history["val_loss"]) == 1
    assert len(parts.history["loss"]) == 3
    assert int(parts._state.variables["optimizer/model/iteration"].numpy()) == 15


class Killed(keras.callbacks.Callback):
    def __init__(self, epoch, error):
        super().__init__()
        self.epoch, self.error = epoch, error

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            raise self.error("killed")


@pytest.mark.full
def test_resumed_fit_matches_whole_fit_bit_for_bit(tmp_path):
    hook = "prune"
    without = dict.fromkeys(("tensorboard", "pictures", "projector"))
    disk = {"checkpoint": {"every_seconds": 0, "every_epochs": 1}, **without}
    _, whole = by_python(hook, epochs=3)
    with pytest.raises(RuntimeError, match="killed"):
        train(small_trainer(hook, disk, run_dir=tmp_path / "run"), 3, callbacks=[Killed(1, RuntimeError)])
    trainer = small_trainer(hook, disk, run_dir=tmp_path / "run")
    history = train(trainer, 3, resume=True)
    assert history.summary["resumed_at"] == [5]
    assert history.summary["digest"] == whole.summary["digest"]
    assert len(history.history["val_loss"]) == 3
    loaded = hookline.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.predict(held_out()[0]), trainer.predict(held_out()[0]))
    assert loaded.evaluate(*held_out()) == trainer.evaluate(*held_out())
    again = small_trainer(hook, disk, run_dir=tmp_path / "run")
    assert_refused("class_weight", train, again, 3, resume=True, class_weight={0: 2.0})
    assert_refused("exists already", train, again, 3)
    other = small_trainer(hook, disk, run_dir=tmp_path / "run", seed=9)
    assert_refused("another trainer", train, other, 3, resume=True)


def decaying(*excluded):
    optimizer = keras.optimizers.AdamW()
    optimizer.exclude_from_weight_decay(var_names=excluded)
    return optimizer


def test_rebuilt_optimizer_keeps_weight_decay_exclusions():
    model = small_model()
    model.layers[-1].trainable = False
    optimizer = decaying("kernel")
    trainer = small_trainer("bernoulli_attention", model=model, optimizer=optimizer)
    for _ in range(2):
        trainer.prepare(*held_out())
    assert not trainer._spec.optimizers["model"]._use_weight_decay(model.trainable_variables[0])
    optimizer.learning_rate, before = 0.0, [each.numpy() for each in model.trainable_variables]
    train(trainer)
    assert all(map(np.array_equal, model.trainable_variables, before))
    assert optimizer.iterations.numpy() == trainer.step
    model.layers[-1].trainable = True
    assert_refused("is trainable now", train, trainer)


def test_fit_resumes_only_with_its_own_arguments(tmp_path):
    def fit(resume=True, end="softmax", penalty=None, size=16, delta=0.3, excluded=("bias",), epochs=1):
        x, y = images()["x_train"], images()["y_train"]
        dense = keras.layers.Dense(3, end, kernel_regularizer=penalty)
        model = keras.Sequential([keras.Input(x.shape[1:]), keras.layers.Flatten(), dense])
        given = {"optimizer": decaying(*excluded), "run_dir": tmp_path / "run", "compile": "off"}
        trainer = hookline.Trainer(model, loss=keras.losses.Huber(delta), **given)
        trainer.fit(x, np.eye(3)[y], epochs=epochs, batch_size=size, verbose=0, resume=resume)
        return lambda epochs: trainer.fit(x, np.eye(3)[y], epochs=epochs, batch_size=size, verbose=0)

    fit(resume=False)
    then = fit()
    for changed in ({"end": "sigmoid"}, {"penalty": "l2"}, {"size": 8}, {"delta": 3.0}, {"excluded": ("kernel",)}):
        assert_refused("is the run of another trainer", fit, **changed)
    then(epochs=2)
    assert_refused("a later fit, of 2 epochs after 1", fit)
    fit(epochs=2)
    then(epochs=1)
    assert_refused("a later fit, of 1 epochs after 3", fit)
    assert "batch_size: 16" in (tmp_path / "run" / "config.yaml").read_text()
    assert_refused("Expected loss=", hookline.load, tmp_path / "run", optimizer=decaying("bias"))
    assert_refused("Expected optimizer=", hookline.load, tmp_path / "run", loss=keras.losses.Huber(0.3))


@pytest.mark.full
def test_interrupt_or_time_limit_keeps_what_was_trained(capsys):
    trainer = small_trainer()
    history = train(trainer, 5, callbacks=[Killed(1, KeyboardInterrupt)], verbose=2)
    assert (history.summary["status"], history.summary["digest"]) == ("interrupted", None)
    assert trainer.step == 10
    assert "Stopped after step 10 of 25" in capsys.readouterr().out
    assert trainer.predict(held_out()[0]).shape == (40, 3)
    assert train(trainer, 1).epoch == [2]
    before = trainer.step
    assert train(trainer, 3, max_seconds=0.0).summary["status"] == "paused"
    assert trainer.step < before + 15
    trainer = small_trainer(monitor="loss/total")
    losses = train(trainer, 3, callbacks=[Killed(1, KeyboardInterrupt)], restore_best=True).history["val_loss"]
    assert losses[1] < losses[0]
    assert trainer.evaluate(*held_out())["loss"] == pytest.approx(losses[1])


@pytest.mark.parametrize("on_disk", [True, False])
def test_terminated_fit_says_how_to_resume(on_disk, tmp_path):
    options = {"run_dir": tmp_path / "run"} if on_disk else {}
    end = "" if on_disk else ", which needs run_dir=; nothing was written"
    with pytest.raises(KeyboardInterrupt, match=rf"Resume with: fit\(..., resume=True\) in Python{end}$"):
        train(small_trainer(Signal(steps=[2]), **options))


def test_callbacks_run_per_epoch_and_best_weights_are_restored():
    seen = []

    class Listener(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append((epoch, sorted(logs)))
            self.model.stop_training = epoch == 1
            shares.append(self.model.predict(held_out()[0], verbose=0).sum(axis=-1))

    shares, model = [], small_model("softmax")
    trainer = small_trainer(model=model, optimizer=keras.optimizers.SGD(1.0))
    with generators_kept():
        history = train(trainer, 5, callbacks=[Listener()], restore_best=True)
    assert trainer.evaluate(*held_out())["accuracy"] == pytest.approx(max(history.history["val_accuracy"]))
    assert seen == [(epoch, ["accuracy", "loss", "val_accuracy", "val_loss"]) for epoch in (0, 1)]
    assert len(history.epoch) == 2
    shares.append(model.predict(held_out()[0], verbose=0).sum(axis=-1))
    np.testing.assert_allclose(shares, 1.0, rtol=1e-5)
    model.compile("sgd")
    compiled, before = model.optimizer, [each.numpy() for each in model.trainable_variables]
    train(trainer, callbacks=[Stopped()])
    assert all(map(np.array_equal, model.trainable_variables, before))
    assert model.optimizer is compiled


class Stopped(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.0


def test_two_hooks_of_one_class_get_separate_names():
    fine, coarse = (hookline.hooks.Prune(final_sparsity=each) for each in (0.5, 0.9))
    makers = hook_makers([fine, {"coarse": coarse}], on_disk=False, mode=None)
    assert makers["prune"].make().given[1] == {"final_sparsity": 0.5}
    assert makers["coarse"].make().given[1] == {"final_sparsity": 0.9}


@pytest.mark.full
def test_custom_step_equals_the_step_of_fit(caplog):
    data = images()
    whole, _ = by_python("prune", epochs=1)
    trainer = small_trainer("prune")
    trainer.prepare(data["x_train"], data["y_train"], epochs=1, batch_size=16)
    batches = trainer._state.run.training

    @tf.function
    def step(x, y, scale):
        half = trainer.compute_gradients(x, y)
        half.gradients = {name: None if g is None else g * scale for name, g in half.gradients.items()}
        return trainer.apply_gradients(half)

    for number in range(5):
        batch = batches.batch(tf.constant(number, tf.int64))
        values = step(batch["inputs"], batch["targets"], tf.constant(1.0))
    assert "AutoGraph could not" not in caplog.text
    assert trainer.step == 5
    assert "loss/total" in values
    for key, variable in whole._state.variables.items():
        if key.startswith(("network/", "hook/")):
            np.testing.assert_allclose(variable.numpy(), trainer._state.variables[key].numpy(), atol=1e-6, err_msg=key)
    labels = batch["targets"]
    loss = tf.function(lambda y: trainer.compute_gradients(batch["inputs"], y).losses["total"])
    for same in (tf.cast(labels, tf.float32), labels[:, tf.newaxis], tf.one_hot(labels, 3)):
        assert float(loss(same)) == float(loss(labels))

    def renamed():
        half = trainer.compute_gradients(batch["inputs"], labels)
        half.gradients = {"kernel": None}
        return trainer.apply_gradients(half)

    with pytest.raises(Exception, match="UserError: Unknown gradient 'kernel'"):
        tf.function(renamed)()
    train(trainer)
    with pytest.raises(tf.errors.InvalidArgumentError, match="traced before the latest fit"):
        step(batch["inputs"], labels, tf.constant(1.0))


def own_step(trainer):
    return tf.function(lambda x, y: trainer.apply_gradients(trainer.compute_gradients(x, y)))


def dense(name, units=8, end=None):
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(units, end, name=name)], name="own")


VECTORS = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)


def test_custom_step_takes_soft_targets_like_keras_and_reports_held_back_steps():
    rows = np.eye(3, dtype=np.float32)[np.arange(60) % 3]
    soft = 0.6 * rows + 0.4 * np.roll(rows, 1, axis=1)
    for prepared, targets in ((soft, rows), (rows, soft)):
        model = dense("d", 3, "softmax")
        outputs = model(VECTORS)
        metrics = ["accuracy", "categorical_crossentropy"]
        trainer = hookline.Trainer(model, "sgd", "categorical_crossentropy", metrics, **SETTINGS)
        trainer.prepare(VECTORS, prepared, batch_size=60)
        step = own_step(trainer)
        values = step(VECTORS, targets)
        expected = keras.ops.mean(keras.losses.categorical_crossentropy(targets, outputs))
        hits = keras.ops.mean(keras.metrics.categorical_accuracy(targets, outputs))
        for name in ("loss/total", "metric/categorical_crossentropy"):
            assert float(values[name]) == pytest.approx(float(expected), rel=1e-5)
        assert float(values["metric/accuracy"]) == pytest.approx(float(hits))
        assert float(values["held_back"]) == 0.0
    values = step(np.full_like(VECTORS, np.nan), targets)
    assert float(values.pop("held_back")) == 1.0
    assert np.isnan([float(each) for each in values.values()]).all()
    assert trainer.step == 1


class Autoencode(Objective):
    name, trains = "autoencode", ("encoder", "decoder")

    def compute(self, forward, batch):
        outputs = forward("decoder", forward("encoder", batch["inputs"]))
        return ObjectiveOutput({"error": tf.reduce_mean(tf.square(outputs - batch["inputs"]), axis=1)})


def test_custom_step_trains_two_networks_with_equal_variable_names():
    networks = {name: dense("d") for name in Autoencode.trains}
    copies = [keras.models.clone_model(each) for each in networks.values()]
    for copy, network in zip(copies, networks.values(), strict=True):
        copy.set_weights(network.get_weights())
    optimizers = {name: keras.optimizers.SGD(0.1) for name in networks}
    objective = Autoencode()
    trainer = hookline.Trainer(networks=networks, objectives=[objective], optimizer=optimizers, **SETTINGS)
    trainer.prepare(VECTORS, VECTORS, batch_size=60)
    own_step(trainer)(VECTORS, VECTORS)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(copies[1](copies[0](VECTORS)) - VECTORS))
    variables = [variable for copy in copies for variable in copy.trainable_variables]
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        variable.assign_sub(0.1 * gradient)
    for copy, network in zip(copies, networks.values(), strict=True):
        np.testing.assert_allclose(network.get_weights()[0], copy.get_weights()[0], atol=1e-6)
    objective.updates = 2
    with pytest.raises(Exception, match=r"updates=2\. Expected updates=1, or fit"):
        own_step(trainer)(VECTORS, VECTORS)


class Follow(Autoencode):
    def begin(self, networks):
        pairs = zip(*(networks[name].variables.values() for name in self.trains), strict=True)
        return [copy.value.assign((copy.value + own.value) / 2.0).op for own, copy in pairs]


def test_objective_moves_a_network_with_nothing_to_train():
    rows = keras.Input((8,), dtype="int32")  # a network with integer inputs, beside others with float inputs
    networks = {"rows": keras.Model(rows, keras.layers.Identity()(rows)), **{n: dense("d") for n in Follow.trains}}
    networks["decoder"].trainable = False
    own, copy = (networks[name].get_weights()[0] for name in Follow.trains)
    trainer = hookline.Trainer(networks=networks, objectives=[Follow()], optimizer="sgd", **SETTINGS)
    trainer.fit(VECTORS, VECTORS, batch_size=60, verbose=0)
    np.testing.assert_array_equal(networks["decoder"].get_weights()[0], (copy + own) / 2.0)
    assert not np.array_equal(networks["encoder"].get_weights()[0], own)
    np.testing.assert_allclose(trainer.predict(VECTORS, network="encoder"), networks["encoder"](VECTORS), rtol=1e-5)


@pytest.mark.full
def test_patience_restarts_with_each_fit():
    loss, optimizer = {"monitor": "loss/total", "monitor_mode": "min"}, keras.optimizers.SGD(1e-20)
    hooks = hookline.hooks.EarlyStopping(patience=2), hookline.hooks.ReduceOnPlateau(factor=0.5, patience=1, least=0.5)
    trainer = small_trainer(*hooks, optimizer=optimizer, **loss)
    assert [len(train(trainer, 6).epoch) for _ in range(2)] == [3, 2]
    assert len(train(trainer, 6, validation_data=(9 * held_out()[0], held_out()[1])).epoch) == 3  # higher losses
    assert float(optimizer.learning_rate) / 1e-20 == pytest.approx(0.5)  # the lowest factor, over all fits


@pytest.mark.full
def test_freeze_epochs_count_across_fits():
    for options, trains in (({"begin_epoch": 1}, [False]), ({"end_epoch": 3}, [False, True])):
        trainer = small_trainer({"freeze_layers": {"layers": "outputs", **options}}, model=(model := small_model()))
        train(trainer, 2)
        for moves in trains:
            before = model.get_layer("outputs").get_weights()[0]
            train(trainer, 1)
            assert np.array_equal(before, model.get_layer("outputs").get_weights()[0]) is not moves


@pytest.mark.full
def test_worse_second_fit_restores_its_own_best_weights():
    trainer = small_trainer(optimizer=keras.optimizers.SGD(0.5), monitor="loss/total", monitor_mode="min")
    train(trainer, 2, restore_best=True)
    losses = train(trainer, 3, restore_best=True, class_weight={0: 9.0, 1: 0.0, 2: 0.0}).history["val_loss"]
    assert min(losses) < losses[-1]
    assert trainer.evaluate(*held_out())["loss"] == pytest.approx(min(losses), rel=1e-5)


@pytest.mark.full
def test_trained_trainer_does_not_resume_without_a_checkpoint(tmp_path):
    trainer = small_trainer(run_dir=tmp_path / "run")
    with pytest.raises(RuntimeError, match="killed"):
        train(trainer, 3, callbacks=[Killed(0, RuntimeError)])
    assert_refused("no checkpoint yet, and this trainer has made 5 steps", train, trainer, 3, resume=True)
    again = train(small_trainer(run_dir=tmp_path / "run"), 1, resume=True)
    assert (again.summary["resumed_at"], read_history(tmp_path / "run")["train"]["step"]) == ([0], [5])


@pytest.mark.full
def test_several_networks_train_with_objectives(tmp_path):
    from hookline.recipes.classification import Classification

    class First(Classification):
        trains = ("first",)

        def compute(self, forward, batch):
            return super().compute(lambda _, inputs: forward(self.trains[0], inputs), batch)

    class Second(First):
        name, trains = "second", ("other",)

    networks = {"first": small_model(), "other": small_model(), "fixed": small_model()}
    networks["fixed"].trainable = False
    objectives = [First(classes=3), Second(classes=3)]
    trainer = hookline.Trainer(networks=networks, objectives=objectives, compile="off", run_dir=tmp_path / "run")
    history = train(trainer)
    assert "val_second/loss" in history.history
    assert trainer.predict(held_out()[0], network="other").shape == (40, 3)
    assert trainer.models.keys() == networks.keys()
    assert_refused("several networks", getattr, trainer, "model")
    assert_refused("several networks. Expected networks=", hookline.load, tmp_path / "run")
    weighted = {"networks": networks, "objectives": objectives, "loss_weights": {"second": 0.0}}
    assert_refused("loss_weights received without loss", hookline.Trainer, **weighted)


def alive():
    """Count what a fit builds: graphs, variables, models, optimizers, and gradients that TensorFlow has registered."""
    for _ in range(3):
        gc.collect()
    objects = gc.get_objects()
    kinds = (FuncGraph, tf.Variable, keras.Model, keras.optimizers.Optimizer)
    return [*(sum(isinstance(each, kind) for each in objects) for kind in kinds), len(ops.gradient_registry._registry)]


@pytest.mark.full
def test_trainers_and_fits_leave_nothing_behind():
    layers = keras.layers

    def new():
        keras.utils.clear_session()
        dense = [each for _ in range(3) for each in (layers.Activation("hard_tanh"), layers.Dense(3, use_bias=False))]
        model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), *dense[1:]])
        return small_trainer("bnn_rounding", "ema", model=model)

    kept = new()
    for make, times in ((lambda: kept, 3), (new, 2)):
        found = []
        for _ in range(times):
            trainer = make()
            train(trainer)
            trainer.evaluate(*held_out())
            trainer.predict(held_out()[0])
            assert trainer.model.count_params()
            del trainer
            found.append(alive())
        assert found[-2] == found[-1]
