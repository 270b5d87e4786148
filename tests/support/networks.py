"""What a network holds, to compare before and after."""

import numpy as np

from hookline.trainer.run.checkpoint_files import tensors_digest


def snapshot(network):
    """Return copies of a network's variables by name, and of its optimizer's as "optimizer/<name>"."""
    optimizer = {f"optimizer/{name}": variable for name, variable in network.optimizer_variables.items()}
    return {name: np.array(variable.value.numpy()) for name, variable in {**network.variables, **optimizer}.items()}


def fingerprint(network):
    """Return a digest of all that a network holds: equal as long as no byte of it has changed."""
    return tensors_digest(snapshot(network))
