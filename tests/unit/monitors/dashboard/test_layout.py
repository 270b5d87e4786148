"""The layout of the custom scalars: every name in one chart or more, and no chart without a name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.util import tensor_util

from hooks.monitors.dashboard.layout import charts, layout_summary

BNN = [
    "loss/total",
    "loss/cross_entropy",
    "metric/accuracy",
    "bnn/flip_ratio",
    "bnn/flip_ratio/dense_2",
    "bnn/starved_ratio",
    "grad_norm/before",
    "grad_norm/after",
    "grad_norm/after/clip_gradients",
    "opt/learning_rate",
    "time/step_ms",
    "time/hooks_ms/tensorboard",
    "time/hooks_ms/progress",
    "time/evaluation_ms",
    "time/save_ms",
]
GAN = [
    "discriminator/loss/total",
    "discriminator/loss/real",
    "discriminator/loss/fake",
    "generator/loss/total",
    "generator/loss/generator",
    "generator/ema/decay",
    "generator/grad_norm/before",
    "frozen_mask/share",
    "local_generators/loss/total",
    "local_generators/generators/ema/decay",
    "local_generators/generators/ema/distance",
    "local_generators/bnn/flip_ratio",
    "local_generators/bnn/starved_ratio",
    "local_generators/my_hook/share",
    "generators/my_hook/share",
]
HOOKS, NETWORKS = {"frozen_mask": {}, "ema": {}, "my_hook": {}}, ("generators", "discriminator")
WORDS = ["loss", "metric", "total", "bnn", "time", "hooks_ms", "save_ms", "grad_norm", "a", "b.c", "recall@1", "(x)"]
WORDS += ["generators", "my_hook"]


def shown(names):
    """Return the names in each chart, by category and title."""
    found = charts(names, hooks=HOOKS, networks=NETWORKS)
    return {(each.category, each.title): {name for name in names if re.match(each.tags, name)} for each in found}


def test_a_binary_network_has_its_charts() -> None:
    assert shown(BNN) == {
        ("Losses", "loss/total"): {"loss/total"},
        ("Metrics", "metric/accuracy"): {"metric/accuracy"},
        ("bnn", "bnn/flip_ratio"): {"bnn/flip_ratio", "bnn/flip_ratio/dense_2"},
        ("bnn", "bnn/starved_ratio"): {"bnn/starved_ratio"},
        ("Gradient norms", "grad_norm"): {"grad_norm/before", "grad_norm/after", "grad_norm/after/clip_gradients"},
        ("Optimizer", "opt/learning_rate"): {"opt/learning_rate"},
        ("Time", "time/step_ms"): {"time/step_ms"},
        ("Time", "time/hooks_ms"): {"time/hooks_ms/tensorboard", "time/hooks_ms/progress"},
        ("Time", "time: held up"): {"time/evaluation_ms", "time/save_ms"},
    }


def test_objectives_have_charts_of_their_own() -> None:
    assert shown(GAN) == {
        ("Losses", "discriminator/loss/total"): {"discriminator/loss/total"},
        ("Losses", "discriminator/loss: parts"): {"discriminator/loss/real", "discriminator/loss/fake"},
        ("Losses", "generator/loss/total"): {"generator/loss/total"},
        ("Losses", "local_generators/loss/total"): {"local_generators/loss/total"},
        ("bnn", "local_generators/bnn/flip_ratio"): {"local_generators/bnn/flip_ratio"},
        ("bnn", "local_generators/bnn/starved_ratio"): {"local_generators/bnn/starved_ratio"},
        ("ema", "generator/ema/decay"): {"generator/ema/decay"},
        ("ema", "local_generators/generators/ema/decay"): {"local_generators/generators/ema/decay"},
        ("ema", "local_generators/generators/ema/distance"): {"local_generators/generators/ema/distance"},
        ("my_hook", "generators/my_hook/share"): {"generators/my_hook/share"},
        ("my_hook", "local_generators/my_hook/share"): {"local_generators/my_hook/share"},
        ("frozen_mask", "frozen_mask/share"): {"frozen_mask/share"},
        ("Gradient norms", "generator/grad_norm"): {"generator/grad_norm/before"},
    }


def test_recall_at_several_places_is_one_chart() -> None:
    names = ["metric/recall@1", "metric/recall@10", "metric/recall_all"]
    assert shown(names) == {
        ("Metrics", "metric/recall"): set(names[:2]),
        ("Metrics", "metric/recall_all"): {names[2]},
    }


@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=2, max_size=4).map("/".join), unique=True))
def test_no_chart_is_empty_or_there_twice_and_only_lone_losses_are_left_out(names) -> None:
    found = shown(names)
    assert len(found) == len(charts(names, hooks=HOOKS, networks=NETWORKS))
    assert all(found.values())
    left_out = set(names) - {name for each in found.values() for name in each}
    assert all("loss" in name.split("/") for name in left_out)


def test_the_record_is_the_plugins() -> None:
    (value,) = layout_summary(BNN, hooks=(), networks=()).value
    layout = layout_pb2.Layout.FromString(tensor_util.make_ndarray(value.tensor).item())
    assert value.tag == "custom_scalars__config__"
    assert value.metadata.plugin_data.plugin_name == "custom_scalars"
    assert [each.title for each in layout.category] == [
        "Losses",
        "Metrics",
        "bnn",
        "Gradient norms",
        "Optimizer",
        "Time",
    ]
    assert [each.title for each in layout.category[2].chart] == ["bnn/flip_ratio", "bnn/starved_ratio"]


@pytest.mark.parametrize("names", [[], ["loss/x"]])
def test_few_names(names) -> None:
    assert bool(layout_summary(names, hooks=(), networks=()).value) == bool(names)


def test_a_name_in_no_known_namespace_stands_under_its_first_part_behind_objectives_and_networks() -> None:
    names = ["a/loss/total", "a/other/x", "other/x/y", "a/generators/x", "alone"]
    assert [(each.category, each.title) for each in charts(names, hooks=(), networks=("generators",))] == [
        ("Losses", "a/loss/total"),
        ("alone", "alone"),
        ("generators", "a/generators/x"),
        ("other", "other/x"),
        ("other", "a/other/x"),
    ]
