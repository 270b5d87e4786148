"""When XLA compiles the step."""

from __future__ import annotations

import pytest

from tests.support.toy import StatelessHook
from trainer.errors import UserError
from trainer.step.compile import use_xla


@pytest.fixture(params=[[], ["GPU:0"]], ids=["cpu", "gpu"])
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: request.param)
    found: list[str] = request.param
    return found


def test_modes_on_and_off_are_followed(gpus: list[str]) -> None:
    assert use_xla("on", [])
    assert not use_xla("off", [])


def test_auto_compiles_on_a_gpu_only(gpus: list[str]) -> None:
    assert use_xla("auto", [StatelessHook("toy")]) == bool(gpus)


@pytest.mark.parametrize("gpus", [["GPU:0"]], indirect=True)
def test_hook_that_xla_cannot_compile_keeps_it_off_or_is_named(gpus: list[str]) -> None:
    hook = StatelessHook("numpy_forward")
    hook.supports_xla = False
    with pytest.warns(UserWarning, match="XLA stays off: it cannot compile numpy_forward"):
        assert not use_xla("auto", [hook])
    with pytest.raises(UserError, match="XLA cannot compile numpy_forward"):
        use_xla("on", [hook])


@pytest.mark.parametrize("gpus", [[]], indirect=True)
def test_nothing_is_said_where_xla_would_have_stayed_off_anyway(gpus: list[str]) -> None:
    hook = StatelessHook("numpy_forward")
    hook.supports_xla = False
    assert not use_xla("auto", [hook])
    assert not use_xla("off", [hook])
