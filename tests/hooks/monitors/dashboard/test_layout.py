"""The layout of the custom scalars: every name in one chart or more, and no chart without a name."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.util import tensor_util

from hookline.hooks.monitors.dashboard.layout import charts, layout_summary

HOOKS, NETWORKS = {"frozen_mask": {}, "ema": {}, "my_hook": {}}, ("generators", "discriminator")
CHARTS = {
    ("Losses", "loss/total"): "loss/total",
    ("Losses", "discriminator/loss: parts"): "discriminator/loss/real discriminator/loss/fake",
    ("Metrics", "metric/accuracy"): "metric/accuracy",
    ("Metrics", "metric/recall"): "metric/recall@1 metric/recall@10",
    ("bnn", "bnn/flip_ratio"): "bnn/flip_ratio bnn/flip_ratio/dense_2",
    ("ema", "local/generators/ema/decay"): "local/generators/ema/decay",
    ("my_hook", "generators/my_hook/share"): "generators/my_hook/share",
    ("Gradient norms", "grad_norm"): "grad_norm/before grad_norm/after grad_norm/after/clip_gradients",
    ("Gradient norms", "discriminator/grad_norm"): "discriminator/grad_norm/before",
    ("Time", "time/hooks_ms"): "time/hooks_ms/tensorboard time/hooks_ms/progress",
    ("Time", "time: held up"): "time/evaluation_ms time/save_ms",
}
WORDS = ["loss", "metric", "total", "bnn", "time", "hooks_ms", "grad_norm", "a", "b.c", "recall@1", "(x)"]
WORDS += ["generators", "my_hook"]


def shown(names):
    """Return the names in each chart, by category and title."""
    found = charts(names, hooks=HOOKS, networks=NETWORKS)
    return {(each.category, each.title): {name for name in names if re.match(each.tags, name)} for each in found}


def test_names_have_their_charts_and_the_record_is_the_plugins() -> None:
    names = ["local/loss/total", *(name for line in CHARTS.values() for name in line.split())]
    expected = {title: set(line.split()) for title, line in CHARTS.items()}
    assert shown(names) == {**expected, ("Losses", "local/loss/total"): {"local/loss/total"}}
    (value,) = layout_summary(["bnn/flip_ratio", "loss/x"], hooks=(), networks=()).value
    layout = layout_pb2.Layout.FromString(tensor_util.make_ndarray(value.tensor).item())
    assert (value.tag, value.metadata.plugin_data.plugin_name) == ("custom_scalars__config__", "custom_scalars")
    assert [each.title for each in layout.category] == ["Losses", "bnn"]
    assert not layout_summary([], hooks=(), networks=()).value


NAMES = st.lists(st.sampled_from(WORDS), min_size=2, max_size=4).map("/".join)


@given(st.lists(NAMES, unique=True))
def test_no_chart_is_empty_or_twice_and_only_lone_losses_are_left_out(names) -> None:
    found = shown(names)
    assert len(found) == len(charts(names, hooks=HOOKS, networks=NETWORKS))
    assert all(found.values())
    left_out = set(names) - {name for each in found.values() for name in each}
    assert all("loss" in name.split("/") for name in left_out)
