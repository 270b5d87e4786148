"""Encodings of kernels: the smallest exact one, unless half precision is requested."""

import numpy as np

from hookline.deploy.arrays import Node, encode, encode_floats, encode_nodes
from hookline.deploy.inference.bits import NUMPY_BACKEND
from hookline.deploy.inference.graph import Context, Op


def stored(kernel: np.ndarray) -> tuple[str, int | None, int]:
    """Return a kernel's encoding, the bits per index, and its bytes, after checking that it decodes exactly."""
    encoded, tensors = encode("k", kernel)
    context = Context(Op("dense", "k", (), ""), (), tensors, NUMPY_BACKEND)
    np.testing.assert_array_equal(context.decode(encoded), kernel)
    return encoded.encoding, encoded.bits, sum(each.nbytes for each in tensors.values())


def test_kernel_gets_smallest_exact_encoding():
    for count, encoding, bits in ((3, "codebook", 2), (17, "codebook", 5), (256, "codebook", 8), (257, "float32", 32)):
        kernel = np.resize(np.arange(count, dtype=np.float32), (64, 65))
        size = -(-64 * 65 * bits // 8) + (4 * count if encoding == "codebook" else 0)
        assert stored(kernel) == (encoding, bits if encoding == "codebook" else None, size)
    assert stored(np.random.default_rng(0).normal(size=(1, 12)).astype(np.float32))[0] == "float32"  # one per channel
    assert stored(np.eye(20, dtype=np.float32))[:2] == ("codebook", 1)
    stored(np.zeros((3, 4), np.float32))
    scaled = np.arange(1, 81).reshape(40, 2) * np.where(np.eye(3) > 0, 1, -1)[..., None, None]  # signs, with 80 scales
    node = Node(Op("depthwise_conv2d", "k", (), ""), {"kernel": scaled})
    assert encode_nodes([node], half=False)[2] == [("k", "kernel", 720, "sign", 1, 720 // 8 + 80 * 4)]


def test_half_precision_rounds_only_kernels_without_smaller_exact_form():
    floats = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
    encoded, tensors = encode("k", floats, half=True)
    assert encoded.encoding == tensors["k"].dtype == "float16"
    np.testing.assert_array_equal(tensors["k"], floats.astype(np.float16))
    assert encode("k", np.sign(floats), half=True)[0].encoding == "sign"
    assert encode_floats("k", floats[0])[1]["k"].dtype == np.float32
