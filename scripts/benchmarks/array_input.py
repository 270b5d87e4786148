"""Batches from arrays in memory: ours against `tf.data.Dataset.from_tensor_slices`, with the same transform.

All are used in their best way: from inside one traced loop that asks for batch after batch, with every tensor of every
batch made. Cases: uint8 images scaled to [-1, 1]; the same, cropped and flipped at random. `tf.data` transforms whole
batches in parallel, with the very function that ours use; "image by image" is what tutorials show.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hookline.scripts.benchmarks.contender import Contender, Settings, Work

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from hookline.trainer.input.augment import Augmentation

SCALE, AUGMENT = "scale to [-1, 1]", "scale, crop and flip"
PADDING = 2


def ours(settings: Settings, *, placement: str, augmented: bool) -> Work:
    """Return work of our batches."""
    import numpy as np

    from hookline.recipes.data.digits import centered_pixels
    from hookline.trainer.input.batches import TrainingBatches
    from hookline.trainer.input.data import Split
    from hookline.trainer.input.source import ArraySource

    images, labels, peak = _arrays(settings.data)
    source = ArraySource({"inputs": images, "targets": labels}, centered_pixels(peak))
    split = Split("train", source, np.arange(len(images), dtype=np.int64))
    augmentation = _augmentation() if augmented else None
    size = settings.batch_size
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

    augments = {"crop": Crop(padding=PADDING), "flip": Flip()}
    for name, augment in augments.items():
        augment.name = name
    return Augmentation(list(augments.values()), classes=10)


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
    images = images.reshape(*images.shape[:3], 1)
    return images.astype(np.uint8), labels.astype(np.int64), peak


def _loop(batch: Callable[[tf.Tensor], Any]) -> Work:
    """Return work that makes batch after batch in a traced loop."""
    import tensorflow as tf

    made = 0

    @tf.function(autograph=False)
    def run(start: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        def body(step: tf.Tensor, used: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # A value of each tensor is used: TensorFlow leaves out what nobody uses, whatever waits for it.
            firsts = [tf.cast(tf.reshape(each, [-1])[0], tf.float32) for each in tf.nest.flatten(batch(step))]
            return step + 1, used + tf.add_n(firsts)

        return tf.while_loop(lambda step, _: step < stop, body, [start, tf.constant(0.0)])[1]

    def work(count: int) -> None:
        nonlocal made
        run(tf.constant(made, tf.int64), tf.constant(made + count, tf.int64)).numpy()
        made += count

    return work


WAYS: dict[str, Callable[..., Work]] = {
    "hookline, placement=device": partial(ours, placement="device"),
    "hookline, placement=host": partial(ours, placement="host"),
    "tf.data, batch by batch": by_batch,
    "tf.data, image by image": by_image,
}
CONTENDERS = tuple(
    Contender("input", case, name, partial(prepare, augmented=case == AUGMENT), baseline=prepare is by_batch)
    for case in (SCALE, AUGMENT)
    for name, prepare in WAYS.items()
)
