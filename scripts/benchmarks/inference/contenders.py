"""Who takes part in `what=inference`, one thread each."""

from __future__ import annotations

from functools import partial

from hookline.scripts.benchmarks.contender import TENSORFLOW, Contender
from hookline.scripts.benchmarks.inference.hookline import ours
from hookline.scripts.benchmarks.inference.others import litert, onnx_runtime, tensorflow

WHAT = "inference"
NETWORKS = ("mlp", "cnn")

CONTENDERS = tuple(
    Contender(
        WHAT,
        network,
        name,
        partial(prepare, network=network),
        baseline=name.startswith("tensorflow"),
        batch_size=1,
        imports="" if name.startswith("hookline") else TENSORFLOW,
        threads=1,
    )
    for network in NETWORKS
    for name, prepare in (
        ("hookline packed, numpy", partial(ours, kernels="numpy")),
        ("hookline packed, numba", partial(ours, kernels="numba")),
        ("tensorflow float32", tensorflow),
        ("onnx runtime float32", onnx_runtime),
        ("litert float32", partial(litert, int8=False)),
        ("litert int8", partial(litert, int8=True)),
    )
)
