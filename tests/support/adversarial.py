"""What tests of generators and discriminators share."""

import inspect

import keras
import numpy as np

from hookline.recipes.models.gan_mlp import gan_mlp
from hookline.trainer.input.batches import EvaluationBatches, TrainingBatches
from hookline.trainer.recipe import Parts
from hookline.trainer.step.evaluate import Evaluator
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer


def assign_slices(stacked, separate):
    for place, model in enumerate(separate):
        for whole, part in zip(stacked.variables, model.variables, strict=True):
            part.assign(np.reshape(whole.numpy()[place], part.shape))


def parts_of(data, *, model=gan_mlp, optimizer=None, **options):
    if model is gan_mlp:
        options = {"units": [32, 32], **options}

    def build_optimizer(learning_rate=None, updates=1):
        rate = 0.005 if learning_rate is None else learning_rate
        return optimizer(rate) if optimizer else keras.optimizers.Adam(rate, beta_1=0.5)

    def build_model(**injected):
        known = inspect.signature(model).parameters
        taken = injected if "ignored" in known else {name: v for name, v in injected.items() if name in known}
        return model(**taken, **options)

    return Parts(data, build_model, build_optimizer)


def loop_of(recipe, data, *, batch_size, xla=False, seed=0, **options):
    for network in recipe.networks:
        if not network.optimizer.built:
            network.optimizer.build(network.model.trainable_variables)
    trainer = Trainer(recipe.networks, recipe.objectives, [], seed=seed, **options)
    return ChunkLoop(trainer, TrainingBatches(data.train, batch_size=batch_size, seed=seed).batch, xla=xla)


def evaluator_of(recipe, data):
    trainer = Trainer(recipe.networks, recipe.objectives, [], seed=0)
    batches = EvaluationBatches(data.validation, batch_size=24)
    return Evaluator(trainer, batches.batch, batches.count)
