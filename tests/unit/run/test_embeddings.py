"""The embeddings of a run: of hooks from what they observe, of objectives from what they collect."""

from __future__ import annotations

import numpy as np

from tests.support.toy import SIZE, StatelessHook, ToyObjective, toy_arrays, toy_network
from trainer.embedding import Embedding
from trainer.input.batches import EvaluationBatches
from trainer.input.data import Split
from trainer.input.source import ArraySource
from trainer.run.embeddings import Embeddings
from trainer.run.pictures import Evaluated
from trainer.step.evaluate import Evaluator
from trainer.step.observe import Observer
from trainer.step.trainer import Trainer


class Mapper(StatelessHook):
    """Give the observed outputs."""

    observed_examples = 4

    def observe(self, context):
        return {"outputs": context.outputs}

    def embeddings(self, observed):
        return {"probe": Embedding(observed["outputs"])}


class Atlas(ToyObjective):
    """Give the logits of a whole split with the inputs as labels."""

    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        output.collected = {"logits": output.outputs}
        return output

    def embeddings(self, collected, examples):
        inputs = examples(range(len(collected["logits"])))["inputs"]
        return {"atlas": Embedding(collected["logits"], {"first": inputs[:, 0]})}


def test_hooks_give_what_they_observe_and_objectives_the_split_that_was_evaluated() -> None:
    inputs, targets = toy_arrays()
    source = ArraySource({"inputs": inputs, "targets": targets}, lambda batch: batch)
    rows = np.arange(SIZE, dtype=np.int64)
    splits = {"validation": Split("validation", source, rows[:24]), "test": Split("test", source, rows[24:])}
    network = toy_network()
    trainer = Trainer([network], [Atlas()], [Mapper()], seed=0)
    evaluated = {}
    for name, split in splits.items():
        batches = EvaluationBatches(split, batch_size=16)
        evaluated[name] = Evaluated(split, Evaluator(trainer, batches.batch, batches.count))
        evaluated[name].evaluator.run(1)
    observer = Observer(trainer, splits["validation"], batch_size=16)
    embeddings = Embeddings(trainer.hooks, trainer.objectives, observer, evaluated)
    logits = network.model.predict(inputs, verbose=0)
    for name, rows_of_split in (("validation", rows[:24]), ("test", rows[24:])):
        found = embeddings(1, name)
        assert found.keys() == {"probe", "atlas"}
        np.testing.assert_allclose(found["atlas"].vectors, logits[rows_of_split], atol=1e-5)
        np.testing.assert_array_equal(found["atlas"].labels["first"], inputs[rows_of_split, 0])
        np.testing.assert_allclose(found["probe"].vectors, logits[[0, 8, 15, 23]], atol=1e-5)


def test_who_has_no_embeddings_gives_none() -> None:
    assert StatelessHook().embeddings({}) == {}
    assert ToyObjective().embeddings({}, lambda positions: {}) == {}
