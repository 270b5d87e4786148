"""PyTorch, in a virtual environment of its own: the same networks, eager or compiled, with the fused Adam.

Images lie in memory where the network is, and a batch is taken by its rows. Convolutions have their channels last.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

from hookline.scripts.benchmarks.contender import Done, Settings, Work
from hookline.scripts.benchmarks.training_hookline import (
    BNN,
    CLASSES,
    CNN,
    LEARNING_RATE,
    LENET_5,
    LENET_300_100,
    MASKS_EVERY,
    POWER,
    PRUNED,
    PRUNED_AT,
    Case,
    examples,
)
from hookline.trainer.errors import UserError

EPSILON = 1e-3
"""Of batch norm, as Keras has it."""


def steps(settings: Settings, *, case: Case, compiled: bool, prune: bool = False) -> Work:
    """Return steps of training."""
    torch: Any = importlib.import_module("torch")

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # in TF32 where the GPU can, as TensorFlow does by default
    images, labels = (torch.from_numpy(each).to(device) for each in examples(settings, case.images))
    torch.manual_seed(0)
    model = network(case).to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, eps=1e-7, fused=True)
    after = held_masks(model) if prune else partial(clip, model) if case is BNN else None

    def loss_of(inputs: Any, targets: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(inputs), targets)

    forward = torch.compile(loss_of, dynamic=False) if compiled else loss_of
    order, size = torch.empty(0, dtype=torch.int64, device=device), settings.batch_size

    def work(count: int) -> Done:
        nonlocal order
        total = torch.zeros((), device=device)
        for _ in range(count):
            if len(order) < size:
                order = torch.randperm(len(images), device=device)
            rows, order = order[:size], order[size:]
            loss = forward(images[rows].permute(0, 3, 1, 2), labels[rows])  # the channels stay last in memory
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if after is not None:
                after()
            total += loss.detach()
        return Done(loss=float(total) / count)

    if compiled:  # compile now, or say in one line why that is impossible: it needs a system compiler, for one
        try:
            work(1)
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise UserError(f"torch.compile failed: {type(error).__name__}: {first}") from error
    return work


def network(case: Case) -> Any:
    """Return the network of a case, with weights as Keras draws them."""
    torch: Any = importlib.import_module("torch")

    nn = torch.nn
    if case.model == LENET_300_100.model:
        layers = [nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, CLASSES)]
    elif case.model == LENET_5.model:
        layers = [nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten()]
        layers += [nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, CLASSES)]
    elif case.model == CNN.model:
        layers = _plain_cnn(nn)
    else:
        layers = _larq_cnn()
    for layer in layers:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def _plain_cnn(nn: Any) -> list[Any]:
    layers: list[Any] = []
    for before, filters in pairwise((3, 24, 48, 96, 128)):
        layers.append(nn.Conv2d(before, filters, 3, padding=1, bias=False))
        layers += [nn.BatchNorm2d(filters, eps=EPSILON, momentum=0.1), nn.ReLU(), nn.MaxPool2d(2)]
    return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES)]


def _larq_cnn() -> list[Any]:
    """Return the network of Larq's tutorial: kernels and, but for the first layer, inputs are signs."""
    import torch  # type: ignore[import-not-found,unused-ignore]
    from torch import nn  # type: ignore[import-not-found,unused-ignore]

    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            context.save_for_backward(x)
            return torch.where(x >= 0, 1.0, -1.0)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            (x,) = context.saved_tensors
            return torch.where(x.abs() <= 1, gradient, 0.0)

    class BinaryConv(nn.Conv2d):
        def forward(self, x: Any) -> Any:
            inputs = x if self.in_channels == 1 else Sign.apply(x)
            return nn.functional.conv2d(inputs, Sign.apply(self.weight))

    class BinaryLinear(nn.Linear):
        def forward(self, x: Any) -> Any:
            return nn.functional.linear(Sign.apply(x), Sign.apply(self.weight))

    class Offset(nn.Module):
        """Batch norm without a scale."""

        def __init__(self, norm: Any, channels: int) -> None:
            super().__init__()
            self.norm = norm(channels, eps=EPSILON, momentum=0.01, affine=False)
            self.offset = nn.Parameter(torch.zeros(channels))

        def forward(self, x: Any) -> Any:
            return self.norm(x) + self.offset.view(-1, *[1] * (x.dim() - 2))

    layers: list[Any] = []
    for before, filters, pools in ((1, 32, True), (32, 64, True), (64, 64, False)):
        layers += [BinaryConv(before, filters, 3, bias=False), *([nn.MaxPool2d(2)] if pools else [])]
        layers.append(Offset(nn.BatchNorm2d, filters))
    layers += [nn.Flatten(), BinaryLinear(576, 64, bias=False), Offset(nn.BatchNorm1d, 64)]
    return [*layers, BinaryLinear(64, CLASSES, bias=False), Offset(nn.BatchNorm1d, CLASSES)]


def clip(model: Any) -> None:
    """Keep the latent weights of binary layers in [-1, 1]."""
    torch: Any = importlib.import_module("torch")

    with torch.no_grad():
        torch._foreach_clamp_max_(kernels := _kernels(model), 1.0)
        torch._foreach_clamp_min_(kernels, -1.0)


def held_masks(model: Any) -> Callable[[], None]:
    """Return what puts masked entries of kernels back to 0 after a step, and prunes them on the polynomial schedule."""
    torch: Any = importlib.import_module("torch")
    kernels = _kernels(model)
    masks = [torch.ones_like(kernel) for kernel in kernels]
    step = 0

    def hold() -> None:
        nonlocal step
        with torch.no_grad():
            if step % MASKS_EVERY == 0:
                share = PRUNED * (1 - (1 - min(1.0, step / PRUNED_AT)) ** POWER)
                for kernel, mask in zip(kernels, masks, strict=True):
                    pruned = round(share * kernel.numel())
                    magnitudes = kernel.abs().flatten()
                    threshold = magnitudes.kthvalue(pruned).values if pruned else -1.0
                    mask.copy_(kernel.abs() > threshold)
            step += 1
            torch._foreach_mul_(kernels, masks)

    return hold


def _kernels(model: Any) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.dim() > 1]
