"""Bernoulli attention: a branch predicts an attention map, and draws from it mask features in training."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.attention import options
from hookline.hooks.attention.place import Place, find_place, insert_gated, refuse_sign_after
from hookline.hooks.graphs import write_out
from hookline.hooks.kernels import mark_added
from hookline.hooks.options import epoch_start
from hookline.trainer.errors import UserError, check_choice, check_number
from hookline.trainer.graph import layer_input, layer_output, nodes_in_order
from hookline.trainer.hook import Arrays, Declaration, Evaluated, GraphHook, Tensors
from hookline.trainer.objective import Shown
from hookline.trainer.ops.estimators import uniform_numbers
from hookline.trainer.step.context import BuildContext, StepContext

EXAMPLES = 8
COLLAPSED = 0.02  # a mean of A closer to 0 or 1 has collapsed
DECIDED = 0.01  # bits per position


class BernoulliAttention(GraphHook):
    """Gate a feature map: y = r * x, with r ~ Bernoulli(A) and A = sigmoid(branch / temperature).

    The branch is a small convolutional network, trained and saved with the rest. Hooks that choose kernels, such as
    those that prune or round, never choose its layers; `freeze_layers`, `gradient_override` and `clip_gradients` can.
    Unlike in dropout, y is not divided by A. The paper uses join="concatenate"; the moving statistics of batch norm
    after the gate then cover masked and plain maps.

    With `bnn_rounding` the gate comes after the input quantizer.

    The seed of the draws is a variable of the gate, derived from the run's seed and incremented by every training step.
    If the hook has another name, its reports have that name instead of "attention".

    Group: technique

    Equation:
        A = sigmoid(branch(x) / temperature)        [batch, h, w, 1]
        training:    r ~ Bernoulli(A),  y = r x     one draw per example and position, for all channels
        backward:    dL/dx = r dL/dy,   dL/dA = sum over channels of x dL/dy
        evaluation:  y = A x (expectation), r x (sample), or [A >= 1/2] x (threshold)
        keep_rate:   + weight * KL(Bernoulli(target) || Bernoulli(mean of A)), for each example
        entropy:     + entropy * mean of H(A), in bits
        supervision: + weight * mean of the cross-entropy of A against the map

    Scalars:
        attention/mean: mean of A. Evaluations report this and the next two as metric/attention/...
        attention/entropy: entropy of the draws, in bits per position.
        attention/mass_in_box: share of A inside the target map, if there is one in the batch under the key "map" or
            that of `supervision`.
        attention/keep_rate: share of ones drawn; in training, with mode=bernoulli.
        loss/attention_keep_rate: the weighted penalty, if `keep_rate` is set.
        loss/attention_entropy: weighted, if `entropy` is set.
        loss/attention_supervision: weighted, if `supervision` is set; 0 after its epochs.

    Pictures:
        attention/<layer>: eight examples: input, heat map of A, one draw.

    Cost: The branch and one draw per position: 0.59 of the speed (LeNet-5, batch 100). join=concatenate runs the layers
        after the gate twice.

    Pitfalls:
        tests/trainer/ops/test_estimators.py: a draw has no gradient of its own: without a straight-through estimator
            the branch would never train.
        tests/hooks/test_bernoulli_attention.py: evaluations do not draw, except with eval_mode=sample; hooks that round
            or prune with the pattern "*" leave the branch alone.
        tests/hooks/attention/test_gate.py: one mask for a whole batch, or one draw at tracing time, is a different
            algorithm.
        tests/hooks/attention/test_options.py: the gradient of a squared penalty on the mean of A would vanish where the
            sigmoid saturates; that of the KL divergence does not.

    Reference: Wang et al. 2017, arXiv 1710.11446: Impdrop; Bengio et al. 2013, arXiv 1308.3432, section 4 (gradient of
        the draw).

    Example:
        python train.py recipe=attention hooks.bernoulli_attention.mode=product
        python train.py recipe=baseline model=lenet_5 +hooks=bernoulli_attention data=cluttered
    """

    after = ("bnn_rounding",)  # its input quantizers exist when the gate is inserted

    def __init__(
        self,
        *,
        layer: str | None = None,
        mode: str | None = "bernoulli",
        eval_mode: str = "expectation",
        join: str = "replace",
        branch: str | Mapping[str, Any] | keras.layers.Layer = "auto",
        branch_input: str = "features",
        temperature: float = 1.0,
        keep_rate: str | Mapping[str, Any] | None = "auto",
        entropy: float = 0.0,
        supervision: Mapping[str, Any] | None = None,
        network: str = "model",
    ) -> None:
        """Check the options.

        Args:
            layer: pattern on the path or name of the one layer to gate; None for the input of the second convolution.
            mode: "bernoulli"; "product" for y = A * x without draws; "none" to leave the network unchanged.
            eval_mode: what r is in evaluation: "expectation" (A), "sample" (a draw) or "threshold" (A >= 1/2).
            join: "replace", or "concatenate": layers after the gate run on masked and plain maps with the same weights,
                and the two outputs are concatenated on the last axis.
            branch: "auto"; a dict such as {"filters": [16, 16], "kernel_size": 3, "dilations": [1, 2], "activation":
                "relu", "initial_keep_rate": 0.7}; or a Keras layer from maps to logits [batch, height, width, 1].
            branch_input: "features", the map to gate; or "input", the model's input, resized by area to the map's size.
            temperature: above 0.
            keep_rate: "auto" (a target of 0.5), None, or a dict such as {"target": 0.3, "weight": 0.1}: a penalty on
                each example's mean of A, above and below the target. Without it A may saturate at 1, as on photographs.
            entropy: weight of the mean entropy of A, in bits: above 0 pushes A to 0 or 1, below 0 to 1/2.
            supervision: None, or a dict such as {"key": "map", "weight": 1.0, "epochs": 3}: the cross-entropy of A
                against a map of the batch, resized by area; epochs None for the whole run.
            network: name of the network.
        """
        self.layer = layer
        mode = "none" if mode is None else mode  # null in YAML
        self.mode = check_choice("mode", mode, ("bernoulli", "product", "none"))
        self.eval_mode = check_choice("eval_mode", eval_mode, options.EVAL_MODES)
        self.join = check_choice("join", join, ("replace", "concatenate"))
        self.branch = options.parse_branch(branch)
        self.branch_input = check_choice("branch_input", branch_input, ("features", "input"))
        self.temperature = check_number("temperature", temperature, minimum=0.0, above_minimum=True)
        self.keep_rate = None if keep_rate is None else options.parse(keep_rate, "keep_rate", options.KeepRate)
        self.entropy = check_number("entropy", entropy)
        self.supervision: options.Supervision | None = None
        if supervision is not None:
            self.supervision = options.parse(supervision, "supervision", options.Supervision)
        self.network = network
        self.observed_examples = 0 if self.mode == "none" else EXAMPLES
        self._place: Place | None = None

    @property
    def _prefix(self) -> str:
        return "attention" if self.key == "bernoulli_attention" else self.key

    def rebuild_model(self, model: keras.Model) -> keras.Model:
        if self.mode == "none":
            return model
        from hookline.hooks.attention.gate import AttentionMap, BernoulliGate, branch_logits, make_branch

        self._place = place = find_place(model, self.layer)
        refuse_sign_after(place)
        branch = self.branch
        if isinstance(branch, options.BranchOptions):
            branch = make_branch(branch, temperature=self.temperature, name=self._prefix)
        shape = tuple(place.features.shape)
        logits = branch_logits(branch, self._seen_by_branch(place), (*shape[:3], 1))
        self._map = AttentionMap(temperature=self.temperature, name=f"{self._prefix}_map")
        self._gate = BernoulliGate(mode=self.mode, eval_mode=self.eval_mode, name=f"{self._prefix}_gate")
        gated, _ = self._gate([place.features, self._map(logits)])
        mark_added(branch, self.name)
        self._branch = branch
        return insert_gated(place, gated, join=self.join, name=self._prefix)

    def _seen_by_branch(self, place: Place) -> Any:
        if self.branch_input == "features":
            return place.features
        inputs, (height, width) = place.model.inputs, place.features.shape[1:3]
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or None in (*inputs[0].shape[1:], height, width):
            raise UserError(
                f"branch_input=input received for inputs {[list(each.shape) for each in inputs]}. Expected an image of "
                "fixed size, or branch_input=features."
            )
        from hookline.hooks.attention.gate import AreaResize

        return AreaResize(height, width, name=f"{self._prefix}_input")(inputs[0])

    def strip_model(self, model: keras.Model) -> keras.Model:
        if self.mode == "bernoulli" and self.eval_mode == "sample":
            raise UserError(f"hooks.{self.key}.eval_mode=sample draws at random, which no export does. Set another.")
        from hookline.hooks.attention.gate import OWN

        return write_out(model, OWN)

    def request_taps(self, model: keras.Model) -> dict[str, Any]:
        if self.mode == "none":
            return {}
        (gate,) = (node for node in nodes_in_order(model) if node.operation is self._gate)
        return {
            f"{self.name}/logits": layer_input(model, self._map),
            f"{self.name}/attention": layer_output(model, self._map),
            f"{self.name}/mask": gate.output_tensors[1],
        }

    def build(self, context: BuildContext) -> None:
        epochs = self.supervision.epochs if self.supervision else None
        self._supervised_steps = np.inf if epochs is None else epoch_start(epochs, context.steps_per_epoch)

    def around_forward(self, context: StepContext) -> AbstractContextManager[None]:
        return nullcontext() if self.mode == "none" else self._gate.drawing_for(context.replica)

    def declare(self) -> Declaration:
        return Declaration()

    def add_losses(self, context: StepContext) -> Tensors:
        losses: Tensors = {}
        if self.mode == "none":
            return losses
        logits = self._logits(context)
        if self.keep_rate:
            penalty = options.keep_rate_penalty(logits, target=self.keep_rate.target)
            losses[f"{self._prefix}_keep_rate"] = self.keep_rate.weight * penalty
        if self.entropy:
            losses[f"{self._prefix}_entropy"] = self.entropy * options.mean_entropy(logits)
        if self.supervision:
            wanted = options.given_map(context.batch, self.supervision.key, tuple(logits.shape[1:3]))
            weight = tf.where(tf.cast(context.step, tf.float64) < self._supervised_steps, self.supervision.weight, 0.0)
            entropies = tf.nn.sigmoid_cross_entropy_with_logits(wanted, logits)
            losses[f"{self._prefix}_supervision"] = weight * tf.reduce_mean(entropies, axis=[1, 2, 3])
        return losses

    def _logits(self, context: StepContext) -> tf.Tensor:
        """Return the logits of A, float32 [batch, height, width, 1]."""
        return tf.cast(context.taps[f"{self.name}/logits"], tf.float32) / self.temperature

    def evaluate(self, context: StepContext) -> Evaluated:
        metrics = self._metrics(context)
        return Evaluated(metrics, self._observed(context) if context.observing and metrics else {})

    def _metrics(self, context: StepContext) -> Tensors:
        """Return metrics of A for each example."""
        if self.mode == "none":
            return {}
        attention, logits = tf.cast(context.taps[f"{self.name}/attention"], tf.float32), self._logits(context)
        values = {"mean": tf.reduce_mean(attention, axis=[1, 2, 3]), "entropy": options.mean_entropy(logits)}
        key = self.supervision.key if self.supervision else "map"
        if key in context.batch:
            wanted = options.given_map(context.batch, key, tuple(logits.shape[1:3]))
            inside, whole = (tf.reduce_sum(each, axis=[1, 2, 3]) for each in (attention * wanted, attention))
            values["mass_in_box"] = tf.math.divide_no_nan(inside, whole)
        return {f"{self._prefix}/{name}": value for name, value in values.items()}

    def measure(self, context: StepContext) -> Tensors:
        values = {name: tf.reduce_mean(value) for name, value in self._metrics(context).items()}
        if self.mode == "bernoulli":
            values[f"{self._prefix}/keep_rate"] = tf.reduce_mean(context.taps[f"{self.name}/mask"])
        return values

    def warning(self, values: Mapping[str, float]) -> str | None:
        mean, entropy, kept = (self._reported(values, name) for name in ("mean", "entropy", "keep_rate"))
        at_an_end = not COLLAPSED <= mean <= 1.0 - COLLAPSED
        decided = entropy < DECIDED and not COLLAPSED <= kept <= 1.0 - COLLAPSED
        if not at_an_end and not decided:
            return None
        end = "0: nothing passes the gate" if min(mean, kept) < 0.5 else "1: the gate does nothing"
        target = f"hooks.{self.key}.keep_rate={{target: 0.3}}"
        if self.keep_rate:
            target = f"a keep_rate with a weight above {self.keep_rate.weight:g}"
        return (
            f"attention has collapsed to {end} (mean of A {mean:.3f}, entropy {entropy:.3f} bits). Expected a mean "
            f"between {COLLAPSED:g} and {1.0 - COLLAPSED:g}: set {target}, a lower learning rate, or supervision."
        )

    def _reported(self, values: Mapping[str, float], name: str) -> float:
        """Return one of the hook's scalars from a report, with any prefix of the objective; 1/2 if it is missing."""
        wanted = f"/{self._prefix}/{name}"
        return next((value for key, value in values.items() if f"/{key}".endswith(wanted)), 0.5)

    def _observed(self, context: StepContext) -> Tensors:
        """Return images, A and a draw of A for each example; empty unless exactly one input holds images."""
        attention = tf.cast(context.taps[f"{self.name}/attention"], tf.float32)
        images = [each for each in tf.nest.flatten(context.batch["inputs"]) if each.shape.rank == 4]
        if len(images) != 1:
            return {}
        observed = {"inputs": images[0], "attention": attention[..., 0]}
        if self.mode == "bernoulli":
            seed = context.stateless_seed(f"{self.name}/picture")
            observed["draw"] = tf.cast(uniform_numbers(attention, seed) < attention, tf.float32)[..., 0]
        return observed

    def show(self, observed: Arrays) -> Shown:
        if not observed or self._place is None:
            return Shown()
        sheet = options.attention_sheet(observed["inputs"], observed["attention"], observed.get("draw"))
        return Shown({f"{self._prefix}/{self._place.layer}": sheet})

    def summary(self) -> dict[str, Any]:
        if self._place is None:
            return {"mode": self.mode}
        return {
            "mode": self.mode,
            "eval_mode": self.eval_mode,
            "join": self.join,
            "layer": self._place.layer,
            "map": list(self._place.features.shape[1:]),
            "branch_input": self.branch_input,
            "branch_entries": self._branch.count_params(),
        }
