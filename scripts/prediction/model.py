"""What predicts: an exported network, or a run as it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hookline.deploy.inference.card import Card, read_card
from hookline.trainer.deferred import silent
from hookline.trainer.errors import UserError, user_path


@dataclass(frozen=True)
class Model:
    """A network that predicts."""

    # inputs float32 [n, *shape] to outputs float32 [n, outputs]; several in dicts
    predict: Callable[[Any], Any]
    card: Card | None  # of it; None for an export that has none


def open_model(path: str, *, network: str, checkpoint: str | None, plugins: Sequence[str]) -> Model:
    """Return what predicts with an export or a run."""
    place = user_path(path, "model")
    if not place.exists():
        raise UserError(f"model={path} does not exist. Expected an exported file, or the directory of a run.")
    if (place / "config.yaml").is_file():
        return _of_run(path, network, checkpoint, plugins)
    if checkpoint is not None:
        raise UserError(f"checkpoint={checkpoint} received for {path}, which is an export. Expected a run for it.")
    from hookline.deploy.formats import format_of

    form, card = format_of(place), read_card(place)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # heard by formats that TensorFlow reads
    from hookline.trainer.run.finished import own_classes

    with silent(), own_classes(plugins):
        predict = form.load(place)
    return Model(predict, card)


def _of_run(path: str, network: str, checkpoint: str | None, plugins: Sequence[str]) -> Model:
    from hookline.trainer.run.finished import read_config, restore

    config = read_config(path, plugins)
    from hookline.trainer.deferred import quiet_start

    with quiet_start():
        import hookline.trainer.run.build_run  # noqa: F401 - TensorFlow, whose notices stay off the screen
    from hookline.deploy.plain_model import card_of, finished_model
    from hookline.trainer.errors import unknown_name

    run = restore(path, config, checkpoint)
    if network not in run.trainer.networks:
        raise unknown_name("network", network, run.trainer.networks)
    model = finished_model(run, network)
    return Model(model.predict_on_batch, card_of(run, network))
