"""A model that was trained before, read as data: of a run directory, or of a Keras file."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import keras

from hookline.trainer.errors import UserError, user_path
from hookline.trainer.files import MAX_BYTES, open_file, parse_json
from hookline.trainer.run.checkpoint_files import tensors_digest
from hookline.trainer.run.finished import made_beside, read_config, shipped_network

SUFFIX = ".keras"
CONFIG = "config.json"


def read_model(path: str, key: str) -> keras.Model:
    """Return a trained model, without affecting how a run around it is built. No code of the file is executed.

    Args:
        path: a run directory of the command line, of one network, read with the weights that its evaluations use and
            without its final activation; or a Keras file that ends in ".keras", of parts of Keras alone.
        key: of the option that names it, for errors.

    Raises:
        UserError: nothing there can be read so.
    """
    given = user_path(path, key)
    try:
        if given.suffix == SUFFIX:
            check_parts(given)
            return made_beside(lambda: _load(given))
        return shipped_network(path, read_config(path)).model
    except UserError as error:
        raise UserError(f"{key}={path}: {error}") from error


def model_digest(model: keras.Model) -> str:
    """Return a digest of the values of a model's weights and moving statistics, in their order."""
    return tensors_digest({str(number): each.numpy() for number, each in enumerate(model.weights)})


def _load(path: Path) -> keras.Model:
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:
        raise UserError(f"Keras cannot load it: {' '.join(str(error).split()):.200}") from error
    if not isinstance(model, keras.Model):
        raise UserError(f"it holds a {type(model).__name__}. Expected a model.")
    return model


def check_parts(path: Path, packages: Sequence[str] = ()) -> None:
    """Refuse a .keras file that names code other than Keras's, or of packages that the user allows: loading runs it."""
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive, archive.open(CONFIG) as stored:
            if len(text := stored.read(MAX_BYTES + 1)) > MAX_BYTES:
                raise ValueError("its config is too large")
        config = parse_json(text)
    except (OSError, ValueError, KeyError, NotImplementedError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"it cannot be read ({reason:.200}). Expected a file of model.save('<name>.keras').") from error
    if foreign := sorted(set(_foreign_parts(config, {"keras", *packages}))):
        raise UserError(
            f"it has parts that are not of Keras: {', '.join(foreign):.200}. Expected a model of Keras's own layers, "
            "the directory of a run, or a keras.Model in Python."
        )


def _foreign_parts(config: Any, known: Set[str]) -> Iterator[str]:
    """Yield what a serialized model would have to import or look up outside of known packages."""
    if isinstance(config, Mapping):
        if "class_name" in config and "config" in config:
            module, registered = config.get("module"), str(config.get("registered_name") or "")
            root = str(module or "keras").partition(".")[0]
            if root not in known or (">" in registered and len(known) == 1):
                yield str(config["class_name"])
        for value in config.values():
            yield from _foreign_parts(value, known)
    elif isinstance(config, list):
        for value in config:
            yield from _foreign_parts(value, known)
