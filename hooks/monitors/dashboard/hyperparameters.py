"""What TensorBoard's HPARAMS tab shows of a run: its main settings, and the values that it reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2

from hookline.hooks import catalogue, technique_hooks
from hookline.trainer.config.settings import IGNORED, TARGET, overridden_key, spread_settings
from hookline.trainer.config.values import show
from hookline.trainer.run.results import COMPLETE, metric_rows

Value = bool | float | str
PLACES = ("data", "model", "optimizer", "schedule")
ALWAYS = {
    "learning_rate": "optimizer.learning_rate",
    "batch_size": "trainer.batch_size",
    "epochs": "trainer.epochs",
    "steps": "trainer.steps",
    "seed": "seed",
}
"""Names of the settings that every run shows, where it has them."""


def hyperparameters(recipe: str, config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Value]:
    """Return the settings that distinguish a run from others, by name.

    They are the recipe, what is built, the learning rate, batch size, length and seed, the names of the technique
    hooks, what the recipe changed of their options, and all that the command line set.
    """
    hooks = technique_hooks(config.get("hooks") or {})
    settings = {key: values[0] for key, values in spread_settings([config], ignored=()).items()}
    targets = {place: settings.get(f"{place}.{TARGET}") for place in PLACES}
    found: dict[str, Any] = {"recipe": recipe, "hooks": " ".join(sorted(hooks)) or "none"}
    found |= {place: str(target).rpartition(".")[2] for place, target in targets.items() if target is not None}
    found |= {name: settings[key] for name, key in ALWAYS.items() if settings.get(key) is not None}
    changed = {key for name, node in hooks.items() for key in _changed_options(name, node)}
    found |= {key: value for key, value in settings.items() if _is_part(key, changed)}
    given = {overridden_key(text) for text in overrides} - {*found, *ALWAYS.values(), *IGNORED}
    found |= {key: value for key, value in settings.items() if _is_part(key, given) and not key.endswith(TARGET)}
    return {
        name: value if isinstance(value, bool | int | float | str) else show(value) for name, value in found.items()
    }


def _changed_options(name: str, node: Mapping[str, Any]) -> set[str]:
    """Return the keys of the options that differ from the hook's own config file."""
    entry = next((entry for entry in catalogue().values() if entry.target == node.get(TARGET)), None)
    default: Any = {} if entry is None else OmegaConf.to_container(OmegaConf.load(entry.config_file))
    same = default[entry.name] if entry else default
    return {f"hooks.{name}.{key}" for key, value in node.items() if key != TARGET and value != same.get(key)}


def _is_part(key: str, keys: set[str]) -> bool:
    return key in keys or any(key.startswith(f"{each}.") for each in keys if "." in each)


def start_summary(values: Mapping[str, Value]) -> Summary:
    """Return the record that opens a session of TensorBoard's hparams plugin, with hyperparameters by name."""
    from tensorboard.plugins.hparams.summary import session_start_pb  # it uses TensorFlow when it is imported

    return Summary.FromString(session_start_pb(values).SerializeToString())


def end_summary(status: str) -> Summary:
    """Return the record that closes a session."""
    from tensorboard.plugins.hparams.summary import session_end_pb

    known = api_pb2.STATUS_SUCCESS if status in COMPLETE else api_pb2.STATUS_FAILURE
    return Summary.FromString(session_end_pb(known).SerializeToString())


def reached_values(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return a run's results: its best values on the validation split, and those on the test split, by tag.

    TensorBoard shows each as a chart of one dot, too: their tags come late in its order, behind all curves but times.
    """
    rows = metric_rows(summary)
    best = {f"summary/best_validation/{name}": value for name, _, value, _ in rows}
    tested = {f"summary/test/{name}": value for name, *_, value in rows}
    return {tag: value for tag, value in {**best, **tested}.items() if value is not None}
