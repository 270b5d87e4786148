"""When XLA compiles the step."""

from __future__ import annotations

import keras
import pytest

from tests.support.toy import StatelessHook, toy_network
from trainer.errors import UserError
from trainer.network import Network
from trainer.run.precision import computing_in
from trainer.step.compile import use_xla


def convolutional() -> Network:
    layers = [keras.Input((8, 8, 1)), keras.layers.Conv2D(2, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    return Network("model", keras.Sequential(layers), keras.optimizers.SGD())


def test_modes_on_and_off_are_followed() -> None:
    assert use_xla("on", [convolutional()], [])
    assert not use_xla("off", [toy_network()], [])


def test_auto_keeps_xla_off_convolutions_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: [])
    assert not use_xla("auto", [convolutional()], [])


def test_auto_keeps_xla_off_dense_layers_in_half_precision_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: [])
    assert use_xla("auto", [toy_network()], [])
    with computing_in("bfloat16"):
        network = toy_network()
    assert not use_xla("auto", [network], [])


def test_auto_compiles_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: ["GPU:0"])
    assert use_xla("auto", [convolutional()], [])


def test_hook_that_xla_cannot_compile_keeps_it_off_or_is_named() -> None:
    hook = StatelessHook("numpy_forward")
    hook.supports_xla = False
    with pytest.warns(UserWarning, match="XLA stays off: it cannot compile numpy_forward"):
        assert not use_xla("auto", [toy_network()], [hook])
    with pytest.raises(UserError, match="XLA cannot compile numpy_forward"):
        use_xla("on", [toy_network()], [hook])


def test_nothing_is_said_where_xla_would_have_stayed_off_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: [])
    hook = StatelessHook("numpy_forward")
    hook.supports_xla = False
    assert not use_xla("auto", [convolutional()], [hook])
    assert not use_xla("off", [toy_network()], [hook])
