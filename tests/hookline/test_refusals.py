"""Mistakes are reported in one line, by a ValueError."""

from functools import cache, partial

import keras
import numpy as np
import pytest
import tensorflow as tf

import hookline
from hookline.hooks import load
from hookline.spec import rebuilt_part
from hookline.trainer.hook import Declaration
from tests.support.door import images, small_model, small_trainer
from tests.support.toy import CountingHook

X, Y = images()["x_train"], images()["y_train"]


shared = cache(small_trainer)  # a refused call leaves it unchanged


def fit(*arguments, trainer=None, **more):
    given = arguments or (X, Y)
    return (trainer or shared()).fit(*given, **{"batch_size": 16, "verbose": 0, **more})


def endless():
    return tf.data.Dataset.from_tensors((X[:8], Y[:8])).repeat()


def sequences():
    """Return a dataset of sequences of 1 to 4 entries."""
    rows = ((np.ones(length), 0) for length in range(1, 5))
    signature = (tf.TensorSpec([None]), tf.TensorSpec([], tf.int64))
    return tf.data.Dataset.from_generator(lambda: rows, output_signature=signature)


def twice(hook):
    fit(trainer=small_trainer(*({name: load(hook)()} for name in "ab")))


ROUNDING = ("bnn_rounding", "bop", "incremental_quantization", "weight_clustering")
WEIGHTED, squared = "mean_with_sample_weight", keras.losses.MeanSquaredError
OWN_LOSS = {"module": "builtins", "class_name": "function", "registered_name": "own"}
MISTAKES = {
    "no loss": (lambda: hookline.Trainer(small_model()), "No loss"),
    "no model": (lambda: hookline.Trainer(loss="mse"), "No model"),
    "unbuilt": (lambda: hookline.Trainer(keras.Sequential([keras.layers.Dense(2)]), loss="mse"), "not built"),
    "loss": (lambda: small_trainer(loss="categorical_crosentropy"), "Did you mean 'categorical_crossentropy'"),
    "sum": (lambda: small_trainer(loss=squared(reduction="sum")), "reduction"),
    "mean by weights": (lambda: small_trainer(loss=squared(reduction=WEIGHTED)), f"reduction='{WEIGHTED}'"),
    "called loss": (lambda: small_trainer(loss=type("Own", (squared,), {"__call__": max})()), "Own overrides __call"),
    "sigmoid": (lambda: fit(trainer=small_trainer(model=small_model("sigmoid"))), "final sigmoid .* as logits"),
    "two targets": (lambda: fit(X, [Y, Y]), "y has 2 targets, and there is one loss"),
    "no metric": (lambda: small_trainer(metrics=5), "metrics=5"),
    "optimizer": (lambda: small_trainer(optimizer="adamm"), "Did you mean 'adam"),
    "metric": (lambda: fit(trainer=small_trainer(metrics=["acuracy"])), "Did you mean 'accuracy'"),
    "hook": (lambda: small_trainer("prunee"), "Did you mean 'prune'"),
    "hook option": (lambda: fit(trainer=small_trainer({"prune": {"sparsity": 0.5}})), "sparsity"),
    "hook twice": (lambda: small_trainer("prune", hookline.hooks.Prune()), "two of the name 'prune'"),
    "no hook": (lambda: small_trainer(3), "hooks has an entry of type int"),
    "writes": (lambda: small_trainer("tensorboard"), "run_dir"),
    "setting": (lambda: small_trainer(acumulation_steps=2), "Did you mean 'accumulation_steps'"),
    "epochs": (lambda: fit(epochs=0), "epochs=0"),
    "batch size": (lambda: fit(batch_size=0), "batch_size=0"),
    "lengths": (lambda: fit(X, Y[:5]), "80 examples, and y has 5"),
    "NaN": (lambda: fit(np.full_like(X, np.nan), Y), "NaN"),
    "labels": (lambda: fit(X, Y + 1), "outside 0..2"),
    "no targets": (lambda: fit(X), "No targets"),
    "texts": (lambda: fit(X, np.array(["a", "b"] * 40)), "return_inverse"),
    "texts as inputs": (lambda: fit(X.astype("S"), Y), "StringLookup, before fit"),
    "single": (lambda: fit(tf.data.Dataset.from_tensor_slices((X, Y))), "dataset.batch"),
    "generator": (lambda: fit((x for x in X), Y), "generator"),
    "padded by batch": (lambda: fit(sequences().padded_batch(2)), r"shape \[2\] in one batch and \[4\] in another"),
    "uneven lists": (lambda: fit([[1, 2], [1, 2, 3]], Y[:2]), "rows of 2 to 3 entries. Expected .*pad_sequences"),
    "ragged": (lambda: fit(tf.ragged.constant([[1], [1, 2]]), Y[:2]), r"a RaggedTensor. Expected .*x.to_tensor\("),
    "ragged batches": (lambda: fit(sequences().ragged_batch(2)), "x holds a RaggedTensor"),
    "sparse": (lambda: fit(tf.sparse.from_dense(X), Y), r"SparseTensor. Expected .* tf.sparse.to_dense"),
    "objects": (lambda: fit(np.array([None] * 80), Y), "dtype object. Expected .*PyDataset.$"),
    "endless": (lambda: fit(endless()), "is an infinite dataset"),
    "one-hot": (lambda: fit(X, np.eye(3)[Y]), "loss=categorical_crossentropy for one-hot rows"),
    "half": (lambda: fit(X, Y + 0.5), "not whole numbers"),
    "NaN in y": (lambda: fit(X, np.full(80, np.nan)), "y: 80 values are NaN"),
    "weights of outputs": (lambda: fit(sample_weight={"a": np.ones(80)}), "one weight for each example"),
    "weights of 0": (lambda: fit(sample_weight=np.zeros(80)), "sample_weight: all weights are 0"),
    "no weight": (lambda: fit(sample_weight=np.arange(80) > 59, validation_split=0.25), "the split train are 0"),
    "frozen": (lambda: fit(trainer=small_trainer(model=frozen_model())), "no trainable variable"),
    "early stopping": (lambda: fit(trainer=small_trainer("early_stopping")), "validation data"),
    "plateau": (lambda: fit(trainer=small_trainer(hookline.hooks.ReduceOnPlateau())), "validation data"),
    "validation shape": (lambda: fit(validation_data=(X[:, :4], Y)), r"validation_data has the shape \[80, 4, 8, 1\]"),
    "hooks": (lambda: hookline.Trainer(small_model(), loss="mse", hooks=3), "entry of type int"),
    "beside": (lambda: fit(endless().take(2), Y), "y received beside"),
    "metric of rows": (lambda: small_trainer(metrics=["AUC"]).fit(X, Y), "auc needs one-hot targets"),
    "validation": (lambda: fit(validation_data=X), "validation_data is of type ndarray"),
    "both": (lambda: fit(validation_data=(X, Y), validation_split=0.1), "Expected one"),
    "shape": (lambda: fit(X[:, :4], Y), r"Expected \[n, 8, 8, 1\]"),
    "resume": (lambda: fit(resume=True), "run directory"),
    "best": (lambda: fit(restore_best=True), "validation data"),
    "no best": (
        lambda: fit(trainer=small_trainer({"checkpoint": None}, run_dir="a"), restore_best=True),
        "needs the hook",
    ),
    "early": (lambda: fit(callbacks=[keras.callbacks.EarlyStopping()]), "hookline.hooks.EarlyStopping"),
    "rate": (lambda: fit(callbacks=[keras.callbacks.LearningRateScheduler(float)]), "schedules"),
    "saves": (lambda: fit(callbacks=[keras.callbacks.ModelCheckpoint("a.keras")]), "run_dir"),
    "batches": (
        lambda: fit(callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)]),
        "on_train_batch_end",
    ),
    "callback": (lambda: fit(callbacks=[hookline.hooks.Advisor()]), "callbacks has a Advisor"),
    "before fit": (lambda: small_trainer().predict(X), "fit()"),
    "load": (lambda: hookline.load("nowhere"), "run_dir=nowhere"),
    "no batch": (lambda: trained().predict(X, batch_size=0), "batch_size=0"),
    "seconds": (lambda: fit(max_seconds="5"), "max_seconds='5'"),
    "share": (lambda: fit(validation_split="0.1"), "validation_split='0.1'"),
    "verbose": (lambda: fit(verbose=[1]), r"verbose=\[1\]"),
    "text as a setting": (lambda: small_trainer(accumulation_steps="2"), "Expected a whole number"),
    "number as options": (lambda: small_trainer({"prune": 0.5}), "dict of options"),
    "number as run_dir": (lambda: small_trainer(run_dir=5), "run_dir=5"),
    "no path": (lambda: trained().export(None), "path=None"),
    "load nothing": (lambda: hookline.load(None), "run_dir=None"),
    "list of overrides": (lambda: hookline.run(["recipe=bnn"]), "one by one"),
    "pairs": (lambda: fit(list(zip(X, Y, strict=True))), "list of tuples"),
    "float16": (lambda: fit(trainer=small_trainer(model=half_model())), "'head' computes in float16"),
    "own step": (lambda: fit(trainer=small_trainer(model=with_own("train_step"))), "overrides train_step"),
    "own loss": (lambda: fit(trainer=small_trainer(model=with_own("compute_loss"))), "overrides compute_loss"),
    "flat loss": (
        lambda: fit(trainer=small_trainer(loss=lambda targets, outputs: tf.reshape(outputs, [-1]))),
        r"loss '<lambda>' has the shape \(48,\) for 16 examples. Expected \[batch, ...\] or a scalar",
    ),
    "part of a run": (lambda: rebuilt_part({**OWN_LOSS, "config": "own"}, "loss"), "Expected loss="),
    "unsaved state": (lambda: fit(trainer=small_trainer({"own": Undeclared()})), "'own' writes a variable .* `state`"),
    "built optimizer": (lambda: small_trainer(optimizer=built_optimizer()), "Expected a new one"),
    "shared optimizer": (lambda: in_turn(keras.optimizers.Adam()), "Expected a new one"),
    "two int8": (lambda: twice("quantization_aware_training"), "Two hooks round the activations of 'plain_cnn'"),
    **{f"two {each}": (partial(twice, each), "Two hooks round '.*kernel': a and b") for each in ROUNDING},
}


def half_model():
    inputs = keras.Input(X.shape[1:])
    head = keras.layers.Dense(3, dtype="mixed_float16", name="head")
    return keras.Model(inputs, head(keras.layers.Flatten()(inputs)))


@cache
def trained():
    trainer = small_trainer()
    fit(trainer=trainer)
    return trainer


def with_own(name):
    inputs = keras.Input(X.shape[1:])
    outputs = keras.layers.Dense(3)(keras.layers.Flatten()(inputs))
    return type("Own", (keras.Model,), {name: lambda self, *given: None})(inputs, outputs)


def frozen_model():
    model = small_model()
    model.trainable = False
    return model


class Undeclared(CountingHook):
    def declare(self):
        return Declaration()


def built_optimizer():
    optimizer = keras.optimizers.Adam()
    optimizer.build(small_model().trainable_variables)
    return optimizer


def in_turn(optimizer):
    for each in [small_trainer(optimizer=optimizer) for _ in range(2)]:
        each.prepare(X, Y)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_in_one_line(mistake):
    run, expected = MISTAKES[mistake]
    with pytest.raises(ValueError, match=expected) as refused:
        run()
    assert isinstance(refused.value, hookline.UserError)
    assert "\n" not in str(refused.value)


def test_hook_classes_are_found_by_name():
    assert hookline.hooks.Prune.__module__ == "hookline.hooks.prune"
    assert hookline.hooks.BnnRounding(clip=0.5).given == ((), {"clip": 0.5})
    with pytest.raises(AttributeError, match="Did you mean 'Prune'"):
        _ = hookline.hooks.Prunee
