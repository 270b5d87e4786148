"""TFRecord files, as a user would give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.encoded import encoded

Features = Mapping[str, Any]


def example(features: Features) -> bytes:
    """Return a record.

    Args:
        features: bytes, integers or floats by name; one or a list of them.
    """
    return tf.train.Example(
        features=tf.train.Features(feature={name: _feature(value) for name, value in features.items()})
    ).SerializeToString()


def _feature(value: Any) -> tf.train.Feature:
    values = value if isinstance(value, list) else [value]
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def write_records(file: Path, records: Sequence[bytes], compression: str = "") -> str:
    """Write records and return the name of the file.

    Args:
        file: to be written.
        records: of `example`, or other bytes.
        compression: "GZIP" or "ZLIB", or none.
    """
    with tf.io.TFRecordWriter(str(file), compression) as writer:
        for record in records:
            writer.write(record)
    return str(file)


def pictures(count: int, *, classes: int = 3, seed: int = 0, first: int = 0) -> list[dict[str, Any]]:
    """Return features of pictures of 10 x 10 pixels; the classes take turns.

    Args:
        count: of pictures.
        classes: of them.
        seed: of the pixels.
        first: the integer of the first class.
    """
    generator = np.random.default_rng(seed)
    return [
        {
            "image/encoded": encoded(generator.integers(0, 256, (10, 10, 3))),
            "image/class/label": first + number % classes,
            "person": number // 6,
        }
        for number in range(count)
    ]
