"""The features of a TFRecord example that a user names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from trainer.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Keys:
    """Name features.

    Attributes:
        image: data.image_key.
        label: data.label_key.
        group: data.group_key; None for none.
    """

    image: str
    label: str
    group: str | None

    def as_list(self) -> list[str | None]:
        """Return the names."""
        return [self.image, self.label, self.group]

    def collected(self) -> dict[str, tuple[str, str]]:
        """Return which features an index collects: their names, and the options that say them."""
        found = {"labels": (self.label, "data.label_key")}
        return found if self.group is None else {**found, "groups": (self.group, "data.group_key")}


def parse_record(data: bytes, where: str) -> Any:
    """Return the features of a record by name.

    Args:
        data: of the record.
        where: what messages call the record.

    Raises:
        UserError: it is no `tf.train.Example`.
    """
    try:
        return tf.train.Example.FromString(data).features.feature
    except DecodeError as error:
        raise UserError(f"{where} is no tf.train.Example ({error}). Write the records as such.") from error


def single_value(features: Any, key: str, option: str, where: str, kinds: tuple[str, ...]) -> Any:
    """Return the one value of a feature: bytes, an integer, or, where integers are allowed, a text.

    Args:
        features: of `parse_record`.
        key: of the feature.
        option: that names the key, such as "data.label_key".
        where: what messages call the record.
        kinds: that are allowed, of "bytes", "int64" and "float".

    Raises:
        UserError: no such feature, another kind, or not one value.
    """
    if key not in features:
        names = sorted(features)
        raise UserError(
            f"{where} has no feature '{key}'.{did_you_mean(key, names)} It has: {', '.join(names) or 'none'}. "
            f"Set {option}."
        )
    feature = features[key]
    kind = str(feature.WhichOneof("kind") or "no").removesuffix("_list")
    values = getattr(feature, f"{kind}_list").value if kind != "no" else []
    if kind not in kinds or len(values) != 1:
        expected = " or ".join(kinds)
        raise UserError(
            f"{where}: feature '{key}' holds {len(values)} {kind} values; expected one of {expected}. Set {option}."
        )
    if kind == "bytes" and "int64" in kinds:
        return values[0].decode(errors="backslashreplace")
    return values[0]
