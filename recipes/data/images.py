"""Image files: the supported formats, and how they are decoded."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from hookline.trainer.errors import UserError, check_choice, is_whole_number
from hookline.trainer.input.preparation import FITS, PIXEL_PEAK, Preparation, pixel_preparation

KINDS = ("JPEG", "PNG", "BMP", "GIF")  # Pillow's names; no other formats are opened
FORMATS = "JPEG, PNG, BMP or GIF"
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"GIF8")
SIGNATURE_BYTES = 8


class UnreadableImage(Exception):  # noqa: N818 - it is the file that is wrong
    """Raised if bytes are not a complete image; the message gives the reason."""


def check_beginning(data: bytes) -> None:
    """Check that a file begins like a supported image format, whatever its name."""
    if not data.startswith(SIGNATURES):
        raise UnreadableImage(f"it begins with {data[:SIGNATURE_BYTES]!r}" if data else "it is empty")


def described(name: str, reason: object) -> str:
    """Return a clause that describes why an image cannot be read."""
    plain = re.sub(r"\{\{.*?\}\}|\[Op:.*| <_io[^>]*>", "", " ".join(str(reason).split())).strip(" .")[:160]
    return f"'{name}' cannot be read as an image ({plain})"


def image_form(image_size: Any, fit: Any, channels: Any) -> Preparation:
    """Return the form of all images; fit "crop" keeps the middle, "stretch" changes the proportions instead."""
    height, width = sides_of(image_size)
    check_choice("data.fit", fit, FITS)
    if channels not in (1, 3):
        raise UserError(f"data.channels={channels!r} received. Expected 3 for color or 1 for gray.")
    return pixel_preparation((height, width, channels), PIXEL_PEAK, fit=fit)


def sides_of(image_size: Any) -> tuple[int, int]:
    """Return height and width."""
    sides = list(image_size) if isinstance(image_size, list | tuple) else [image_size] * 2
    if len(sides) != 2 or not all(is_whole_number(side) and side > 0 for side in sides):
        raise UserError(f"data.image_size={image_size!r} received. Expected a number of pixels, or [height, width].")
    return sides[0], sides[1]


DEPTH_BYTE = 24  # position of a PNG file's bit depth (PNG specification, 11.2.1)
ORIENTATION = 0x0112  # tag of the camera's orientation (EXIF 2.3, 4.6.4)
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_image(data: bytes, form: Preparation) -> np.ndarray:
    """Return the pixels of an image file, uint8 of the form's shape.

    Only the first frame of an animation is used. Transparency is dropped, palettes and CMYK are converted to RGB, and
    16-bit values are scaled to 8 bits. The EXIF orientation is applied.
    """
    check_beginning(data)
    try:
        with Image.open(io.BytesIO(data), formats=KINDS) as image:
            deep = image.format == "PNG" and data[DEPTH_BYTE] == 16
            return _fitted(_of_16_bits(data) if deep else image, form, _orientation(image))
    except Exception as error:  # Pillow may raise anything for a damaged file
        raise UnreadableImage(str(error) or type(error).__name__) from error


def fit_pixels(pixels: np.ndarray, form: Preparation) -> np.ndarray:
    """Return decoded pixels, fitted to the form."""
    return _fitted(_image(pixels), form, 1)


def covering(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return an image, uint8 [height, width, 1 or 3], resized to cover a size and center-cropped to it."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
        raise UserError(f"inputs {pixels.dtype} {list(pixels.shape)} with data.image_size. Expected uint8 images.")
    fitted = np.asarray(ImageOps.fit(_image(pixels), (size[1], size[0]), Image.Resampling.BILINEAR))
    return fitted[..., None] if pixels.shape[2] == 1 else fitted


def _fitted(image: Image.Image, form: Preparation, orientation: int) -> np.ndarray:
    on_its_side = orientation in (5, 6, 7, 8)
    height, width, channels = form.shape
    size = (height, width) if on_its_side else (width, height)
    _decode_smaller(image, size, form.fit)
    image.load()
    image.info.pop("transparency", None)
    if image.mode == "P":
        image = image.convert("RGB")
    box = _kept(image.size, size, form.fit)
    if box != (0, 0, *image.size):
        image = image.crop(box)
    mode = "RGB" if channels == 3 else "L"
    if image.mode != mode:
        image = image.convert(mode)
    if image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    if orientation in TURNS:
        image = image.transpose(TURNS[orientation])
    return np.asarray(image).reshape(form.shape)


def _decode_smaller(image: Image.Image, size: tuple[int, int], fit: str) -> None:
    """Make Pillow decode a JPEG at 1/2, 1/4 or 1/8 of its size, if the kept part stays large enough."""
    left, top, right, bottom = _kept(image.size, size, fit)
    width, height = right - left, bottom - top
    if width >= 2 * size[0] and height >= 2 * size[1]:
        image.draft(None, (-(-image.width * size[0] // width), -(-image.height * size[1] // height)))


def _kept(size: tuple[int, int], wanted: tuple[int, int], fit: str) -> tuple[int, int, int, int]:
    """Return the kept part of an image as left, top, right, bottom; "crop" keeps the largest centered part."""
    if fit == "stretch":
        return (0, 0, *size)
    share = min(size[0] / wanted[0], size[1] / wanted[1])
    width, height = (min(max(round(each * share), 1), extent) for each, extent in zip(wanted, size, strict=True))
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return (left, top, left + width, top + height)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of an image, 1 if it is missing or unreadable."""
    if "exif" not in image.info:
        return 1
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # noqa: BLE001 - a damaged note does not damage the picture
        return 1


def _of_16_bits(data: bytes) -> Image.Image:
    """Return a 16-bit PNG with 8 bits per value, rounded to nearest; Pillow and TensorFlow would truncate."""
    import tensorflow as tf  # only here: Pillow truncates 16-bit colors to 8. Other images are read without it.

    with tf.init_scope(), tf.device("CPU:0"):
        values = tf.io.decode_png(data, dtype=tf.uint16).numpy()
    return _image(((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8))


def _image(pixels: np.ndarray) -> Image.Image:
    color = pixels.shape[2] >= 3
    return Image.fromarray(np.ascontiguousarray(pixels[..., :3] if color else pixels[..., 0]))
