"""Training batches: from arrays, ours against `tf.data`'s; from a folder of images, ours against Keras's.

Arrays: `tf.data` transforms whole batches in parallel with the same function as ours; "image by image" is what
tutorials show. Images: all crop the center, resize it, shuffle, and scale to [-1, 1]. Keras decodes every image again
in each epoch, as ours do with cache=none. The folder `data` holds <class>/<image> or train/<class>/<image>.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.scripts.benchmarks.training_hookline import DIGITS, Case, arrays_of, start
from hookline.scripts.benchmarks.worker import Settings, Work, scratch
from hookline.trainer.errors import UserError

if TYPE_CHECKING:
    import tensorflow as tf

ARRAYS, FOLDER = Case("lenet_5", batch_size=128), Case("plain_cnn", batch_size=128)
PADDING = 2
AUGMENTED = ("+augment=[crop,flip]", f"augment.crop.padding={PADDING}")
PEAK = 255


def ours(settings: Settings, *, placement: str, augmented: bool) -> Work:
    """Return work that makes our batches from arrays."""
    overrides = (f"trainer.placement={placement}", *(AUGMENTED if augmented else ()))
    training = start(settings, ARRAYS, overrides).training
    if placement == "device":
        return _loop(training.batch)
    iterator = iter(training.queued(0))
    return _loop(lambda step: next(iterator))


def by_batch(settings: Settings, *, augmented: bool) -> Work:
    """Return work that makes batches with `tf.data`, each transformed as a whole, as ours are."""
    import tensorflow as tf

    from hookline.recipes.data.input_form import transform_of
    from hookline.trainer.input.order import example_seeds

    run = start(settings, ARRAYS, AUGMENTED if augmented else ())
    assert run.data.preparation is not None
    scaled, augmentation, size = transform_of(run.data.preparation), run.training.augmentation, run.training.batch_size

    def change(number: tf.Tensor, rows: tuple[tf.Tensor, tf.Tensor]) -> Any:
        batch = scaled({"inputs": rows[0], "targets": rows[1]})
        if augmentation is None:
            return batch
        return augmentation(batch, example_seeds(0, number, tf.range(size, dtype=tf.int64)))

    batches = _shuffled(settings).batch(size, drop_remainder=True)
    numbered = tf.data.Dataset.zip(tf.data.Dataset.counter(), batches)
    iterator = iter(numbered.map(change, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE))
    return _loop(lambda step: next(iterator))


def by_image(settings: Settings, *, augmented: bool) -> Work:
    """Return work that makes batches with `tf.data`, transformed image by image, as in tutorials."""
    import tensorflow as tf

    def change(image: tf.Tensor, label: tf.Tensor) -> Any:
        shape = image.shape
        image = tf.cast(image, tf.float32) * (2.0 / PEAK) - 1.0
        if augmented:
            image = tf.pad(image, [[PADDING, PADDING], [PADDING, PADDING], [0, 0]], "REFLECT")
            image = tf.image.random_flip_left_right(tf.image.random_crop(image, shape))
        return image, label

    changed = _shuffled(settings).map(change, num_parallel_calls=tf.data.AUTOTUNE)
    batches = changed.batch(settings.batch_size or ARRAYS.batch_size, drop_remainder=True)
    iterator = iter(batches.prefetch(tf.data.AUTOTUNE))
    return _loop(lambda step: next(iterator))


def _shuffled(settings: Settings) -> tf.data.Dataset:
    """Return an endless dataset of examples, shuffled with a buffer as large as the training set."""
    import tensorflow as tf

    images, labels = arrays_of(settings, DIGITS)
    return tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images)).repeat()


def _loop(batch: Callable[[tf.Tensor], Any]) -> Work:
    """Return work that makes batch after batch in a traced loop."""
    import tensorflow as tf

    made = 0

    @tf.function(autograph=False)
    def run(start: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        def body(step: tf.Tensor, used: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # A value of each tensor is used: TensorFlow prunes unused results.
            firsts = [tf.cast(tf.reshape(each, [-1])[0], tf.float32) for each in tf.nest.flatten(batch(step))]
            return step + 1, used + tf.add_n(firsts)

        return tf.while_loop(lambda step, _: step < stop, body, [start, tf.constant(0.0)])[1]

    def work(count: int) -> None:
        nonlocal made
        run(tf.constant(made, tf.int64), tf.constant(made + count, tf.int64)).numpy()
        made += count

    return work


def our_folder(settings: Settings, *, size: int, cache: str) -> Work:
    """Return work that takes batches of `data=image_folder`."""
    from hookline.trainer.config.overrides import quoted

    overrides = ["data=image_folder", f"data.path={quoted(_folder(settings))}", f"data.image_size={size}"]
    overrides += [f"data.cache={cache}", f"data.cache_dir={quoted(scratch())}", "data.duplicates=drop"]
    training = start(settings, FOLDER, [*overrides, "trainer.placement=host"]).training
    return _take(lambda: iter(training.queued(0)))


def keras_folder(settings: Settings, *, size: int) -> Work:
    """Return work that takes batches of `keras.utils.image_dataset_from_directory`."""
    import keras
    import tensorflow as tf

    folder = _folder(settings)
    dataset = keras.utils.image_dataset_from_directory(
        str(folder / "train" if (folder / "train").is_dir() else folder),
        image_size=(size, size),
        batch_size=settings.batch_size or FOLDER.batch_size,
        crop_to_aspect_ratio=True,
        verbose=False,
    )
    scaled = dataset.map(lambda images, labels: (images / 127.5 - 1.0, labels), num_parallel_calls=tf.data.AUTOTUNE)
    queue = scaled.repeat().prefetch(tf.data.AUTOTUNE)
    return _take(lambda: iter(queue))


def _folder(settings: Settings) -> Path:
    if not settings.data:
        raise UserError("what=images needs data=<folder of images>; see --help.")
    return Path(settings.data).absolute()


def _take(begin: Callable[[], Iterator[Any]]) -> Work:
    """Return work that takes batches from a new queue: an old one would fill up while other contenders run."""

    def work(count: int) -> None:
        queue = begin()
        for _ in range(count):
            next(queue)

    return work


CONTENDERS = {
    "input": {
        case: {
            "hookline, placement=device": partial(ours, placement="device", augmented=augmented),
            "hookline, placement=host": partial(ours, placement="host", augmented=augmented),
            "tf.data, batch by batch": partial(by_batch, augmented=augmented),
            "tf.data, image by image": partial(by_image, augmented=augmented),
        }
        for case, augmented in (("scale", False), ("augment", True))
    },
    "images": {
        f"{size} x {size} pixels": {
            "hookline, cache=memory": partial(our_folder, size=size, cache="memory"),
            "hookline, cache=disk": partial(our_folder, size=size, cache="disk"),
            "hookline, cache=none": partial(our_folder, size=size, cache="none"),
            "keras, image_dataset_from_directory": partial(keras_folder, size=size),
        }
        for size in (32, 96)
    },
}
"""Contenders by comparison, case and name."""
