"""Our engine on packed files."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hookline.scripts.benchmarks.contender import Settings, Work


def ours(settings: Settings, *, network: str, kernels: str) -> Work:
    """Return predictions of a packed file, which is written and read first."""
    from hookline.deploy.inference.container import PACKED, container_sizes, write_container
    from hookline.deploy.inference.engine import load_model
    from hookline.deploy.inference.graph import graph_to_json
    from hookline.scripts.benchmarks.inference.networks import MLP, images, packed_cnn, packed_mlp

    packed = packed_mlp() if network == MLP else packed_cnn()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / network
        write_container(path, PACKED, graph_to_json(packed.graph(network)), packed.tensors)
        model, size = load_model(path, kernels), sum(container_sizes(path))
    inputs = images(settings.batch_size)

    def work(count: int) -> None:
        for _ in range(count):
            model(inputs)

    work.facts = {"bytes": size}  # type: ignore[attr-defined]
    return work
