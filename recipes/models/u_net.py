"""A small U-Net: a map of outputs for each image."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from hookline.recipes.models import batch_norm_factory, check_activation, check_images, check_sizes


def u_net(
    input_shape: Sequence[int],
    classes: int,
    *,
    filters: Sequence[int] = (16, 32, 64),
    activation: str = "relu",
    batch_norm_momentum: float = 0.9,
    batch_norm_epsilon: float = 1e-3,
) -> keras.Model:
    """Return the network of Ronneberger et al. 2015 (arXiv 1505.04597), with batch norm and padding.

    Each level but the last halves height and width on the way down and doubles them on the way up, where it also gets
    what the way down had at that size. The outputs are logits [batch, height, width, classes].
    """
    check_sizes("filters", filters, least=2)
    check_activation(activation)
    shape = check_images("u_net", input_shape, 2 ** (len(filters) - 1), "fewer filters, such as model.filters=[16,32]")
    batch_norm = batch_norm_factory(batch_norm_momentum, batch_norm_epsilon)

    def block(x: keras.KerasTensor, count: int, name: str) -> keras.KerasTensor:
        for part in ("a", "b"):
            x = keras.layers.Conv2D(count, 3, padding="same", use_bias=False, name=f"{name}_conv_{part}")(x)
            x = batch_norm(name=f"{name}_batch_norm_{part}")(x)
            x = keras.layers.Activation(activation, name=f"{name}_activation_{part}")(x)
        return x

    inputs = x = keras.Input(shape, name="image")
    kept = []
    for level, count in enumerate(filters[:-1], start=1):
        x = block(x, count, f"down_{level}")
        kept.append(x)
        x = keras.layers.MaxPooling2D(2, padding="same", name=f"down_{level}_pool")(x)
    x = block(x, filters[-1], "bottom")
    for level, count in reversed(list(enumerate(filters[:-1], start=1))):
        x = keras.layers.UpSampling2D(2, name=f"up_{level}_resize")(x)
        height, width = kept[level - 1].shape[1:3]
        spare = ((0, x.shape[1] - height), (0, x.shape[2] - width))  # an odd size was rounded up on the way down
        if spare != ((0, 0), (0, 0)):
            x = keras.layers.Cropping2D(spare, name=f"up_{level}_crop")(x)
        x = keras.layers.Concatenate(name=f"up_{level}_join")([x, kept[level - 1]])
        x = block(x, count, f"up_{level}")
    return keras.Model(inputs, keras.layers.Conv2D(classes, 1, name="outputs")(x), name="u_net")
