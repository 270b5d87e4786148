"""The hook interface: a GraphHook may change training, a HostHook watches it and makes requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.objective import Shown
from hookline.trainer.step.context import BuildContext, StepContext

if TYPE_CHECKING:
    from hookline.trainer.run.control import Report
    from hookline.trainer.run.run import Run

Tensors: TypeAlias = "dict[str, tf.Tensor]"
Gradients: TypeAlias = "dict[str, tf.Tensor | None]"
Arrays = dict[str, np.ndarray]
AT = "@"  # between a hook's key and its network in the name of an instance

RENAMED: dict[str, dict[str, str]] = {
    "Hook": dict.fromkeys(("pictures", "embeddings", "distributions"), "show"),
    "GraphHook": {
        **dict.fromkeys(("state", "writes", "frozen", "projected", "best_from_step"), "declare"),
        **dict.fromkeys(("stored_bits", "weight_bits", "input_bits"), "shipped_bits"),
        **dict.fromkeys(("collect", "split_metrics", "observe"), "evaluate"),
        "transform_statistics": "transform_weights, which may add statistics in an evaluation",
        "transform_batch": "an augmentation",
    },
    "HostHook": {
        "before_save": "state_dict",
        "on_resume": "on_fit_begin, where run.from_checkpoint says so",
        "on_exception": "on_fit_end, where run.error says so",
    },
}
"""Methods of earlier versions, by interface, and what takes their place. A hook that has one would be ignored there."""


@dataclass(frozen=True)
class Declaration:
    """Say what a built graph hook holds, writes, leaves alone and promises.

    Attributes:
        state: its variables by name; they are in every checkpoint.
        writes: the variables that `update_ops` writes; the audit refuses a run in which nothing writes them.
        frozen: names of the network's variables that are left alone on purpose: latent ones that get no gradient, and
            state variables that `transform_state` leaves out.
        projected: names of latent variables that `project` may rewrite; shown in the plan.
        rounded: names of latent variables that the hook rounds, and no hook after it; `BuildContext` names them there.
        best_from_step: the step from which the network has the final form that the hook promises, such as its sparsity.
            Earlier evaluations never count as the best, and early stopping waits for it.
        outside: digests of what the hook uses and no checkpoint holds, such as another network, by what it is called in
            an error. A run continues with the same alone.
    """

    state: Mapping[str, tf.Variable] = field(default_factory=dict)
    writes: Mapping[str, tf.Variable] = field(default_factory=dict)
    frozen: Collection[str] = ()
    projected: Collection[str] = ()
    rounded: Collection[str] = ()
    best_from_step: int = 0
    outside: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bits:
    """Say in how many bits a hook's forms hold what is shipped. What a form cannot hold exactly is left out.

    Where several hooks name a variable or a layer, the fewest bits count.

    Attributes:
        stored: bits per entry of the form in which weights would be stored, by variable name.
        weights: bits in which weights can be multiplied, by variable name, if they are not floats. They encode the
            values; scales, and what a sparse form saves, do not count.
        inputs: bits of the inputs of layers, by the layer's path, where the hook quantizes them.
    """

    stored: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluated:
    """Hold what a hook makes of an evaluation batch.

    Attributes:
        metrics: by name, each of shape [batch] or []; reported as "metric/<name>", averaged over the split.
        collected: tensors [batch, ...] by name to keep over all examples.
        split_metrics: returns metrics that no average over batches gives, scalars by name, of what was collected:
            [examples, ...] by name. Traced once and pure.
    """

    metrics: Tensors = field(default_factory=dict)
    collected: Tensors = field(default_factory=dict)
    split_metrics: Callable[[Tensors], Tensors] | None = None


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
        _refuse_renamed(cls)
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

    def show(self, observed: Arrays) -> Shown:
        """Return pictures, embeddings of examples and distributions to show now.

        Args:
            observed: what a graph hook's `evaluate` collected over all observed examples; empty for other hooks, and
                where distributions alone are asked for.
        """
        return Shown()

    def advise(self, run: Run) -> Sequence[str]:
        """Return lines for the user on what will silently go wrong, judged before training by config and networks.

        Each says what was found, what it costs, in numbers, and which override fixes it. They are shown once, and are
        kept in summary.json. What is certain to fail is not advice but a UserError, raised in `build`.

        Args:
            run: about to begin. Its networks are those that are trained, after every `rebuild_model`.
        """
        return ()

    def warning(self, values: Mapping[str, float]) -> str | None:
        """Return one line for the user when training metrics show that something goes wrong, else None.

        Args:
            values: of a training report, by name. The first warning of a hook is shown; later ones are not.
        """
        return None


def _refuse_renamed(hook_class: type[Hook]) -> None:
    old = {name: new for kind in hook_class.__mro__ for name, new in RENAMED.get(kind.__name__, {}).items()}
    for kind in hook_class.__mro__:
        if found := next((name for name, each in vars(kind).items() if name in old and callable(each)), None):
            raise UserError(f"The hook {kind.__name__} has a method '{found}'. Expected {old[found]} in its place.")


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
    several. What such instances report has "<network>/" before its name.

    A network is the same everywhere: in each objective that runs it, and in evaluations, which do not distinguish
    objectives. So the stages that define it are called wherever it runs: `rebuild_model`, `request_taps`,
    `frozen_entries`, `transform_weights`, `around_forward`. So is `project`, which keeps a promise about its variables,
    after every objective that changes them. The other stages of a step and of evaluations, those of training, run
    within the objectives that change the network: `add_losses`, `evaluate`, `gradient_point`, `transform_gradients`,
    `transform_state`, `veto`, `update_ops`, `measure`. Of these objectives a hook takes part in those that match
    `objective`. Its state is thus written by them alone, and read by all.

    Attributes:
        network: name of the network that the hook works on; in a config, or before a run is assembled, a pattern.
        objective: pattern on the names of the objectives that the hook takes part in; `hooks.<name>.objective` in the
            config sets it for any hook.
        reads: state of other hooks that it reads, as "hook/variable"; orders it after them.
        supports_xla: whether XLA can compile what it traces; not so for a hook that calls NumPy.
        observed_examples: of how many examples of the validation split `show` gets what `evaluate` collects, with
            `context.observing` set; 0 for none.
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
    def declare(self) -> Declaration:
        """Return what the hook holds, writes, leaves alone and promises; `Declaration()` declares: no state."""

    def shipped_bits(self, shipped: Mapping[str, np.ndarray]) -> Bits:
        """Return in how many bits the hook's forms hold weights and inputs; other hooks may have changed them since.

        Args:
            shipped: what evaluation uses in place of weights and moving statistics, after every hook, by name.
        """
        return Bits()

    def strip_model(self, model: keras.Model) -> keras.Model:
        """Return the model to ship: the same outputs, variables and layers, without what `rebuild_model` put in.

        It holds the shipped weights when it is saved, and must load with nothing but Keras installed.
        """
        return model

    def frozen_entries(self, context: StepContext) -> Tensors:
        """Return which entries of the network's variables this hook keeps as they are, by variable name.

        Called in evaluations only. A hook that evaluates with other than the current values, such as averages over
        steps, leaves the entries that any hook holds at their current value: `context.frozen_entries` has them all.

        Returns:
            bool, of the variable's shape or [], True where held; a variable without such entries may be left out.
        """
        return {}

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        """Return the tensors that the forward pass uses in place of the latent variables, under the same names.

        In an evaluation, values of state variables may be added by name, such as averages of moving statistics.
        """
        return weights

    def around_forward(self, context: StepContext) -> AbstractContextManager[None]:
        """Return a context in which a forward pass of the network is traced, such as a `gradient_override_map`.

        It is entered once for each forward pass, in evaluation as well.
        """
        return nullcontext()

    def transform_state(self, new_state: Tensors, context: StepContext) -> Tensors:
        """Return the values to write into the state variables (moving statistics, seed state).

        Leaving a name out keeps that variable as it is; the audit wants it to be declared `frozen` then.
        """
        return new_state

    def add_losses(self, context: StepContext) -> Tensors:
        """Return losses to add to the objective's, by name; each of shape [batch] or [].

        Those of shape [batch] are multiplied by the sample weights that the data may have.
        With `trainer.accumulation_steps` this is traced for a micro batch, and the stages after it for the whole batch.
        Tensors made here that they need, [batch, ...], go into `context.taps`, never into an attribute.
        """
        return {}

    def evaluate(self, context: StepContext) -> Evaluated:
        """Return metrics of an evaluation batch, and what to keep of it for metrics of the split, or for `show`."""
        return Evaluated()

    def gradient_point(self, latent: Tensors, context: StepContext) -> Tensors:
        """Return the values of the latent variables at which the gradients are taken, under the same names.

        `context.gradients` are those at the variables' own values. Where a hook overrides this, a second forward and
        backward pass gives the gradients of the step: on the same batch with the same draws, at these values. All else
        is that of the first pass: losses, metrics, moving statistics, and what hooks see in later stages.
        """
        return latent

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


class HostHook(Hook):
    """Watch a run from the edges of its traced chunks, and ask for things through `run.control`.

    A host hook never changes a variable. Stages run in the hooks' order; `on_fit_end` runs for every hook even when
    one of them raises.
    """

    def next_step(self, step: int) -> int | None:
        """Return the next step after `step` at which the loop must pause for this hook; None if it need not."""
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs: JSON values only. An empty dict declares: no state.

        Asked for when a checkpoint is about to be written: what a resumed run must find on disk is written here.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""

    def on_fit_begin(self, run: Run) -> None:
        """Start: the networks are built, the step is traced and audited.

        Nothing has been trained, or `run.from_checkpoint` is set: a resumed run, or after a rollback.
        """

    def on_veto(self, run: Run) -> None:
        """See which vetoes (`run.vetoes`) held back the step after `run.step`; raise, or ask `run.control.skip_step()`.

        Where no hook asks for that, the run ends.
        """

    def on_chunk_end(self, run: Run, report: Report | None) -> None:
        """See the edge of a chunk; `report` holds the training metrics when a report is due, else None."""

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        """See the metrics of a split ("validation" or "test")."""

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        """Finish, also after `run.error`: `summary` is what `summary.json` holds. Close files here."""
