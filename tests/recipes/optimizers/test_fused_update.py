"""Fused optimizers compute what those of Keras compute, with one kernel per variable, and can replace them."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.recipes.optimizers.fused_update import LARGEST_DECAY_RATE, SGD, Adam, AdamW, RMSprop
from hookline.trainer.rate_schedules import ScaledRate, Warmup

PAIRS: dict[str, tuple[type, type]] = {
    name: (getattr(keras.optimizers, name), fused)
    for name, fused in {"SGD": SGD, "Adam": Adam, "AdamW": AdamW, "RMSprop": RMSprop}.items()
}
Values = Sequence[np.ndarray]


def built(optimizer: keras.optimizers.Optimizer, values: Values, dtype: str = "float32") -> list[keras.Variable]:
    """Build an optimizer on new variables "variable_0", ..., and return them."""
    variables = [keras.Variable(value, dtype=dtype, name=f"variable_{place}") for place, value in enumerate(values)]
    optimizer.build(variables)
    return variables


def state_of(optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]) -> list[np.ndarray]:
    """Return copies of the variables and of the optimizer's state."""
    return [np.array(each.value) for each in (*variables, *optimizer.variables)]


def set_state(optimizer: Any, variables: Sequence[keras.Variable], state: Sequence[np.ndarray]) -> None:
    """Restore what `state_of` returned."""
    for each, value in zip((*variables, *optimizer.variables), state, strict=True):
        each.assign(value)


def operations(optimizer: Any, shapes: Sequence[tuple[int, ...]], dtype: str = "float32") -> list[tf.Operation]:
    """Return the ops of a traced apply, without the gradients' placeholders."""
    variables = built(optimizer, [np.zeros(shape) for shape in shapes], dtype)
    specs = [tf.TensorSpec(shape, dtype) for shape in shapes]
    apply = tf.function(lambda *gradients: optimizer.apply(list(gradients), variables), autograph=False)
    graph = apply.get_concrete_function(*specs).graph
    return [each for each in graph.get_operations() if each.type != "Placeholder"]


ROOM = 1e-6  # for the order of additions, as a share of the largest change
CLIPPING = [{}, {"clipnorm": 0.5}, {"clipvalue": 0.1}, {"global_clipnorm": 0.5}]
BESIDE = [
    {},
    {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 2},
    {"loss_scale_factor": 8.0},
    {"gradient_accumulation_steps": 2},
]


def own_settings(name: str) -> dict[str, st.SearchStrategy]:
    if name == "SGD":
        return {"momentum": st.sampled_from([0.0, 0.5, 0.9, 0.99]), "nesterov": st.booleans()}
    epsilon = st.sampled_from([1e-8, 1e-7, 1e-3])
    if name == "RMSprop":
        momentum = st.sampled_from([0.0, 0.5, 0.9])
        return {"rho": st.sampled_from([0.0, 0.9, 0.999]), "momentum": momentum, "epsilon": epsilon}
    return {
        "beta_1": st.sampled_from([0.0, 0.5, 0.9, 0.99]),
        "beta_2": st.sampled_from([0.5, 0.9, 0.99, LARGEST_DECAY_RATE]),
        "epsilon": epsilon,
        "amsgrad": st.sampled_from([False, False, True]),
    }


@st.composite
def cases(draw: st.DrawFn, name: str) -> tuple[dict[str, Any], list[list[np.ndarray]], list[np.ndarray]]:
    """Draw settings, gradients for each step, and initial values."""
    options = {key: draw(each) for key, each in own_settings(name).items()}
    options |= draw(st.sampled_from(CLIPPING)) | draw(st.sampled_from(BESIDE))
    options["weight_decay"] = draw(st.sampled_from([0.0, 0.01, 0.3] + ([None] if name != "AdamW" else [])))
    options["learning_rate"] = draw(st.sampled_from([1e-4, 0.01, 0.3, keras.optimizers.schedules.CosineDecay(0.1, 4)]))
    shapes = draw(st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=2))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([1e-4, 1.0, 100.0]))

    def arrays() -> list[np.ndarray]:
        return [(generator.normal(size=shape) * (generator.random(shape) < 0.9)).astype(np.float32) for shape in shapes]

    return options, [[np.float32(scale) * each for each in arrays()] for _ in range(draw(st.integers(1, 4)))], arrays()


def lost_in(old: np.ndarray, new: np.ndarray, decay_rate: float) -> np.ndarray:
    """Return how far an average computed by a kernel may be from b old + (1 - b) g, which Keras computes.

    It is old + (g - old) (1 - b). Two roundings are by 2^-24 of the larger value, though the sum may be far smaller;
    and 1 - b is off by up to 2^-25, because it is computed from b in float32.
    """
    return 2.0**-23 * np.maximum(np.abs(old), np.abs(new)) + 2.0**-25 / (1.0 - decay_rate) * np.abs(new - old)


def lost_in_step(optimizer: Any, rate: float, before: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Return how far the averages of a kernel may move the results of a step from Keras's, by the variable's id."""
    lost: dict[int, np.ndarray] = {}
    if isinstance(optimizer, keras.optimizers.SGD) or not optimizer._momentums:
        return lost
    for index, slots in enumerate(zip(optimizer._momentums, optimizer._velocities, strict=True)):
        (m, new_m), (v, new_v) = ((np.float64(before[id(each)]), np.float64(each)) for each in slots)
        momentum, velocity = map(id, slots)
        if isinstance(optimizer, keras.optimizers.RMSprop):  # the step is rate * g / sqrt(v + epsilon)
            lost[velocity] = lost_in(v, new_v, optimizer.rho)
            least = np.maximum(new_v - lost[velocity], 0.0)  # the kernel's v is never below 0
            shares = np.sqrt((new_v + optimizer.epsilon) / (least + optimizer.epsilon)) - 1.0
            lost[momentum] = step = shares * np.abs(new_m - optimizer.momentum * m)
        else:  # rate * m / (sqrt(v) + epsilon), corrected by both decay rates
            lost[momentum], lost[velocity] = lost_in(m, new_m, optimizer.beta_1), lost_in(v, new_v, optimizer.beta_2)
            least = np.maximum(new_v - lost[velocity], 0.0)
            t = max(1.0, float(optimizer.iterations))
            size = rate * np.sqrt(1 - optimizer.beta_2**t) / (1 - optimizer.beta_1**t)
            largest = (np.abs(new_m) + lost[momentum]) / (np.sqrt(least) + optimizer.epsilon)
            step = size * (largest - np.abs(new_m) / (np.sqrt(new_v) + optimizer.epsilon))
        averages = optimizer._model_variables_moving_average if optimizer.use_ema else []
        for variable in (optimizer._trainable_variables[index], *averages[index : index + 1]):
            lost[id(variable)] = step
    return lost


def check_step(theirs: Any, their_variables: list, ours: Any, our_variables: list, before: Values, rate: float) -> None:
    """Compare all that a step has written; `before` is Keras's state before the step."""
    held = (*their_variables, *theirs.variables)
    lost = lost_in_step(theirs, rate, dict(zip(map(id, held), before, strict=True)))
    for each, first, mine in zip(held, before, state_of(ours, our_variables), strict=True):
        other = np.array(each.value, np.float64)
        moved = np.abs(other - first).max(initial=0.0)
        allowed = 5e-7 * np.abs(other) + ROOM * moved + lost.get(id(each), 0.0) + 1e-30
        assert (np.abs(mine - other) <= allowed).all(), (each.path, mine, other)


@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop"])  # AdamW is Adam with weight decay
def test_each_step_matches_keras(name: str) -> None:
    @settings(max_examples=8)
    @given(cases(name))
    def check(case) -> None:
        options, gradients, values = case
        theirs, ours = (kind(**options) for kind in PAIRS[name])
        their_variables, our_variables = built(theirs, values), built(ours, values)
        for step in gradients:
            before, rate = state_of(theirs, their_variables), float(theirs.learning_rate)
            set_state(ours, our_variables, before)
            for optimizer, variables in ((theirs, their_variables), (ours, our_variables)):
                optimizer.apply([tf.constant(each) for each in step], variables)
            check_step(theirs, their_variables, ours, our_variables, before, rate)

    check()


NET = [(784, 256), (256,), (256, 256), (256,), (256, 10), (10,)]
KERNELS = {
    "ResourceApplyGradientDescent": ("SGD", {}),
    "ResourceApplyKerasMomentum": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "ResourceApplyAdam": ("Adam", {}),
    "ResourceApplyRMSProp": ("RMSprop", {"momentum": 0.9}),
}
WITHOUT_KERNEL = [
    ("Adam", {"amsgrad": True}, "float32"),
    ("Adam", {"beta_2": 0.9999}, "float32"),
    ("AdamW", {"beta_1": 0.9999, "weight_decay": 0.1}, "float32"),
    ("RMSprop", {}, "float32"),
    ("RMSprop", {"momentum": 0.9, "centered": True}, "float32"),
    ("SGD", {"momentum": 0.9}, "float16"),
]


def applied(optimizer: Any, gradients: list[Any], values: list[np.ndarray], dtype: str = "float32") -> list[np.ndarray]:
    variables = built(optimizer, values, dtype)
    for _ in range(3):
        optimizer.apply(gradients, variables)
    return state_of(optimizer, variables)


def assert_same_bits(found: list[list[np.ndarray]]) -> None:
    for theirs, ours in zip(*found, strict=True):
        assert theirs.dtype == ours.dtype
        assert theirs.tobytes() == ours.tobytes()


@pytest.mark.parametrize(("name", "options", "dtype"), WITHOUT_KERNEL)
def test_update_without_kernel_matches_keras_bit_for_bit(name: str, options: dict, dtype: str) -> None:
    value, gradient = np.random.default_rng(2).normal(size=(2, 5, 3))
    found = [applied(kind(0.1, **options), [tf.constant(gradient, dtype)], [value], dtype) for kind in PAIRS[name]]
    assert_same_bits(found)
    assert not any(each.type.startswith("ResourceApply") for each in operations(PAIRS[name][1](**options), NET, dtype))


def test_slices_are_updated_by_keras_and_the_rest_by_the_kernel() -> None:
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2]))
    gradients, values = [slices, tf.constant([3.0])], [np.ones((3, 2)), np.ones(1)]
    found = [applied(kind(0.1), gradients, values) for kind in PAIRS["Adam"]]
    assert_same_bits([[state[0]] for state in found])
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-5)
    assert found[1][1] < 1.0


def test_variables_excluded_from_weight_decay_do_not_decay() -> None:
    found = []
    for kind in PAIRS["AdamW"]:
        optimizer = kind(0.1, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["variable_1"])
        found.append(applied(optimizer, [tf.zeros(2), tf.zeros(2)], [np.ones(2), np.ones(2)]))
    assert_same_bits(found)
    assert (found[1][0] < 1.0).all()
    assert (found[1][1] == 1.0).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_apply_is_one_kernel_per_variable_and_few_other_ops(kernel: str) -> None:
    name, options = KERNELS[kernel]
    theirs, ours = (operations(kind(**options), NET) for kind in PAIRS[name])
    assert [each.type for each in ours].count(kernel) == len(NET)
    assert len(ours) < min(len(theirs) / 2, len(NET) + 17)
    assert len(operations(PAIRS[name][1](**options), NET * 2)) == len(ours) + len(NET)


FAST = {"SGD": {"momentum": 0.9}, "Adam": {}, "AdamW": {"weight_decay": 0.1}, "RMSprop": {"momentum": 0.9}}


@pytest.mark.parametrize("name", PAIRS)
def test_optimizer_round_trips_through_its_config(name: str) -> None:
    theirs, ours = PAIRS[name]
    rate, options = ScaledRate(Warmup(0.3, 4)), {**FAST[name], "global_clipnorm": 2.0}
    optimizer = ours(rate, **options)
    assert isinstance(optimizer, theirs)
    loaded = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert type(loaded) is ours
    assert loaded.get_config() == theirs(rate, name=loaded.name, **options).get_config()
