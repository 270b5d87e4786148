"""Random packed networks, built layer by layer, with the arrays that they take."""

import itertools

import numpy as np

from hookline.deploy.inference.bits import encode_order, pack_stream
from hookline.deploy.inference.graph import Encoded, Graph, Op, graph_to_json, parse_graph


def pack_signs(kernel):
    """Return the stream of a kernel's signs, 1 where it is above 0: uint8 [ceil(n / 8)]."""
    return np.packbits(encode_order(kernel) > 0, bitorder="little")


class GraphBuilder:
    """Add operations one after the other; each takes the value of the last one where no inputs are named."""

    def __init__(self, shape, seed=0):
        self.shape, self.ops, self.tensors, self.decoded = shape, [], {}, {}
        self.random = np.random.default_rng(seed)
        self.last = "image"

    def add(self, op, inputs=None, **fields):
        output = f"value_{len(self.ops)}"
        self.ops.append(Op(op, f"{op}_{len(self.ops)}", inputs or (self.last,), output, fields))
        self.last = output
        return output

    def tensor(self, array):
        name = f"tensor_{len(self.tensors)}"
        self.tensors[name] = array
        return name

    def signs(self, shape, *, scaled=False):
        kernel = np.where(self.random.random(shape) < 0.5, np.float32(-1), np.float32(1))
        scale = self.random.uniform(0.5, 2, shape[-1]).astype(np.float32) if scaled else None
        encoded = Encoded("sign", self.tensor(pack_signs(kernel)), shape, None if scale is None else self.tensor(scale))
        self.decoded[encoded.tensor] = kernel if scale is None else kernel * scale
        return encoded

    def codebook(self, shape, bits):
        values = self.random.normal(size=2**bits).astype(np.float32)
        indices = self.random.integers(0, 2**bits, shape)
        stream = self.tensor(pack_stream(encode_order(indices), bits))
        self.decoded[stream] = values[indices]
        return Encoded("codebook", stream, shape, bits=bits, values=self.tensor(values))

    def floats(self, shape, encoding="float32"):
        array = self.random.normal(size=shape).astype(encoding)
        name = self.tensor(array)
        self.decoded[name] = array.astype(np.float32)
        return Encoded(encoding, name, shape)

    def thresholds(self, channels, *, spread=5, descending=True):
        limits = self.random.integers(-spread, spread + 1, channels).astype(np.int16)
        turned = self.tensor(pack_stream(self.random.integers(0, 2, channels), 1)) if descending else None
        return self.add("threshold", thresholds=self.tensor(limits), descending=turned)

    def batch_norm(self, channels):
        scale, shift = (self.random.normal(size=channels).astype(np.float32) for _ in range(2))
        return self.add("scale_shift", scale=self.tensor(scale), shift=self.tensor(shift))

    def graph(self):
        """Return the graph after writing and reading it."""
        made = Graph("net", "image", self.shape, self.last, tuple(self.ops))
        return parse_graph(graph_to_json(made))


def random_mlp(units=(64, 70, 64), inputs=(6, 5, 1), seed=0):
    """Return an MLP with signs everywhere except at its input: thresholds between, a folded batch norm at its end."""
    builder = GraphBuilder(inputs, seed)
    builder.add("flatten")
    width = int(np.prod(inputs))
    builder.add("dense", kernel=builder.signs((width, units[0])))
    builder.batch_norm(units[0])
    builder.add("sign")
    for before, after in itertools.pairwise(units):
        builder.add("dense", kernel=builder.signs((before, after)))
        builder.thresholds(after)
    builder.add("dense", kernel=builder.signs((units[-1], 10)))
    builder.batch_norm(10)
    return builder


def random_cnn(channels=(8, 12, 16), size=18, seed=0):
    builder = GraphBuilder((size, size, 1), seed)
    before, spatial = 1, size
    for number, after in enumerate(channels):
        builder.add("conv2d", kernel=builder.signs((3, 3, before, after)))
        spatial -= 2
        if number < 2:
            builder.add("max_pool2d", pool_size=(2, 2), strides=(2, 2))
            spatial //= 2
        if number == 0:
            builder.batch_norm(after)
            builder.add("sign")
        else:
            builder.thresholds(after)
        before = after
    builder.add("flatten")
    builder.add("dense", kernel=builder.signs((spatial * spatial * before, 64)))
    builder.thresholds(64)
    builder.add("dense", kernel=builder.signs((64, 10)))
    builder.batch_norm(10)
    return builder
