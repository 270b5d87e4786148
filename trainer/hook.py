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

from hookline.trainer.config.build import parameters_of
from hookline.trainer.config.schema import describe, fits
from hookline.trainer.errors import UserError
from hookline.trainer.objective import Shown
from hookline.trainer.step.context import BuildContext, StepContext

if TYPE_CHECKING:
    from hookline.trainer.run.control import Report as Report
    from hookline.trainer.run.run import Run as Run
else:
    Run = Report = Any  # for annotations, here and in hooks: these modules import this one

Tensors: TypeAlias = "dict[str, tf.Tensor]"
Gradients: TypeAlias = "dict[str, tf.Tensor | None]"
Arrays = dict[str, np.ndarray]
AT = "@"  # between a hook's key and its network in the name of an instance


@dataclass(frozen=True)
class Declaration:
    """Declare the state of a built graph hook, and the variables that it writes, freezes, projects or rounds.

    Attributes:
        state: its variables by name, saved in every checkpoint. A run is refused if the hook writes others.
        writes: the variables that `update_ops` writes; the audit refuses a run in which nothing writes them.
        frozen: names of variables of the network that intentionally stay constant: latent variables without a gradient,
            and state variables that `transform_state` leaves out.
        projected: names of latent variables that `project` may rewrite; shown in the plan.
        rounded: names of latent variables that the hook rounds. Later hooks find them in `BuildContext`; a hook that
            also rounds them is refused unless declarations, such as its `after`, order the two.
        best_from_step: the step from which the network has its final form, such as the final sparsity. Earlier
            evaluations never count as the best, and early stopping waits for it.
        outside: digests of data outside the checkpoints, such as a teacher network, by the argument that locates it. A
            run resumes only with the same data, which may have moved: resume=<run> hooks.<hook>.<argument>=<path>.
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
    """Hold the bit widths that represent shipped weights and inputs exactly; of several hooks, the smallest is used.

    Attributes:
        stored: bits per entry of stored weights, by variable name.
        weights: bits of weights in multiplications, by variable name, if they are not floats; without scales and the
            savings of a sparse format.
        inputs: bits of the inputs of layers that the hook quantizes, by the layer's path.
    """

    stored: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluated:
    """Hold the results of a hook for an evaluation batch.

    Attributes:
        metrics: by name, each of shape [batch] or []; reported as "metric/<name>", averaged over the split.
        collected: tensors [batch, ...] by name to keep over all examples.
        split_metrics: takes all collected tensors, [examples, ...] by name, and returns metrics that are not averages
            over batches, scalars by name. Traced once; must be pure.
    """

    metrics: Tensors = field(default_factory=dict)
    collected: Tensors = field(default_factory=dict)
    split_metrics: Callable[[Tensors], Tensors] | None = None


AnyHook = TypeVar("AnyHook", bound="Hook")


class Hook(ABC):
    """Define the interface shared by both kinds of hooks.

    Attributes:
        name: unique in a run; set by the builder: the key under `hooks` in the config, plus "@<network>" if the hook
            works on several networks.
        before: names of hooks that must come after this one, if present.
        after: names of hooks that must come before this one, if present.
        conflicts: names of hooks that cannot run together with this one.
        priority: 0 (first) to 100 (last) among hooks that the declarations leave unordered. Hooks of equal priority are
            ordered by name.
        given: the constructor's arguments, positional and by name.
    """

    name: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    priority: int = 50
    given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Check keyword arguments against the constructor's annotations; keep all arguments for further instances."""
        parameters, _ = parameters_of(cls)
        for name, value in kwargs.items():
            plain = value.item() if isinstance(value, np.generic) else value
            if name in parameters and not fits(plain, parameters[name].annotation):
                expected = describe(parameters[name].annotation)
                raise UserError(f"{name}={value!r} received for {cls.__name__}. Expected {expected}.")
        hook = super().__new__(cls)
        hook.given = (args, kwargs)
        return hook

    @property
    def key(self) -> str:
        """Return the key under `hooks` in the config, which the instances of a hook on several networks share.

        Declarations, options and the names of measures use the key; state and random draws use the name.
        """
        return self.name.partition(AT)[0]

    def summary(self) -> dict[str, Any]:
        """Return the entries of `summary.json` under the hook's name: JSON values only.

        A list of flat dicts under "layers" is also printed as a table at the end of the run.
        """
        return {}

    def show(self, observed: Arrays) -> Shown:
        """Return pictures, embeddings of examples and distributions to display.

        Args:
            observed: the tensors that a graph hook's `evaluate` collected over all observed examples; empty for other
                hooks, and if only distributions are needed.
        """
        return Shown()

    def advise(self, run: Run) -> Sequence[str]:
        """Return warnings, before training, about settings that would spoil it without an error.

        Each is one line with the finding, its cost in numbers, and the override that fixes it; it is shown once and
        kept in summary.json. Raise a UserError in `build` instead if failure is certain.

        Args:
            run: the run before training; its networks are those after every `rebuild_model`.
        """
        return ()

    def warning(self, values: Mapping[str, float]) -> str | None:
        """Return a one-line warning if training metrics show a problem, else None; only the first one is shown.

        Args:
            values: the values of a training report, by name.
        """
        return None


def again(hook: AnyHook) -> AnyHook:
    """Return a new, unbuilt hook with the arguments, name and binding of another."""
    args, kwargs = hook.given
    new = type(hook)(*args, **kwargs)
    vars(new).update({key: value for key, value in vars(hook).items() if key in ("name", "network", "objective")})
    return new


class GraphHook(Hook):
    """Change training from inside the traced step.

    The stages of a step or an evaluation are traced once and must be pure: they take and return tensors, print nothing
    and touch no file. A table in `recipes/OWN.md` lists them in the order in which they run. A stage that a hook does
    not override costs nothing.

    An instance works on one network. `network` may be a pattern, such as "generator_*" or "*": the run then has an
    instance with its own state for each network that matches, called "<hook>@<network>" if there are several. Names
    that such instances report begin with "<network>/".

    A network is the same in each objective that runs it, and in evaluations. So the stages that define it are called
    wherever it runs: `rebuild_model`, `request_taps`, `frozen_entries`, `transform_weights`, `around_forward`; and
    `project` after every objective that changes it. The other stages run only within objectives that change the network
    and match `objective`: `add_losses`, `evaluate`, `gradient_point`, `transform_gradients`, `transform_state`, `veto`,
    `batch_sums`, `update_ops`, `measure`. So only these objectives write the hook's state, but all of them read it.

    Attributes:
        network: name of the network that the hook works on; in a config, or before a run is assembled, a pattern.
        objective: pattern on the names of the objectives that the hook takes part in.
        reads: state of other hooks that it reads, as "hook/variable"; orders it after them.
        supports_xla: whether XLA can compile the hook; false for one that calls NumPy.
        observed_examples: number of examples of the validation split on which `evaluate` runs with `context.observing`
            set to collect tensors for `show`; 0 for none.
    """

    network: str = "model"
    objective: str = "*"
    reads: tuple[str, ...] = ()
    supports_xla: bool = True
    observed_examples: int = 0

    @property
    def scope(self) -> str:
        """Return the prefix of all names that the hook reports: "<network>/" for one of several instances, else ""."""
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
        """Return the hook's declaration; `Declaration()` declares that it has no state."""

    def shipped_bits(self, shipped: Mapping[str, np.ndarray]) -> Bits:
        """Return the bit widths in which the hook can represent weights and inputs exactly.

        Args:
            shipped: the values that evaluation uses for weights and moving statistics, after every hook, by name.
        """
        return Bits()

    def strip_model(self, model: keras.Model) -> keras.Model:
        """Return the model to ship: the same outputs, variables and layers, without those that `rebuild_model` added.

        On export the network holds the shipped weights when this is called, and the model is saved with them. The model
        must load with only Keras installed.
        """
        return model

    def frozen_entries(self, context: StepContext) -> Tensors:
        """Return masks of the entries of the network's variables that this hook keeps constant, by variable name.

        Called in evaluations only. A hook that evaluates with values other than the current ones, such as averages,
        must keep the frozen entries of all hooks, `context.frozen_entries`, at their current values.

        Returns:
            bool masks, of the variable's shape or [], True for frozen entries; other variables may be left out.
        """
        return {}

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        """Return the tensors that the forward pass uses instead of the latent variables, under the same names.

        In an evaluation, values of state variables may be added by name, such as averages of moving statistics.
        """
        return weights

    def around_forward(self, context: StepContext) -> AbstractContextManager[None]:
        """Return a context manager in which a forward pass of the network is traced, such as `gradient_override_map`.

        It is entered once for each forward pass, in evaluation as well.
        """
        return nullcontext()

    def transform_state(self, new_state: Tensors, context: StepContext) -> Tensors:
        """Return the values to write into the state variables (moving statistics, seed state).

        A variable that is left out keeps its value; the audit requires it to be declared `frozen`.
        """
        return new_state

    def add_losses(self, context: StepContext) -> Tensors:
        """Return losses to add to the objective's, by name; each of shape [batch] or [].

        Those of shape [batch] are multiplied by the data's sample weights, if it has any.
        With `trainer.accumulation_steps` this is traced for a micro batch, and later stages for the whole batch. Pass
        tensors [batch, ...] to these in `context.taps`, never in an attribute.
        """
        return {}

    def evaluate(self, context: StepContext) -> Evaluated:
        """Return metrics of an evaluation batch, and tensors to collect for metrics of the split or for `show`."""
        return Evaluated()

    def gradient_point(self, latent: Tensors, context: StepContext) -> Tensors:
        """Return the values of the latent variables at which the gradients are taken, under the same names.

        `context.gradients` are those at the variables' own values. If a hook overrides this, a second forward and
        backward pass, on the same batch with the same draws, gives the gradients of the step. Losses, metrics, moving
        statistics and the context of later stages are those of the first pass.
        """
        return latent

    def transform_gradients(self, gradients: Gradients, context: StepContext) -> Gradients:
        """Return the gradients for the optimizer, under the same names; keep None for frozen variables."""
        return gradients

    def batch_sums(self, context: StepContext) -> Tensors:
        """Return sums over the examples of the batch that `update_ops` needs, by name: float, of static shapes.

        Each replica sees a part of the batch: values that depend on examples must be summed before they change state,
        or the replicas diverge. Later stages find the sums over the whole batch in `context.sums`, as "<hook>/<name>".
        """
        return {}

    def veto(self, context: StepContext) -> Tensors:
        """Return named bool scalars; if one is True, nothing of this step is written and the loop stops.

        With several objectives, a veto discards the updates of its own objective and of the later ones in the step;
        those of earlier ones have already been written.
        """
        return {}

    def update_ops(self, context: StepContext) -> list[tf.Operation | tf.Tensor]:
        """Create and return ops that write this hook's state; they go into UPDATE_OPS and run before the optimizer."""
        return []

    def project(self, context: StepContext) -> None:
        """Project latent variables onto the feasible set (mask, clip), after the optimizer, its slots and its EMA."""

    def measure(self, context: StepContext) -> Tensors:
        """Return scalars to report, by name, such as "bnn/flip_ratio". Runs last; sees variables after projection.

        They are sampled in the first step of a report and in every seventh step, and averaged over these. A name begins
        with that of the hook, or with a namespace of `trainer/run/results.py`.
        """
        return {}


class HostHook(Hook):
    """Watch a run at the end of each traced chunk, and make requests through `run.control`.

    A host hook never changes a variable. Stages run in the hooks' order; `on_fit_end` runs for every hook even when
    one of them raises.
    """

    def next_step(self, step: int) -> int | None:
        """Return the next step after `step` at which the loop must pause for this hook; None if it need not."""
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs: JSON values only; an empty dict for no state.

        Called before a checkpoint is written: files that a resumed run needs must be written here.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""

    def on_fit_begin(self, run: Run) -> None:
        """Prepare for training: the networks are built, the step is traced and audited.

        Called again after a rollback. `run.from_checkpoint` is False only if nothing has been trained.
        """

    def on_veto(self, run: Run) -> None:
        """Handle the vetoes (`run.control.vetoes`) that held back the step after `run.step`.

        Call `run.control.skip_step()` or `run.control.roll_back()`; if no hook does, the run ends.
        """

    def on_chunk_end(self, run: Run, report: Report | None) -> None:
        """Handle the end of a chunk; `report` holds the training metrics if a report is due, and is None otherwise."""

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        """Handle the metrics of a split ("validation" or "test")."""

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        """Finish and close files, also after an error; `summary`, as in `summary.json`, says how the run ended."""
