"""Contenders of `what=training`: our runs, the same training in Keras 3, Larq, TFMOT and PyTorch, and the limit."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hookline.scripts.benchmarks import training_hookline as hookline
from hookline.scripts.benchmarks.training_hookline import BINARY, CLASSES, POWER, PRUNED, PRUNED_AT, Case, examples
from hookline.scripts.benchmarks.worker import Prepare, Settings, Work
from hookline.trainer.errors import UserError

if TYPE_CHECKING:
    import keras

KERAS_2 = "tf_keras"
EPSILON = 1e-3
"""Epsilon of batch norm, Keras's default."""


def build(case: Case) -> keras.Model:
    """Return the model of a case, the same as in our own runs."""
    from hookline.recipes.models import lenet
    from hookline.recipes.models.cnn import plain_cnn

    return (plain_cnn if case == hookline.CNN else getattr(lenet, case.model))(case.images, CLASSES)


def fit(settings: Settings, *, case: Case, jit: bool, many: int) -> Work:
    """Return work that trains with Keras 3."""
    options = {"jit_compile": True} if jit else {}
    return _fitted(importlib.import_module("keras"), build(case), settings, case, many, **options)


def larq(settings: Settings, *, case: Case, many: int) -> Work:
    """Return work that trains the network of Larq's MNIST tutorial, without its softmax: the loss takes logits."""
    keras, layer = importlib.import_module(KERAS_2), importlib.import_module("larq").layers
    binary = {"kernel_quantizer": "ste_sign", "kernel_constraint": "weight_clip", "use_bias": False}
    inner = {"input_quantizer": "ste_sign", **binary}
    pool, norm = keras.layers.MaxPooling2D, partial(keras.layers.BatchNormalization, scale=False)
    layers = [layer.QuantConv2D(32, 3, input_shape=(28, 28, 1), **binary), pool(2), norm()]
    layers += [layer.QuantConv2D(64, 3, **inner), pool(2), norm(), layer.QuantConv2D(64, 3, **inner), norm()]
    layers += [
        keras.layers.Flatten(),
        layer.QuantDense(64, **inner),
        norm(),
        layer.QuantDense(CLASSES, **inner),
        norm(),
    ]
    return _fitted(keras, keras.Sequential(layers), settings, case, many)


def tfmot(settings: Settings, *, case: Case, many: int) -> Work:
    """Return work that trains LeNet-5, pruned by TFMOT on a polynomial schedule."""
    keras = importlib.import_module(KERAS_2)
    sparsity = importlib.import_module("tensorflow_model_optimization").sparsity.keras
    conv, pool, dense = keras.layers.Conv2D, keras.layers.MaxPooling2D, keras.layers.Dense
    layers = [conv(20, 5, input_shape=(28, 28, 1)), pool(2), conv(50, 5), pool(2), keras.layers.Flatten()]
    layers += [dense(500, activation="relu"), dense(CLASSES)]
    schedule = sparsity.PolynomialDecay(0.0, PRUNED, 0, PRUNED_AT, power=POWER, frequency=hookline.MASKS_EVERY)
    model = sparsity.prune_low_magnitude(keras.Sequential(layers), pruning_schedule=schedule)
    return _fitted(keras, model, settings, case, many, sparsity.UpdatePruningStep())


def _fitted(keras: Any, model: Any, settings: Settings, case: Case, many: int, *callbacks: Any, **options: Any) -> Work:
    """Return work that calls `fit` of Keras 2 or 3; neither its preparation nor its first execution is timed."""
    import tensorflow as tf

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(hookline.LEARNING_RATE), loss, steps_per_execution=many, **options)
    model.make_train_function()
    execute = model.train_function
    first: list[float] = []  # when the first execution of a call to fit was done

    def timed(iterator: Any) -> Any:
        logs = execute(iterator)
        if not first:
            float(logs["loss"])  # waits for an accelerator
            first.append(time.perf_counter())
        return logs

    model.train_function = timed
    with tf.device("CPU"):
        inputs, targets = map(tf.constant, examples(settings, case.images))
    batch_size = settings.batch_size or case.batch_size
    longest = len(inputs) // batch_size // many
    if longest < 2:
        raise UserError(f"{len(inputs)} images do not fill two executions of {many} steps; give a smaller batch_size.")
    always = {"batch_size": batch_size, "shuffle": True, "verbose": 0, "callbacks": [*callbacks]}

    def work(count: int) -> float:
        left, counted, seconds = max(2, -(-count // many)), 0, 0.0
        while left:
            executions = left if left <= longest else min(longest, left - 2)  # at most an epoch, and never one alone
            left, counted = left - executions, counted + executions - 1
            first.clear()
            model.fit(inputs, targets, steps_per_epoch=executions * many, **always)
            seconds += time.perf_counter() - first[0]
        return seconds * count / (counted * many)

    return work


def pytorch(settings: Settings, *, case: Case, compiled: bool, prune: bool = False) -> Work:
    """Return work that trains with PyTorch, eager or compiled, and the fused Adam."""
    torch: Any = importlib.import_module("torch")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 if the GPU supports it, as by default in TensorFlow
    images, labels = (torch.from_numpy(each).to(device) for each in examples(settings, case.images))
    torch.manual_seed(0)
    model = _network(torch.nn, case).to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=hookline.LEARNING_RATE, eps=1e-7, fused=True)
    kernels = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    after = _pruning(torch, kernels) if prune else partial(_clip, torch, kernels) if case is hookline.BNN else None

    def loss_of(inputs: Any, targets: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(inputs), targets)

    forward = torch.compile(loss_of, dynamic=False) if compiled else loss_of
    order, size = torch.empty(0, dtype=torch.int64, device=device), settings.batch_size or case.batch_size

    def work(count: int) -> None:
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
        float(total)  # waits for a GPU

    try:
        work(1)
    except Exception as error:  # such as no system compiler for torch.compile
        first = str(error).strip().partition("\n")[0]
        raise UserError(f"PyTorch failed: {type(error).__name__}: {first}") from error
    return work


def _network(nn: Any, case: Case) -> Any:
    """Return the network of a case, with weights initialized as in Keras."""
    if case.model == hookline.LENET_300_100.model:
        layers = [nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, CLASSES)]
    elif case.model == hookline.LENET_5.model:
        layers = [nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten()]
        layers += [nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, CLASSES)]
    elif case.model == hookline.CNN.model:
        layers = []
        for before, filters in pairwise((3, 24, 48, 96, 128)):
            layers.append(nn.Conv2d(before, filters, 3, padding=1, bias=False))
            layers += [nn.BatchNorm2d(filters, eps=EPSILON, momentum=0.1), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES)]
    else:
        layers = _larq_layers()
    for layer in layers:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def _larq_layers() -> list[Any]:
    """Return the layers of Larq's tutorial network: kernels and, except in the first layer, inputs are signs."""
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


def _clip(torch: Any, kernels: list[Any]) -> None:
    """Clip the latent weights of binary layers to [-1, 1]."""
    with torch.no_grad():
        torch._foreach_clamp_max_(kernels, 1.0)
        torch._foreach_clamp_min_(kernels, -1.0)


def _pruning(torch: Any, kernels: list[Any]) -> Callable[[], None]:
    """Return a function that zeroes masked entries after a step and updates the masks on the polynomial schedule."""
    masks = [torch.ones_like(kernel) for kernel in kernels]
    step = 0

    def prune() -> None:
        nonlocal step
        with torch.no_grad():
            if step % hookline.MASKS_EVERY == 0:
                share = PRUNED * (1 - (1 - min(1.0, step / PRUNED_AT)) ** POWER)
                for kernel, mask in zip(kernels, masks, strict=True):
                    pruned = round(share * kernel.numel())
                    threshold = kernel.abs().flatten().kthvalue(pruned).values if pruned else -1.0
                    mask.copy_(kernel.abs() > threshold)
            step += 1
            torch._foreach_mul_(kernels, masks)

    return prune


PRUNING = (
    "+hooks=prune",
    f"hooks.prune.final_sparsity={PRUNED}",
    f"hooks.prune.frequency={hookline.MASKS_EVERY}",
    f"hooks.prune.power={POWER}",
)
"""The schedule's default end is halfway, at `PRUNED_AT`."""
TECHNIQUES: dict[str, tuple[str, ...]] = {
    "center_loss": (),
    "bernoulli_attention": (),
    "frozen_mask": (),
    "prune": (),
    "incremental_quantization": (),
    "freeze_layers": ("hooks.freeze_layers.layers=conv_1",),
    "gradient_override": ("hooks.gradient_override.layers=dense_1", "hooks.gradient_override.backward=clip"),
    "ema": (),
}
"""Hooks that work on any network with convolutions, each with the options that it needs to have an effect."""


def _contenders(
    case: Case,
    fits: Mapping[str, Callable[..., Work]],
    overrides: tuple[str, ...] = (),
    *,
    half: bool = False,
    prune: bool = False,
) -> dict[str, Prepare]:
    """Return the contenders of a case by name: our runs, other frameworks, and the limit.

    `fits` are timed with one step per execution and with many; `half` adds our run in bfloat16.
    """
    found: dict[str, Prepare] = {"hookline": partial(hookline.ours, case=case, overrides=overrides)}
    if half:
        in_half = (*overrides, "trainer.precision=bfloat16")
        found["hookline bfloat16"] = partial(hookline.ours, case=case, overrides=in_half)
    for name, fitted in fits.items():
        found[name] = partial(fitted, case=case, many=1)
        found[f"{name} spe {case.many}"] = partial(fitted, case=case, many=case.many)
    found["pytorch"] = partial(pytorch, case=case, compiled=False, prune=prune)
    found["pytorch compile"] = partial(pytorch, case=case, compiled=True, prune=prune)
    forward = () if prune else overrides  # that change the passes
    found["limit"] = partial(hookline.limit, case=case, overrides=forward, xla=False)
    found["limit XLA"] = partial(hookline.limit, case=case, overrides=forward, xla=True)
    return found


KERAS = {"keras fit": partial(fit, jit=False), "keras fit jit": partial(fit, jit=True)}
WITH_HOOKS = {f"hookline {name}": (f"+hooks={name}", *options) for name, options in TECHNIQUES.items()}
CONTENDERS = {
    "training": {
        "lenet_300_100": _contenders(hookline.LENET_300_100, KERAS),
        "lenet_5": _contenders(hookline.LENET_5, KERAS, half=True),
        "cnn": _contenders(hookline.CNN, KERAS, half=True),
        "bnn": _contenders(hookline.BNN, {"larq fit": larq}, BINARY, half=True),
        "pruning": _contenders(hookline.LENET_5, {"tfmot fit": tfmot}, PRUNING, prune=True),
        "hooks": {
            name: partial(hookline.ours, case=hookline.LENET_5, overrides=overrides)
            for name, overrides in {"hookline": (), **WITH_HOOKS}.items()
        },
        "host_hooks": {
            "hookline no host hooks": partial(hookline.whole_epochs, watched=False),
            "hookline all host hooks": partial(hookline.whole_epochs, watched=True),
        },
    }
}
"""Contenders by comparison, case and name."""
