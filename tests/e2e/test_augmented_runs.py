"""Runs with augmentation: what they train on, what they evaluate, and who refuses them."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

from tests.support.command import run_small
from trainer.config.command import parse_command
from trainer.config.preflight import preflight
from trainer.errors import UserError
from trainer.plan.run import plan_run
from trainer.run.assembly import assemble

NO_NORM = "model=lenet_300_100"  # normalizes nothing, so no statistics of the batch move
ALL = "+augment=[standard_digits,cutout,noise,mixup,cutmix]"


def config_of(*overrides: str) -> dict:
    (job,) = preflight(parse_command([*overrides, "trainer.compile=off"]))
    return job.config


def test_both_placements_micro_batches_and_a_second_run_agree(tmp_path) -> None:
    device = run_small("baseline", ALL, "trainer.placement=device", run_dir=tmp_path / "device")
    host = run_small("baseline", ALL, "trainer.placement=host", run_dir=tmp_path / "host")
    assert host["final"]["loss/total"] == device["final"]["loss/total"]
    assert host["test"] == device["test"]
    assert device["hooks"]["randomness_guard"]["faults"] == []
    plain = run_small("baseline", run_dir=tmp_path / "plain")
    assert plain["final"]["loss/total"] < device["final"]["loss/total"]
    whole, cut = (
        run_small(
            "baseline",
            ALL,
            NO_NORM,
            "trainer.epochs=1",
            f"trainer.accumulation_steps={parts}",
            run_dir=tmp_path / parts,
        )
        for parts in ("1", "4")
    )
    assert cut["final"]["loss/total"] == pytest.approx(whole["final"]["loss/total"], rel=1e-4)
    assert cut["final"]["metric/accuracy"] == pytest.approx(whole["final"]["metric/accuracy"], rel=1e-2)


def test_only_training_is_augmented(tmp_path) -> None:
    still = ("optimizer.learning_rate=1e-12", "trainer.epochs=1", NO_NORM)
    plain = run_small("baseline", *still, run_dir=tmp_path / "plain")
    augmented = run_small("baseline", ALL, *still, run_dir=tmp_path / "augmented")
    assert augmented["test"]["loss/total"] == pytest.approx(plain["test"]["loss/total"], rel=1e-5)
    assert augmented["best"]["values"] == pytest.approx(plain["best"]["values"], rel=1e-5)
    assert abs(augmented["final"]["loss/total"] - plain["final"]["loss/total"]) > 1e-3


def test_the_run_shows_what_the_network_sees(tmp_path) -> None:
    run_small("baseline", "+augment=shift", "trainer.epochs=1", run_dir=tmp_path / "run")
    picture = (tmp_path / "run" / "pictures" / "input_training_examples.png").read_bytes()
    assert tf.io.decode_png(picture).shape[1] > 400
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["hooks"]["randomness_guard"]["faults"] == []


def test_maps_and_further_domains_go_along(tmp_path) -> None:
    supervised = "hooks.bernoulli_attention.supervision={key: map}"
    summary = run_small("attention", "+augment=[shift,rotate]", supervised, run_dir=tmp_path / "attention")
    assert summary["status"] == "completed"
    summary = run_small("gradient_reversal", "+augment=standard_digits", run_dir=tmp_path / "domains")
    assert summary["status"] == "completed"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["recipe=baseline", "+hooks=center_loss"], "hooks.center_loss needs one class for each example, but augment"),
        (["recipe=retrieval"], "The triplet loss needs one class for each example"),
        (["recipe=gradient_reversal"], "augment.mixup: it mixes examples, and would leave target_domain"),
        (
            ["recipe=attention", "data.train_examples=600"],
            "augment.mixup: it mixes examples, and would leave box, map of the data",
        ),
    ],
)
def test_who_needs_one_class_for_each_example_refuses_mixtures_in_one_line(overrides, message) -> None:
    with pytest.raises(UserError, match=message) as caught:
        assemble(config_of(*overrides, "+augment=mixup"))
    assert "\n" not in str(caught.value)


def test_the_plan_names_the_augmentations_in_their_order_and_older_configs_have_none() -> None:
    config = config_of("recipe=baseline", "model.units=[8]", "+augment=[noise,mixup,shift]")
    assert plan_run(config, "baseline", assemble(config)).facts["augmentation"] == "shift, noise, mixup"
    del config["augment"]
    parts = assemble(config)
    assert parts.training.augmentation is None
    assert "augmentation" not in plan_run(config, "baseline", parts).facts
