"""Batches from a folder of images: ours against `keras.utils.image_dataset_from_directory`.

All cut the middle out, resize it to one size, shuffle, and scale to [-1, 1]. Keras decodes every image again for each
epoch, as ours do with cache=none, and picks single pixels where an image shrinks, while ours average over all of them.
The folder is `data`, which holds <class>/<image> or train/<class>/<image>; without it, generated photographs of
160 x 120 pixels.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hookline.scripts.benchmarks.contender import Contender, Settings, Work

SIZES = (32, 96)
CLASSES, IMAGES = 4, 1024
"""Of the generated photographs."""


def ours(settings: Settings, *, size: int, cache: str) -> Work:
    """Return work of `data=image_folder`."""
    from hookline.recipes.data.image_folder import image_folder
    from hookline.trainer.input.batches import TrainingBatches

    held = tempfile.TemporaryDirectory()
    folder = settings.data or _photographs(Path(held.name) / "images")
    data = image_folder(path=folder, image_size=size, cache=cache, cache_dir=held.name, duplicates="drop")
    batches = TrainingBatches(data.train, batch_size=settings.batch_size, seed=0, placement="host")
    return _take(lambda: batches.iterator(0), held)


def from_directory(settings: Settings, *, size: int) -> Work:
    """Return work of Keras."""
    import keras
    import tensorflow as tf

    held = tempfile.TemporaryDirectory()
    folder = Path(settings.data or _photographs(Path(held.name) / "images"))
    dataset = keras.utils.image_dataset_from_directory(
        str(folder / "train" if (folder / "train").is_dir() else folder),
        image_size=(size, size),
        batch_size=settings.batch_size,
        crop_to_aspect_ratio=True,
        verbose=False,
    )
    scaled = dataset.map(lambda images, labels: (images / 127.5 - 1.0, labels), num_parallel_calls=tf.data.AUTOTUNE)
    queue = scaled.repeat().prefetch(tf.data.AUTOTUNE)
    return _take(lambda: iter(queue), held)


def _take(start: Callable[[], Iterator[Any]], held: tempfile.TemporaryDirectory[str]) -> Work:
    """Return work that takes batches from a new queue: an old one would fill up while others work."""

    def work(count: int) -> None:
        queue = start()
        for _ in range(count):
            next(queue)

    weakref.finalize(work, held.cleanup)
    return work


def _photographs(folder: Path) -> str:
    """Write photographs that are compressed about as real ones are, and return the folder."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    for number in range(IMAGES):
        file = folder / f"class_{number % CLASSES}" / f"{number:04}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), np.uint8))
        coarse.resize((160, 120), Image.Resampling.BICUBIC).save(file, quality=90)
    return str(folder)


CONTENDERS = tuple(
    Contender("images", f"{size} x {size} pixels", name, partial(prepare, size=size), name.startswith("keras"))
    for size in SIZES
    for name, prepare in (
        ("hookline, cache=memory", partial(ours, cache="memory")),
        ("hookline, cache=disk", partial(ours, cache="disk")),
        ("hookline, cache=none", partial(ours, cache="none")),
        ("keras, image_dataset_from_directory", from_directory),
    )
)
