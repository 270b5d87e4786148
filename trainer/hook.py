"""The hook interface: a GraphHook may change training, a HostHook watches it and makes requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.objective import Batch, Embedding
from hookline.trainer.step.context import BuildContext, StepContext

if TYPE_CHECKING:
    from hookline.trainer.run.control import Report, Run

Tensors: TypeAlias = "dict[str, tf.Tensor]"
Gradients: TypeAlias = "dict[str, tf.Tensor | None]"
Arrays = dict[str, np.ndarray]
AT = "@"  # between a hook's key and its network in the name of an instance


AnyHook = TypeVar("AnyHook", bound="Hook")


class Hook(ABC):
    """Carry what both kinds of hooks declare.

    Attributes:
        name: unique in a run; set by the builder: the key under `hooks` in the config, and "@<network>" where the hook
            works on several networks.
        before: names of hooks that must come after this one, if present.
        after: names of hooks that must come before this one, if present.
        conflicts: names of hooks that cannot run beside this one.
        priority: 0 (first) to 100 (last) among hooks that the declarations leave unordered.
        given: what the constructor was given, by place and by name.
    """

    name: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    priority: int = 50
    given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keep what the constructor is given, of which one more instance can be made."""
        hook = super().__new__(cls)
        hook.given = (args, kwargs)
        return hook

    @property
    def key(self) -> str:
        """Return the key under `hooks` in the config; the instances of a hook on several networks share it.

        Declarations, options and the names of measures speak of the key, state and draws of the name.
        """
        return self.name.partition(AT)[0]

    def summary(self) -> dict[str, Any]:
        """Return what the hook adds to `summary.json` under its name: JSON values only.

        A list of flat dicts under "layers" is also printed as a table at the end of the run.
        """
        return {}

    def pictures(self, observed: Arrays) -> Arrays:
        """Return pictures to show now, by name: float [height, width, channels] in [0, 1], 1 or 3 channels.

        Args:
            observed: what a graph hook's `observe` returned, over all observed examples; empty for other hooks.
        """
        return {}

    def embeddings(self, observed: Arrays) -> dict[str, Embedding]:
        """Return vectors of examples to show in a projector, by name.

        Args:
            observed: what a graph hook's `observe` returned, over all observed examples; empty for other hooks.
        """
        return {}

    def advise(self, run: Run) -> Sequence[str]:
        """Return lines for the user on what will silently go wrong, judged before training by config and networks.

        Each says what was found, what it costs, in numbers, and which override fixes it. They are shown once, and are
        kept in summary.json. What is certain to fail is not advice but a UserError, raised in `build`.

        Args:
            run: about to begin. Its networks are those that are trained, after every `rebuild_model`.
        """
        return ()

    def distributions(self) -> Arrays:
        """Return arrays whose distribution is to be shown, by name, such as "center/centers"; of any shape."""
        return {}

    def warning(self, values: Mapping[str, float]) -> str | None:
        """Return one line for the user when training metrics show that something goes wrong, else None.

        Args:
            values: of a training report, by name. The first warning of a hook is shown; later ones are not.
        """
        return None


def again(hook: AnyHook) -> AnyHook:
    """Return a new hook of the same arguments, name and binding, not yet built.

    Args:
        hook: perhaps built.
    """
    args, kwargs = hook.given
    new = type(hook)(*args, **kwargs)
    vars(new).update({key: value for key, value in vars(hook).items() if key in ("name", "network", "objective")})
    return new


class GraphHook(Hook):
    """Change training from inside the traced step.

    Every stage but `rebuild_model` and `build` is traced once and must be pure: it takes tensors and returns
    tensors; it prints nothing and touches no file. The stages run in the order in which they are defined here. A stage
    that a hook does not override costs nothing.

    An instance works on one network. `network` may be a pattern, such as "generator_*" or "*": the run then has an
    instance for each network that matches, with state of its own, under the name "<hook>@<network>" where there are
    several. What such instances report has "<network>/" before its name. All networks share the batch: of several
    instances, only the first is asked for `transform_batch`.

    A network is the same everywhere: in each objective that runs it, and in evaluations, which do not distinguish
    objectives. So the stages that define it are called wherever it runs: `rebuild_model`, `request_taps`,
    `transform_batch`, `frozen_entries`, `transform_weights`, `transform_statistics`, `around_forward`. So is `project`,
    which keeps a promise about its variables, after every objective that changes them. The other stages of a step and
    of evaluations, those of training, run within the objectives that change the network: `add_losses`, `evaluate`,
    `transform_gradients`, `transform_state`, `veto`, `update_ops`, `measure`, `collect`, `observe`. Of these objectives
    a hook takes part in those that match `objective`. `state` is thus written by them alone, and read by all.

    Attributes:
        network: name of the network that the hook works on; in a config, or before a run is assembled, a pattern.
        objective: pattern on the names of the objectives that the hook takes part in; `hooks.<name>.objective` in the
            config sets it for any hook.
        reads: state of other hooks that it reads, as "hook/variable"; orders it after them.
        supports_xla: whether XLA can compile what it traces; not so for a hook that calls NumPy.
        observed_examples: how many examples of the validation split `observe` sees for pictures; 0 for none.
    """

    network: str = "model"
    objective: str = "*"
    reads: tuple[str, ...] = ()
    supports_xla: bool = True
    observed_examples: int = 0

    @property
    def scope(self) -> str:
        """Return what stands before the names of all that the hook reports: "<network>/" for an instance of several."""
        return f"{self.network}/" if AT in self.name else ""

    def rebuild_model(self, model: keras.Model) -> keras.Model:
        """Return the model to train: the same variables, perhaps with layers inserted. Runs before `build`."""
        return model

    def request_taps(self, model: keras.Model) -> dict[str, Any]:
        """Return inner Keras tensors of a functional model, by name; their values appear in `context.taps`."""
        return {}

    def build(self, context: BuildContext) -> None:
        """Create state variables and resolve patterns. Runs once, outside the graph."""

    @abstractmethod
    def state(self) -> dict[str, tf.Variable]:
        """Return the hook's variables by name; they are in every checkpoint. An empty dict declares: no state."""

    def writes(self) -> dict[str, tf.Variable]:
        """Return the variables that `update_ops` writes; the audit refuses a run in which nothing writes them."""
        return {}

    def frozen(self) -> set[str]:
        """Return names of the variables that are left alone on purpose.

        Latent variables that get no gradient, and state variables that `transform_state` leaves out.
        """
        return set()

    def projected(self) -> set[str]:
        """Return names of latent variables that `project` may rewrite; shown in the plan."""
        return set()

    def best_from_step(self) -> int:
        """Return the step from which the network has the final form that the hook promises, such as its sparsity.

        Earlier evaluations never count as the best, and early stopping waits for it.
        """
        return 0

    def stored_bits(self, shipped: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the bits per entry of the form in which this hook would store weights, by variable name.

        Other hooks may have changed the weights since. A variable whose shipped values the form cannot hold exactly
        is left out. Where several hooks have a form for a variable, the smallest counts.

        Args:
            shipped: what evaluation uses in place of weights and moving statistics, after every hook, by name.
        """
        return {}

    def weight_bits(self, shipped: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the bits in which this hook's weights can be multiplied, by variable name, if they are not floats.

        They encode the values; scales, and what a sparse form saves, do not count. A variable whose shipped values
        they cannot hold exactly is left out. Where several hooks name a variable, the fewest count.

        Args:
            shipped: as for `stored_bits`.
        """
        return {}

    def input_bits(self) -> dict[str, int]:
        """Return the bits of layer inputs, by the layer's path, where this hook quantizes them."""
        return {}

    def strip_model(self, model: keras.Model) -> keras.Model:
        """Return the model to ship: the same outputs, variables and layers, without what `rebuild_model` put in.

        It holds the shipped weights when it is saved, and must load with nothing but Keras installed.
        """
        return model

    def transform_batch(self, batch: Batch, context: StepContext) -> Batch:
        """Return the batch that training uses. Not called in evaluation."""
        return batch

    def frozen_entries(self, context: StepContext) -> Tensors:
        """Return which entries of the network's variables this hook keeps as they are, by variable name.

        Called in evaluations only. A hook that evaluates with other than the current values, such as averages over
        steps, leaves the entries that any hook holds at their current value: `context.frozen_entries` has them all.

        Returns:
            bool, of the variable's shape or [], True where held; a variable without such entries may be left out.
        """
        return {}

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        """Return the tensors that the forward pass uses in place of the latent variables, under the same names."""
        return weights

    def transform_statistics(self, state: Tensors, context: StepContext) -> Tensors:
        """Return the values of the state variables that the forward pass starts from, under the same names.

        They are the moving statistics and the seed state. In training, the new values of the pass follow from them.
        """
        return state

    def around_forward(self, context: StepContext) -> AbstractContextManager[None]:
        """Return a context in which a forward pass of the network is traced, such as a `gradient_override_map`.

        It is entered once for each forward pass, in evaluation as well.
        """
        return nullcontext()

    def transform_state(self, new_state: Tensors, context: StepContext) -> Tensors:
        """Return the values to write into the state variables (moving statistics, seed state).

        Leaving a name out keeps that variable as it is; the audit wants it to be in `frozen` then.
        """
        return new_state

    def add_losses(self, context: StepContext) -> Tensors:
        """Return losses to add to the objective's, by name; each of shape [batch] or [].

        Those of shape [batch] are multiplied by the sample weights that the data may have.
        With `trainer.accumulation_steps` this is traced for a micro batch, and the stages after it for the whole batch.
        Tensors made here that they need, [batch, ...], go into `context.taps`, never into an attribute.
        """
        return {}

    def evaluate(self, context: StepContext) -> Tensors:
        """Return metrics of an evaluation batch, by name; each of shape [batch] or []. Reported as "metric/<name>"."""
        return {}

    def transform_gradients(self, gradients: Gradients, context: StepContext) -> Gradients:
        """Return the gradients that the optimizer gets, under the same names."""
        return gradients

    def batch_sums(self, context: StepContext) -> Tensors:
        """Return sums over the examples of the batch that `update_ops` needs, by name: float, of fixed shapes.

        If replicas share the batch, each sees a part of it: values that depend on examples must be summed before they
        change state, or the replicas drift apart. Later stages find the sums over the whole batch in `context.sums`, as
        "<hook>/<name>". Values that depend only on weights and gradients are the same on every replica.
        """
        return {}

    def veto(self, context: StepContext) -> Tensors:
        """Return named bool scalars; when one is True, nothing of this step is written and the loop stops.

        With several objectives, a veto in one of them holds back that one and those after it in the step: they would
        train against a network that did not move. Those before it have been written already, since each reads the
        weights as the one before left them.
        """
        return {}

    def update_ops(self, context: StepContext) -> list[tf.Operation | tf.Tensor]:
        """Create and return ops that write this hook's state; they go into UPDATE_OPS and run before the apply."""
        return []

    def project(self, context: StepContext) -> None:
        """Assign latent variables back into their set (mask, clip), after the optimizer, its slots and its EMA."""

    def measure(self, context: StepContext) -> Tensors:
        """Return scalars to report, by name, such as "bnn/flip_ratio". Runs last; sees variables after projection.

        A name begins with that of the hook, or with a namespace of `trainer/run/results.py`.
        """
        return {}

    def collect(self, context: StepContext) -> Tensors:
        """Return tensors [batch, ...] of an evaluation batch to keep over the split for `split_metrics`, by name."""
        return {}

    def split_metrics(self, collected: Tensors) -> Tensors:
        """Return metrics of a whole split that no average over batches gives: scalars, reported as "metric/<name>".

        Traced once and pure.

        Args:
            collected: what `collect` returned, over all examples of the split: [examples, ...] by name.
        """
        return {}

    def observe(self, context: StepContext) -> Tensors:
        """Return tensors [batch, ...] of an evaluation batch for `pictures` and `embeddings`, by name.

        Traced apart from the step, as an evaluation; `observed_examples` says for how many examples.
        """
        return {}


class HostHook(Hook):
    """Watch a run from the edges of its traced chunks, and ask for things through `run.control`.

    A host hook never changes a variable. Stages run in the hooks' order; `on_fit_end` and `on_exception` run for
    every hook even when one of them raises.
    """

    def next_step(self, step: int) -> int | None:
        """Return the next step after `step` at which the loop must pause for this hook; None if it need not."""
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs: JSON values only. An empty dict declares: no state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""

    def on_fit_begin(self, run: Run) -> None:
        """Start: the networks are built, the step is traced and audited, nothing has been trained."""

    def on_resume(self, run: Run) -> None:
        """Continue after `load_state_dict`: before `on_fit_begin` in a resumed run, or after a rollback."""

    def on_veto(self, run: Run) -> None:
        """See which vetoes (`run.vetoes`) held back the step after `run.step`; raise, or ask `run.control.skip_step()`.

        Where no hook asks for that, the run ends.
        """

    def on_chunk_end(self, run: Run, report: Report | None) -> None:
        """See the edge of a chunk; `report` holds the training metrics when a report is due, else None."""

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        """See the metrics of a split ("validation" or "test")."""

    def before_save(self, run: Run) -> None:
        """Prepare for a checkpoint that is about to be written."""

    def on_exception(self, run: Run, error: BaseException) -> None:
        """See the error that ends the run."""

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        """Finish: `summary` is what `summary.json` holds. Close files here."""
