"""Image files of every kind become the pixels that they show, or say what is wrong with them."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from recipes.data.image_decoding import decode_image, fit_pixels
from recipes.data.image_form import ImageForm
from recipes.data.image_formats import UnreadableImage
from tests.support.encoded import deep_png, encoded

COLOUR, GREY = ImageForm(8, 8, 3, "crop"), ImageForm(8, 8, 1, "crop")
ORANGE = np.broadcast_to([200, 100, 50], (8, 8, 3))


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def turned(pixels, orientation):
    """A file whose camera noted that the picture has to be turned."""
    note = Image.Exif()
    note[0x0112] = orientation
    return encoded(pixels, "PNG", exif=note)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_16_bits_are_scaled_to_the_nearest_of_8_and_not_cut_off(channels):
    values = np.arange(64).reshape(8, 8, 1) * 1037 + 11
    expected = np.rint(values / 257)
    assert (expected != values // 256).any(), "cutting would show"
    deep = np.concatenate([values] * channels, axis=2)
    if channels in (2, 4):
        deep[..., -1] = 9  # opacity
    np.testing.assert_array_equal(decode_image(deep_png(deep), COLOUR), np.broadcast_to(expected, (8, 8, 3)))
    np.testing.assert_allclose(decode_image(deep_png(deep), GREY), expected, atol=1)


def test_cmyk_becomes_the_colours_that_it_prints():
    inks = Image.new("CMYK", (8, 8), (0, 200, 100, 30))
    stream = io.BytesIO()
    inks.save(stream, "JPEG", quality=100)
    printed = (255 - np.array([0, 200, 100])) * (255 - 30) / 255
    np.testing.assert_allclose(decode_image(stream.getvalue(), COLOUR), np.broadcast_to(printed, (8, 8, 3)), atol=3)
    grey = printed @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(decode_image(stream.getvalue(), GREY), np.full((8, 8, 1), grey), atol=3)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP"])
def test_a_palette_is_looked_up(kind):
    image = Image.new("P", (8, 8), 1)
    image.putpalette([9, 9, 9, 200, 100, 50])
    stream = io.BytesIO()
    image.save(stream, kind)
    np.testing.assert_array_equal(decode_image(stream.getvalue(), COLOUR), ORANGE)
    np.testing.assert_allclose(decode_image(stream.getvalue(), GREY), 124, atol=1)


@pytest.mark.parametrize("transparency", [1, b"\xff\x07"])
def test_transparency_is_left_out(transparency):
    image = Image.new("P", (8, 8), 1)
    image.putpalette([9, 9, 9, 200, 100, 50])
    stream = io.BytesIO()
    image.save(stream, "PNG", transparency=transparency)
    clear = np.concatenate([ORANGE, np.full((8, 8, 1), 7)], axis=2)
    for data in (stream.getvalue(), encoded(clear), encoded(ORANGE, transparency=(200, 100, 50))):
        np.testing.assert_array_equal(decode_image(data, COLOUR), ORANGE)
    grey = encoded(np.full((8, 8), 90), transparency=90)
    np.testing.assert_array_equal(decode_image(grey, COLOUR), np.full((8, 8, 3), 90))


def test_black_and_white_of_one_bit_is_black_and_white():
    pattern = np.indices((8, 8)).sum(axis=0) % 2 * 255
    np.testing.assert_array_equal(decode_image(encoded(pattern, mode="1"), GREY)[..., 0], pattern)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_camera_noted(orientation):
    upright = noise(8, 8, 3)
    # How the sensor saw what is upright, by the table of EXIF: row 0 and column 0 of the file are ... of the picture.
    seen = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[::-1],
        7: upright.transpose(1, 0, 2)[::-1, ::-1],
        8: upright.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    np.testing.assert_array_equal(decode_image(turned(seen, orientation), COLOUR), upright)


def test_a_picture_on_its_side_fills_the_form_after_it_is_turned():
    tall = np.zeros((24, 8, 3), np.uint8)
    tall[:8] = 250
    lying = tall.transpose(1, 0, 2)[::-1]
    found = decode_image(turned(lying, 6), ImageForm(12, 4, 1, "stretch"))
    np.testing.assert_allclose(found[:3], 250)
    np.testing.assert_allclose(found[5:], 0)


def test_a_damaged_note_of_the_camera_does_not_damage_the_picture():
    data = encoded(noise(8, 8, 3), exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    np.testing.assert_array_equal(decode_image(data, COLOUR), noise(8, 8, 3))


@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_a_large_photograph_is_decoded_small_and_looks_the_same(fit):
    rows, columns = np.indices((640, 800))
    smooth = np.stack([rows / 3, columns / 4, (rows + columns) / 6], axis=2) + noise(640, 800, 3) / 8
    form = ImageForm(32, 32, 3, fit)
    small = decode_image(encoded(smooth, "JPEG", quality=95), form).astype(int)
    whole = fit_pixels(smooth.astype(np.uint8), form)
    assert np.abs(small - whole).max() <= 4


def test_pixels_of_the_wanted_size_stay_what_they_are():
    pixels = noise(8, 8, 3)
    np.testing.assert_array_equal(fit_pixels(pixels, COLOUR), pixels)
    np.testing.assert_array_equal(decode_image(encoded(pixels), COLOUR), pixels)
    np.testing.assert_array_equal(fit_pixels(pixels[..., :1], GREY), pixels[..., :1])
    np.testing.assert_array_equal(decode_image(encoded(np.pad(pixels, ((0, 0), (3, 4), (0, 0)))), COLOUR), pixels)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"these are words, not pixels", "it begins with b'these ar'"),
        (b"RIFF\x10\0\0\0WEBPVP8X", "it begins with b'RIFF"),
        (encoded(ORANGE, "TIFF"), "it begins with b'II"),
        (b"\x89PNG\r\n\x1a\n", "."),
        (b"\xff\xd8\xff\xe0", "."),
    ],
)
def test_what_is_no_image_says_so(data, reason):
    with pytest.raises(UnreadableImage, match=reason):
        decode_image(data, COLOUR)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF"])
@pytest.mark.parametrize("kept", [0.02, 0.5, 0.95])
def test_a_truncated_file_is_unreadable_and_never_half_grey(kind, kept):
    data = encoded(noise(64, 64, 3), kind)
    with pytest.raises(UnreadableImage):
        decode_image(data[: int(kept * len(data))], COLOUR)


def test_a_truncated_png_of_16_bits_is_unreadable():
    data = deep_png(noise(16, 16, 3).astype(np.uint16) * 257)
    with pytest.raises(UnreadableImage):
        decode_image(data[: len(data) // 2], COLOUR)


def test_a_bit_flipped_in_a_png_is_unreadable():
    data = bytearray(encoded(noise(64, 64, 3)))
    data[len(data) // 2] ^= 16
    with pytest.raises(UnreadableImage):
        decode_image(bytes(data), COLOUR)
