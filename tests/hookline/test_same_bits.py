"""Python and the command line train to the same bits, and the plain model predicts what the trainer does."""

from __future__ import annotations

import numpy as np
import pytest

from hookline.trainer.errors import UserError
from tests.support.door import by_command_line, by_python, held_out, techniques

QUICK = ("bnn_rounding", "prune")
PAIRS = (("bnn_rounding", "prune"), ("center_loss", "ema"), ("clip_gradients", "frozen_mask"))
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def cases() -> list[object]:
    paired = {name for pair in PAIRS for name in pair}
    every = [*((name,) for name in QUICK), (), *PAIRS, *((name,) for name in techniques() if name not in paired)]
    tiers = [()] * len(QUICK) + [pytest.mark.full] * (1 + len(PAIRS))
    tiers += [pytest.mark.long] * (len(every) - len(tiers))
    return [
        pytest.param(each, id="+".join(each) or "none", marks=tier) for each, tier in zip(every, tiers, strict=True)
    ]


@pytest.mark.parametrize("hooks", cases())
def test_digest_is_that_of_the_command_line(hooks, tmp_path) -> None:
    try:
        expected = by_command_line(*hooks, folder=tmp_path)
    except UserError:
        with pytest.raises(UserError):
            by_python(*hooks)
        return
    trainer, history = by_python(*hooks)
    assert history.summary["digest"] == expected["digest"]
    assert history.history["val_accuracy"][-1] == pytest.approx(trainer.evaluate(*held_out())["accuracy"])
    assert history.summary["final"]["loss/total"] == expected["final"]["loss/total"]
    inputs, _ = held_out()
    found = trainer.predict(inputs)
    assert (found.dtype, found.shape) == (np.float32, (40, 3))
    np.testing.assert_allclose(found, np.asarray(trainer.model(inputs)), rtol=0, atol=1e-5)
