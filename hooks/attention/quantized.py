"""Gates before quantizers: a sign has no zero, so what a gate drops would come back."""

from __future__ import annotations

import keras

from hooks.attention.place import Place, nodes_in_order
from hooks.quantization.graph_facts import DROPOUTS, SHAPERS, SIGN_KEEPING
from trainer.errors import UserError

ZERO_KEEPING = SIGN_KEEPING | SHAPERS | DROPOUTS | {"Activation", "ReLU", "LeakyReLU", "PReLU", "ELU"}


def refuse_sign_after(place: Place) -> None:
    """Refuse to gate a map of which a sign is taken later, with nothing in between that could move a zero.

    Args:
        place: the map to gate.

    Raises:
        UserError: names the quantizer, after which the gate may stand.
    """
    from hooks.quantization.input_quantizer import InputQuantizer  # a class of Keras: not for a look at options

    dropped = {id(place.features)}
    for node in nodes_in_order(place.model):
        if not any(id(tensor) in dropped for tensor in node.input_tensors):
            continue
        operation = node.operation
        if isinstance(operation, InputQuantizer) and operation.quantizer.is_sign:
            raise UserError(
                f"The gate after '{place.layer}' stands before the quantizer '{operation.name}', for which a dropped "
                f"feature is sign(0) = +1 and not 0. Expected layer={operation.name}, or one with a batch norm between."
            )
        if type(operation).__name__ in ZERO_KEEPING and not isinstance(operation, keras.Model):
            dropped |= {id(tensor) for tensor in node.output_tensors}
