"""The embedded diabetes study: ten measurements per patient, and the progression of the disease after a year."""

from __future__ import annotations

import numpy as np

from hookline.recipes.data.digits import sklearn_table
from hookline.recipes.data.splits import data_of_parts
from hookline.trainer.input.data import ArraySource, Data
from hookline.trainer.input.preparation import Preparation
from hookline.trainer.input.split import split_indices


def diabetes(*, validation: float | int = 0.1, test: float | int = 0.2, seed: int = 0) -> Data:
    """Return the 442 patients of Efron et al., Least Angle Regression, 2004, as distributed with scikit-learn.

    Measurements and targets are standardized by mean and standard deviation of the training rows, so that predicting
    the mean gives a squared error of 1. Targets are float32 [442], not classes.
    """
    inputs, targets = sklearn_table("diabetes_data_raw"), sklearn_table("diabetes_target")
    parts = split_indices(len(targets), {"validation": validation, "test": test}, seed)
    known = [(each, each[parts["train"]]) for each in (inputs, targets)]
    inputs, targets = (((whole - own.mean(axis=0)) / own.std(axis=0)).astype(np.float32) for whole, own in known)
    source = ArraySource({"inputs": inputs, "targets": targets}, lambda batch: batch)
    form = Preparation(inputs.shape[1:], axes="last")
    return data_of_parts("diabetes", {"train": source}, parts, preparation=form, classes=0, class_names=())
