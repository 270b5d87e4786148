from __future__ import annotations

import math

import keras
import pytest
import tensorflow as tf

from hooks.monitors.nan_guard import NanGuard, shorten
from trainer.errors import NonFiniteError, UserError
from trainer.hook import GraphHook, HostHook
from trainer.network import Network
from trainer.step.context import StepContext

BAD = [math.nan, math.inf, -math.inf]


def vetoes(loss=1.0, gradient=1.0, state=1.0, optimizer=None, jit_compile=False, dtype=tf.float32):
    """Return the names that the guard holds against a traced step with these values in it."""
    names: list[str] = []
    network = Network(
        "model", keras.Sequential([keras.Input((1,)), keras.layers.Identity()]), optimizer or keras.optimizers.SGD()
    )

    def step(values: tf.Tensor) -> tf.Tensor:
        values = tf.cast(values, dtype)
        context = StepContext(tf.constant(0, tf.int64), 0, True, "objective", network, {})
        context.losses = {"data": values[0], "total": values[0] + tf.cast(1.0, dtype)}
        context.gradients = {
            "dense/kernel": tf.stack([tf.zeros([3], dtype), tf.ones([3], dtype) * values[1]]),
            "dense/bias": tf.zeros([3], dtype),
            "unused/kernel": None,
        }
        context.new_state = {"norm/moving_mean": tf.reshape(values[2], [1]), "seed": tf.constant([1, 2], tf.uint32)}
        found = NanGuard().veto(context)
        names[:] = found
        assert all(value.dtype == tf.bool and value.shape.rank == 0 for value in found.values())
        return tf.stack(list(found.values()))

    traced = tf.function(step, autograph=False, jit_compile=jit_compile)
    flags = traced(tf.constant([loss, gradient, state], tf.float32)).numpy()
    return {name for name, flag in zip(names, flags, strict=True) if flag}


def test_good_values_are_let_through():
    assert vetoes() == set()


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_each_kind_of_value_is_named(bad, jit_compile):
    assert vetoes(loss=bad, jit_compile=jit_compile) == {"loss/data", "loss/total"}
    assert vetoes(gradient=bad, jit_compile=jit_compile) == {"gradient/dense/kernel"}
    assert vetoes(state=bad, jit_compile=jit_compile) == {"state/norm/moving_mean"}


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_precision_is_checked_too(dtype):
    assert vetoes(dtype=dtype) == set()
    assert vetoes(gradient=math.nan, dtype=dtype) == {"gradient/dense/kernel"}


def test_large_finite_values_are_let_through():
    assert vetoes(loss=3e38, gradient=-3e38, state=1e-45) == set()


def test_opposite_infinities_do_not_cancel():
    assert vetoes(loss=math.inf, gradient=-math.inf) == {"loss/data", "loss/total", "gradient/dense/kernel"}


def test_rows_of_a_sparse_gradient_are_checked():
    network = Network("model", keras.Sequential([keras.Input((1,)), keras.layers.Identity()]), keras.optimizers.SGD())

    def step(value: tf.Tensor) -> tf.Tensor:
        context = StepContext(tf.constant(0, tf.int64), 0, True, "objective", network, {})
        slices = tf.IndexedSlices(tf.reshape(value, [1, 1]), tf.constant([2]), tf.constant([5, 1]))
        context.gradients = {"embedding": slices}
        return NanGuard().veto(context)["gradient/embedding"]

    traced = tf.function(step, autograph=False)
    assert bool(traced(tf.constant(math.nan)))
    assert not bool(traced(tf.constant(1.0)))


def test_overflow_under_loss_scaling_is_left_to_the_optimizer():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    assert vetoes(gradient=math.inf, optimizer=optimizer) == set()
    assert vetoes(loss=math.nan, optimizer=optimizer) == {"loss/data", "loss/total"}
    assert vetoes(state=math.nan, optimizer=optimizer) == {"state/norm/moving_mean"}


def test_the_error_is_one_line_with_step_names_and_remedy(make_run):
    run = make_run(step=41)
    run.vetoes = ["loss/data", "loss/total", "gradient/dense/kernel", "state/norm/moving_mean"]
    with pytest.raises(NonFiniteError) as caught:
        NanGuard().on_veto(run)
    assert str(caught.value) == (
        "NaN or infinity at step 41: losses data, total; gradients of dense/kernel; new state of norm/moving_mean. "
        "No variable was changed by this step. Lower the learning rate, clip the gradients, or check the data for NaN."
    )


def test_weights_that_were_nan_before_the_step_are_named_in_place_of_the_learning_rate(make_run):
    run = make_run(step=0)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, bias_initializer=lambda *_, **__: [math.nan])])
    run.networks["model"] = Network("model", model, keras.optimizers.SGD())
    run.vetoes = ["loss/total"]
    with pytest.raises(NonFiniteError, match=r"before it: .*bias\. Check their initializers") as caught:
        NanGuard().on_veto(run)
    assert "learning rate" not in str(caught.value)


def test_many_names_become_a_count(make_run):
    run = make_run(step=3)
    run.vetoes = [f"gradient/layer_{index}/kernel" for index in range(8)]
    with pytest.raises(
        NonFiniteError, match=r"gradients of layer_0/kernel, .*, layer_4/kernel and 3 more\. No variable"
    ):
        NanGuard().on_veto(run)


def test_up_to_five_names_are_all_shown():
    assert shorten(list("abcde")) == "a, b, c, d, e"
    assert shorten(list("abcdef")) == "a, b, c, d, e and 1 more"


def test_no_veto_and_vetoes_of_other_hooks_raise_nothing(make_run):
    run = make_run()
    NanGuard().on_veto(run)
    run.vetoes = ["mask/empty"]
    NanGuard().on_veto(run)


def test_the_guard_is_both_kinds_of_hook_without_variables_and_acts_first():
    hook = NanGuard(network="generator")
    assert isinstance(hook, GraphHook)
    assert isinstance(hook, HostHook)
    assert hook.network == "generator"
    assert hook.state() == {}
    assert hook.state_dict() == {"skipped": []}
    assert hook.priority == 0


@pytest.mark.parametrize(
    ("network", "vetoes", "message"),
    [
        ("", ["gradient/state/kernel"], "at step 3: gradients of state/kernel. No variable was changed by this step."),
        (
            "generator",  # one objective changes several networks
            ["generator/loss/total", "generator/gradient/loss/kernel"],
            "at step 3: network 'generator': losses total; gradients of loss/kernel. No variable was changed by this",
        ),
        (
            "",  # several objectives, and the guard is on one network
            ["gan/loss/total", "mask/empty"],
            "at step 3: objective 'gan': losses total. Nothing of objective 'gan' was written, nor of those after it",
        ),
        (
            "generator",
            ["first/critic/state/norm", "first/critic/loss/total", "last/generator/gradient/dense/bias"],
            "at step 3: objective 'first', network 'critic': losses total; new state of norm; objective 'last', "
            "network 'generator': gradients of dense/bias. Nothing of objective 'first' was written, nor of those",
        ),
    ],
)
def test_error_names_objective_and_network_where_there_are_several(make_run, network, vetoes, message):
    run = make_run(step=3)
    run.vetoes = vetoes
    guard = NanGuard(network=network)
    guard.name = f"nan_guard@{network}" if network else "nan_guard"
    with pytest.raises(NonFiniteError) as caught:
        guard.on_veto(run)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "skp"}, "^Unknown policy 'skp'. Did you mean 'skip'?"),
        ({"policy": None}, "^Unknown policy 'None'. Expected one of: rollback, skip, stop"),
        ({"at_most": 0}, "^Invalid at_most: 0. Expected a whole number of at least 1"),
        ({"rate_factor": 0.0}, "^Invalid rate_factor: 0.0. Expected a number above 0"),
        ({"rate_factor": 1.5}, r"^rate_factor=1.5 received. Expected a number in \(0, 1\]"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: dict, message: str):
    with pytest.raises(UserError, match=message):
        NanGuard(**options)


def test_a_rate_may_stay_as_it_is():
    assert NanGuard(rate_factor=1).summary() == {"skipped": []}
