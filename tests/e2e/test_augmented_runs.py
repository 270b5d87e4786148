"""Runs with augmentation: what they train on, what they evaluate, and who refuses them."""

from __future__ import annotations

import pytest
import tensorflow as tf

from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.errors import UserError
from hookline.trainer.run.blueprint import from_config
from hookline.trainer.run.build_run import build_run
from tests.support.command import run_small

NO_NORM = "model=lenet_300_100"  # normalizes nothing, so no statistics of the batch move
ALL = "+augment=[standard_digits,cutout,noise,mixup,cutmix]"


def config_of(*overrides):
    (job,) = preflight(parse_command([*overrides, "trainer.compile=off"]))
    return job.config


def test_only_training_is_augmented_on_the_device_as_on_the_host(tmp_path):
    still = ("optimizer.learning_rate=1e-12", "trainer.epochs=1", NO_NORM)
    plain = run_small("baseline", *still, run_dir=tmp_path / "plain")
    augmented, host = (
        run_small("baseline", ALL, *still, f"trainer.placement={place}", run_dir=tmp_path / place)
        for place in ("device", "host")
    )
    assert host["final"]["loss/total"] == augmented["final"]["loss/total"]
    assert host["test"] == augmented["test"]
    assert augmented["hooks"]["randomness_guard"]["faults"] == []
    picture = (tmp_path / "device" / "pictures" / "input_training_examples.png").read_bytes()
    assert tf.io.decode_png(picture).shape[1] > 400
    assert augmented["test"]["loss/total"] == pytest.approx(plain["test"]["loss/total"], rel=1e-5)
    assert augmented["best"]["values"] == pytest.approx(plain["best"]["values"], rel=1e-5)
    assert abs(augmented["final"]["loss/total"] - plain["final"]["loss/total"]) > 1e-3


def test_who_needs_one_class_for_each_example_refuses_mixtures():
    for overrides, message in (
        (["recipe=baseline", "+hooks=center_loss"], "hooks.center_loss needs one class for each example"),
        (["recipe=retrieval"], "triplet loss needs one class for each example"),
        (["recipe=gradient_reversal"], "would leave target_domain"),
        (["recipe=attention", "data.train_examples=600"], "would leave box, map"),
    ):
        with pytest.raises(UserError, match=message):
            build_run(from_config(config_of(*overrides, "+augment=mixup")))
