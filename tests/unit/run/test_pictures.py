"""The pictures of a run: from hooks and objectives, made once for each evaluation."""

from __future__ import annotations

import numpy as np

from tests.support.toy import SIZE, StatelessHook, ToyObjective, toy_arrays, toy_network
from trainer.input.batches import EvaluationBatches
from trainer.input.data import Split
from trainer.input.source import ArraySource
from trainer.run.pictures import Evaluated, Pictures
from trainer.step.evaluate import Evaluator
from trainer.step.observe import Observer
from trainer.step.trainer import Trainer


class Painter(StatelessHook):
    """Paint the mean of the observed outputs."""

    observed_examples = 4
    painted = 0

    def observe(self, context):
        return {"outputs": context.outputs}

    def pictures(self, observed):
        self.painted += 1
        return {"probe/mean": np.full((2, 2, 1), 1.0 / (1.0 + np.exp(-observed["outputs"].mean())))}


class Album(ToyObjective):
    """Show the row whose logits are the largest."""

    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        output.collected = {"logits": output.outputs}
        return output

    def pictures(self, collected, examples):
        row = int(collected["logits"].max(-1).argmax())
        return {"album/row": np.clip(examples([row])["inputs"].reshape(1, 6, 1), 0.0, 1.0)}


def pictures_of(hook: Painter) -> tuple[Pictures, dict[str, Evaluated]]:
    inputs, targets = toy_arrays()
    source = ArraySource({"inputs": inputs, "targets": targets}, lambda batch: batch)
    rows = np.arange(SIZE, dtype=np.int64)
    splits = {"validation": Split("validation", source, rows[:24]), "test": Split("test", source, rows[24:])}
    trainer = Trainer([toy_network()], [Album()], [hook], seed=0)
    evaluated = {}
    for name, split in splits.items():
        batches = EvaluationBatches(split, batch_size=16)
        evaluated[name] = Evaluated(split, Evaluator(trainer, batches.batch, batches.count))
    observer = Observer(trainer, splits["validation"], batch_size=16)
    return Pictures(trainer.hooks, trainer.objectives, observer, evaluated), evaluated


def test_pictures_of_hooks_and_objectives_come_together() -> None:
    hook = Painter()
    pictures, evaluated = pictures_of(hook)
    for split, offset in (("validation", 0), ("test", 24)):
        evaluated[split].evaluator.run(1)
        made = pictures(1, split)
        best = offset + int(evaluated[split].evaluator.collected("objective")["logits"].max(-1).argmax())
        expected = np.clip(toy_arrays()[0][best], 0.0, 1.0).reshape(1, 6, 1)
        np.testing.assert_array_equal(made["album/row"], expected)
        assert made["probe/mean"].shape == (2, 2, 1)


def test_who_looks_second_gets_what_was_made_for_the_first() -> None:
    hook = Painter()
    pictures, evaluated = pictures_of(hook)
    evaluated["validation"].evaluator.run(1)
    assert pictures(1, "validation") is pictures(1, "validation")
    assert hook.painted == 1
    pictures(2, "validation")
    assert hook.painted == 2
