"""Image files of every kind are decoded to the pixels that they show, or refused with the reason."""

import io
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from hookline.recipes.data.images import UnreadableImage, decode_image, fit_pixels, image_form
from tests.support.encoded import encoded


def deep_png(values: Any) -> bytes:
    """Return a PNG with 16 bits per value."""
    return tf.io.encode_png(tf.constant(values, tf.uint16)).numpy()


COLOUR, GREY = image_form(8, "crop", 3), image_form(8, "crop", 1)
ORANGE = np.broadcast_to([200, 100, 50], (8, 8, 3))


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def turned(pixels, orientation):
    """Return a PNG with an EXIF orientation."""
    note = Image.Exif()
    note[0x0112] = orientation
    return encoded(pixels, "PNG", exif=note)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_16_bit_values_are_rounded_to_8_bits_instead_of_truncated(channels):
    values = np.arange(64).reshape(8, 8, 1) * 1037 + 11
    expected = np.rint(values / 257)
    assert (expected != values // 256).any(), "cutting would show"
    deep = np.concatenate([values] * channels, axis=2)
    if channels == 4:
        deep[..., -1] = 9  # opacity
    np.testing.assert_array_equal(decode_image(deep_png(deep), COLOUR), np.broadcast_to(expected, (8, 8, 3)))
    np.testing.assert_allclose(decode_image(deep_png(deep), GREY), expected, atol=1)


def test_cmyk_is_converted_to_printed_colors():
    inks = Image.new("CMYK", (8, 8), (0, 200, 100, 30))
    stream = io.BytesIO()
    inks.save(stream, "JPEG", quality=100)
    printed = (255 - np.array([0, 200, 100])) * (255 - 30) / 255
    np.testing.assert_allclose(decode_image(stream.getvalue(), COLOUR), np.broadcast_to(printed, (8, 8, 3)), atol=3)
    grey = printed @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(decode_image(stream.getvalue(), GREY), np.full((8, 8, 1), grey), atol=3)


def test_palette_is_applied_and_transparency_is_ignored():
    image = Image.new("P", (8, 8), 1)
    image.putpalette([9, 9, 9, 200, 100, 50])
    for kind, settings in (
        ("PNG", {}),
        ("GIF", {}),
        ("BMP", {}),
        ("PNG", {"transparency": 1}),
        ("PNG", {"transparency": b"\xff\x07"}),
    ):
        stream = io.BytesIO()
        image.save(stream, kind, **settings)
        np.testing.assert_array_equal(decode_image(stream.getvalue(), COLOUR), ORANGE)
        np.testing.assert_allclose(decode_image(stream.getvalue(), GREY), 124, atol=1)
    clear = np.concatenate([ORANGE, np.full((8, 8, 1), 7)], axis=2)
    for data in (encoded(clear), encoded(ORANGE, transparency=(200, 100, 50))):
        np.testing.assert_array_equal(decode_image(data, COLOUR), ORANGE)
    pattern = np.indices((8, 8)).sum(axis=0) % 2 * 255
    np.testing.assert_array_equal(decode_image(encoded(pattern, mode="1"), GREY)[..., 0], pattern)


def test_exif_orientation_is_applied():
    upright = noise(8, 8, 3)
    turned_back = upright.transpose(1, 0, 2)
    # The stored pixels of an upright picture for each orientation in the table of EXIF, from 1 to 8.
    seen = [upright, upright[:, ::-1], upright[::-1, ::-1], upright[::-1]]
    seen += [turned_back, turned_back[::-1], turned_back[::-1, ::-1], turned_back[:, ::-1]]
    for orientation, pixels in enumerate(seen, 1):
        np.testing.assert_array_equal(decode_image(turned(pixels, orientation), COLOUR), upright, str(orientation))
    tall = np.zeros((24, 8, 3), np.uint8)
    tall[:8] = 250
    lying = tall.transpose(1, 0, 2)[::-1]  # fits the form only after it is turned
    found = decode_image(turned(lying, 6), image_form([12, 4], "stretch", 1))
    np.testing.assert_allclose(found[:3], 250)
    np.testing.assert_allclose(found[5:], 0)


@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_large_photo_decoded_at_reduced_size_looks_the_same(fit):
    rows, columns = np.indices((640, 800))
    smooth = np.stack([rows / 3, columns / 4, (rows + columns) / 6], axis=2) + noise(640, 800, 3) / 8
    form = image_form(32, fit, 3)
    small = decode_image(encoded(smooth, "JPEG", quality=95), form).astype(int)
    whole = fit_pixels(smooth.astype(np.uint8), form)
    assert np.abs(small - whole).max() <= 4


def test_crop_keeps_middle_and_stretch_keeps_everything():
    pixels = noise(8, 8, 3)  # of the requested size: unchanged, even with damaged EXIF data
    np.testing.assert_array_equal(fit_pixels(pixels, COLOUR), pixels)
    noted = encoded(pixels, exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    np.testing.assert_array_equal(decode_image(noted, COLOUR), pixels)
    striped = np.zeros((8, 24, 3), np.uint8)
    striped[:, :8, 0] = striped[:, 8:16, 1] = striped[:, 16:, 2] = 255
    middle = np.broadcast_to([0, 255, 0], (8, 8, 3))
    np.testing.assert_array_equal(fit_pixels(striped, COLOUR), middle)
    np.testing.assert_array_equal(fit_pixels(striped.transpose(1, 0, 2), image_form(4, "crop", 3)), middle[:4, :4])
    stretched = fit_pixels(striped, image_form(8, "stretch", 3))
    np.testing.assert_array_equal(stretched[:, [0, 4, 7]].argmax(axis=2), [[0, 1, 2]] * 8)
    columns = np.broadcast_to((np.arange(64) % 8 == 0)[None, :, None] * 240, (64, 64, 3)).astype(np.uint8)
    np.testing.assert_allclose(fit_pixels(columns, COLOUR)[:, 1:-1], 30, atol=8)  # averaged, not aliased
    np.testing.assert_array_equal(fit_pixels(np.full((1, 3, 3), 90, np.uint8), image_form(16, "crop", 3)), 90)


def test_invalid_or_damaged_image_is_unreadable_and_never_half_decoded():
    for data, reason in (
        (b"", "it is empty"),
        (b"these are words, not pixels", "begins with b'these ar'"),
        (encoded(ORANGE, "TIFF"), "begins with b'II"),
        (b"\x89PNG\r\n\x1a\n", "."),
        (b"\xff\xd8\xff\xe0", "."),
    ):
        with pytest.raises(UnreadableImage, match=reason):
            decode_image(data, COLOUR)
    deep = deep_png(noise(16, 16, 3).astype(np.uint16) * 257)
    for data in (*(encoded(noise(64, 64, 3), kind) for kind in ("JPEG", "PNG", "BMP", "GIF")), deep):
        for kept in (0.02, 0.5, 0.95):
            with pytest.raises(UnreadableImage):
                decode_image(data[: int(kept * len(data))], COLOUR)
    flipped = bytearray(encoded(noise(64, 64, 3)))
    flipped[len(flipped) // 2] ^= 16
    with pytest.raises(UnreadableImage):
        decode_image(bytes(flipped), COLOUR)
