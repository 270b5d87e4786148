"""Every graph hook trains the same on two replicas as on one. A new hook is covered by being there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from hooks import catalogue, load
from tests.support.replicas import assert_same_run, trained
from tests.support.small_images import from_catalogue, image_batch, small_network
from tests.support.toy import CLASSES, build_context
from trainer.hook import GraphHook
from trainer.network import Network

HOOKS = [name for name in sorted(catalogue()) if issubclass(load(name), GraphHook)]
STEPS = 3


def built(name: str, network: Network) -> list[GraphHook]:
    """Return the hook as its config describes it, built for a network."""
    hook = from_catalogue(name)
    hook.network = network.name
    network.model = hook.rebuild_model(network.model)
    network.taps |= hook.request_taps(network.model)
    network.optimizer.build(network.model.trainable_variables)
    hook.build(replace(build_context(network), total_steps=STEPS, steps_per_epoch=1.0, classes=CLASSES))
    return [hook]


@pytest.mark.parametrize("name", HOOKS)
def test_two_replicas_train_as_one_does_and_hold_the_same_bits(name: str) -> None:
    options = {"network": small_network, "hooks": partial(built, name), "batch": image_batch, "steps": STEPS}
    found, reported = trained(2, **options)
    assert all(np.isfinite(value).all() for value in found.values())
    assert_same_run((found, reported), trained(1, **options))
