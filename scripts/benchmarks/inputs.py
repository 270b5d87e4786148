"""Batches for training: from arrays, ours against `tf.data`'s; from a folder of images, ours against Keras's.

Arrays: `tf.data` transforms whole batches in parallel by the very function that ours use; "image by image" is what
tutorials show. Images: all cut the middle out, resize it, shuffle, and scale to [-1, 1]. Keras decodes every image
again for each epoch, as ours do with cache=none. The folder `data` holds <class>/<image> or train/<class>/<image>.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.scripts.benchmarks.contender import Contender, Settings, Work, scratch

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from hookline.trainer.input.augment import Augmentation

SCALE, AUGMENT = "scale", "augment"
PADDING = 2
SIZES = (32, 96)
"""Sides of the images from a folder."""
CLASSES, IMAGES = 4, 1024
"""Of the generated photographs."""


def ours(settings: Settings, *, placement: str, augmented: bool) -> Work:
    """Return work of our batches from arrays."""
    import numpy as np

    from hookline.recipes.data.digits import centered_pixels
    from hookline.trainer.input.batches import TrainingBatches
    from hookline.trainer.input.data import ArraySource, Split

    images, labels, peak = _arrays(settings.data)
    source = ArraySource({"inputs": images, "targets": labels}, centered_pixels(peak))
    split = Split("train", source, np.arange(len(images), dtype=np.int64))
    augmentation, size = _augmentation() if augmented else None, settings.batch_size
    batches = TrainingBatches(split, batch_size=size, seed=0, placement=placement, augmentation=augmentation)
    if placement == "device":
        return _loop(batches.batch)
    iterator = batches.iterator(0)
    return _loop(lambda step: next(iterator))


def by_batch(settings: Settings, *, augmented: bool) -> Work:
    """Return work of batches of `tf.data`, each transformed as a whole, as ours are."""
    import tensorflow as tf

    from hookline.recipes.data.digits import centered_pixels
    from hookline.trainer.input.order import example_seeds

    dataset, peak = _shuffled(settings.data)
    augmentation, scaled, size = _augmentation() if augmented else None, centered_pixels(peak), settings.batch_size

    def change(number: tf.Tensor, rows: tuple[tf.Tensor, tf.Tensor]) -> Any:
        batch = scaled({"inputs": rows[0], "targets": rows[1]})
        if augmentation is None:
            return batch
        return augmentation(batch, example_seeds(0, number, tf.range(size, dtype=tf.int64)))

    numbered = tf.data.Dataset.zip(tf.data.Dataset.counter(), dataset.batch(size, drop_remainder=True))
    iterator = iter(numbered.map(change, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE))
    return _loop(lambda step: next(iterator))


def by_image(settings: Settings, *, augmented: bool) -> Work:
    """Return work of batches of `tf.data`, transformed image by image, as in tutorials."""
    import tensorflow as tf

    dataset, peak = _shuffled(settings.data)

    def change(image: tf.Tensor, label: tf.Tensor) -> Any:
        shape = image.shape
        image = tf.cast(image, tf.float32) * (2.0 / peak) - 1.0
        if augmented:
            image = tf.pad(image, [[PADDING, PADDING], [PADDING, PADDING], [0, 0]], "REFLECT")
            image = tf.image.random_flip_left_right(tf.image.random_crop(image, shape))
        return image, label

    batches = dataset.map(change, num_parallel_calls=tf.data.AUTOTUNE).batch(settings.batch_size, drop_remainder=True)
    iterator = iter(batches.prefetch(tf.data.AUTOTUNE))
    return _loop(lambda step: next(iterator))


def _shuffled(path: str) -> tuple[tf.data.Dataset, int]:
    """Return examples without end, shuffled with a buffer as large as the set, and the brightest value."""
    import tensorflow as tf

    images, labels, peak = _arrays(path)
    return tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images)).repeat(), peak


def _augmentation() -> Augmentation:
    from hookline.recipes.augment.translation import Crop, Flip
    from hookline.trainer.input.augment import Augmentation

    crop, flip = Crop(padding=PADDING), Flip()
    crop.name, flip.name = "crop", "flip"
    return Augmentation([crop, flip], classes=10)


def _arrays(path: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Return images [n, height, width, 1] uint8, labels [n] int64, and the brightest value: MNIST, or digits."""
    import numpy as np

    if path:
        from hookline.recipes.data.array_files import read_npz

        arrays = read_npz(path, ("x_train", "y_train"))
        images, labels, peak = arrays["x_train"], arrays["y_train"], 255
    else:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images, labels, peak = bunch.images, bunch.target, 16
    return images.reshape(*images.shape[:3], 1).astype(np.uint8), labels.astype(np.int64), peak


def _loop(batch: Callable[[tf.Tensor], Any]) -> Work:
    """Return work that makes batch after batch in a traced loop."""
    import tensorflow as tf

    made = 0

    @tf.function(autograph=False)
    def run(start: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        def body(step: tf.Tensor, used: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # A value of each tensor is used: TensorFlow prunes what nobody uses.
            firsts = [tf.cast(tf.reshape(each, [-1])[0], tf.float32) for each in tf.nest.flatten(batch(step))]
            return step + 1, used + tf.add_n(firsts)

        return tf.while_loop(lambda step, _: step < stop, body, [start, tf.constant(0.0)])[1]

    def work(count: int) -> None:
        nonlocal made
        run(tf.constant(made, tf.int64), tf.constant(made + count, tf.int64)).numpy()
        made += count

    return work


def our_folder(settings: Settings, *, size: int, cache: str) -> Work:
    """Return work of `data=image_folder`."""
    from hookline.recipes.data.image_folder import image_folder
    from hookline.trainer.input.batches import TrainingBatches

    folder = settings.data or _photographs()
    data = image_folder(path=folder, image_size=size, cache=cache, cache_dir=str(scratch()), duplicates="drop")
    batches = TrainingBatches(data.train, batch_size=settings.batch_size, seed=0, placement="host")
    return _take(lambda: batches.iterator(0))


def keras_folder(settings: Settings, *, size: int) -> Work:
    """Return work of `keras.utils.image_dataset_from_directory`."""
    import keras
    import tensorflow as tf

    folder = Path(settings.data or _photographs())
    dataset = keras.utils.image_dataset_from_directory(
        str(folder / "train" if (folder / "train").is_dir() else folder),
        image_size=(size, size),
        batch_size=settings.batch_size,
        crop_to_aspect_ratio=True,
        verbose=False,
    )
    scaled = dataset.map(lambda images, labels: (images / 127.5 - 1.0, labels), num_parallel_calls=tf.data.AUTOTUNE)
    queue = scaled.repeat().prefetch(tf.data.AUTOTUNE)
    return _take(lambda: iter(queue))


def _take(start: Callable[[], Iterator[Any]]) -> Work:
    """Return work that takes batches from a new queue: an old one would fill up while others work."""

    def work(count: int) -> None:
        queue = start()
        for _ in range(count):
            next(queue)

    return work


def _photographs() -> str:
    """Write photographs that are compressed about as real ones are, and return the folder."""
    import numpy as np
    from PIL import Image

    folder, generator = scratch(), np.random.default_rng(0)
    for number in range(IMAGES):
        file = folder / f"class_{number % CLASSES}" / f"{number:04}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), np.uint8))
        coarse.resize((160, 120), Image.Resampling.BICUBIC).save(file, quality=90)
    return str(folder)


FROM_ARRAYS: dict[str, Callable[..., Work]] = {
    "hookline, placement=device": partial(ours, placement="device"),
    "hookline, placement=host": partial(ours, placement="host"),
    "tf.data, batch by batch": by_batch,
    "tf.data, image by image": by_image,
}
FROM_FOLDER: dict[str, Callable[..., Work]] = {
    **{f"hookline, cache={cache}": partial(our_folder, cache=cache) for cache in ("memory", "disk", "none")},
    "keras, image_dataset_from_directory": keras_folder,
}
CONTENDERS = tuple(
    Contender("input", case, name, partial(prepare, augmented=case == AUGMENT), baseline=prepare is by_batch)
    for case in (SCALE, AUGMENT)
    for name, prepare in FROM_ARRAYS.items()
)
CONTENDERS += tuple(
    Contender("images", f"{size} x {size} pixels", name, partial(prepare, size=size), baseline=prepare is keras_folder)
    for size in SIZES
    for name, prepare in FROM_FOLDER.items()
)
