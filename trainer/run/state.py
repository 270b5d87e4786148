"""The state of a run: its variables, the form in which they are shipped, and their restoration from checkpoints."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from hookline.trainer.config.parts import used_plugins
from hookline.trainer.config.stored import CONFIG_DIGEST, FILE_NAME, read_stored
from hookline.trainer.errors import UserError, did_you_mean
from hookline.trainer.files import read_json
from hookline.trainer.hook import Bits, Hook, Run
from hookline.trainer.input.data import Split
from hookline.trainer.objective import Batch
from hookline.trainer.run.checkpoint_files import Checkpoint, tensors_digest
from hookline.trainer.run.control import Journal
from hookline.trainer.run.directory import ENVIRONMENT, environment
from hookline.trainer.run.machine import estimated
from hookline.trainer.step.context import scope_name
from hookline.trainer.step.loop import LOOP, ChunkLoop
from hookline.trainer.step.stage import EXPECTED, UPDATE_OPS, checked, in_stage
from hookline.trainer.step.trainer import Trainer
from hookline.trainer.step.writes import WRITING_OPS, all_operations, all_writes


def trainer_variables(trainer: Trainer) -> dict[str, tf.Variable]:
    """Return every variable that training writes, by key: network/<network>/, optimizer/<network>/, hook/<hook>/ ..."""
    variables: dict[str, tf.Variable] = {}
    if trainer.loss_scale is not None:
        variables |= {f"loss_scale/{name}": variable for name, variable in trainer.loss_scale.state().items()}
    for network in trainer.networks.values():
        variables |= {f"network/{network.name}/{name}": v.value for name, v in network.variables.items()}
        variables |= {f"optimizer/{network.name}/{name}": v.value for name, v in network.optimizer_variables.items()}
        if network.rate_factor is not None:
            variables[f"optimizer/{network.name}/learning_rate_factor"] = network.rate_factor
    for hook in trainer.hooks:
        variables |= {f"hook/{hook.name}/{name}": variable for name, variable in hook.declare().state.items()}
    return variables


CHANGING_OPS = (*WRITING_OPS, "ResourceApply", "ResourceSparseApply", "Rng")
"""Prefixes of the types of ops that change a variable, not another resource, or a `tf.random.Generator`."""
DRAWING_OPS = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial")
"""Prefixes of the types of stateful ops that draw numbers depending on how often the process has run them."""


def unsaved_writes(loop: ChunkLoop) -> dict[str, str]:
    """Return the ops of the step that write a variable that no checkpoint holds, each with its hook ("" if none)."""
    saved = {id(variable.handle) for each in loop.trainers for variable in trainer_variables(each).values()}
    saved.add(id(loop.accumulators.variable.handle))
    hooks, found = {scope_name(hook.name): hook.name for hook in loop.trainer.hooks}, {}
    for write in all_writes(loop.loop_graph.get_operations()):
        if write.operation.type.startswith(CHANGING_OPS) and write.handle not in saved:
            parts = write.operation.name.split("/")
            own = (hooks[name] for stage, name in pairwise(parts) if name in hooks and stage in (*EXPECTED, UPDATE_OPS))
            found[write.operation.name.removeprefix(LOOP)] = next(own, "")
    return found


def refuse_unsaved_state(loop: ChunkLoop) -> None:
    """Refuse a hook that writes a variable that it does not declare."""
    for operation, hook in unsaved_writes(loop).items():
        if hook:
            raise UserError(
                f"The hook '{hook}' writes a variable at '{operation}' that no checkpoint holds, so a resumed run "
                "would differ. Declare it in `state`."
            )


def unrepeatable(loop: ChunkLoop) -> list[str]:
    """Return lines about what the step does that a resumed run would not repeat, after hooks that do so are refused."""
    lines = []
    if written := list(unsaved_writes(loop)):
        lines.append(
            f"The step writes a variable at '{written[0]}' that no checkpoint holds, so a resumed run would differ. "
            "Expected add_weight(..., trainable=False) of a layer, add_variable of an optimizer, or `state` of a hook."
        )
    drawing = (each for each in all_operations(loop.loop_graph.get_operations()) if each.op_def.is_stateful)
    if draws := [each.name.removeprefix(LOOP) for each in drawing if each.type.startswith(DRAWING_OPS)]:
        lines.append(
            f"The step draws numbers at '{draws[0]}' that a resumed run would not repeat. Expected "
            "context.stateless_seed in a hook, or keras.random with a SeedGenerator in a layer."
        )
    return lines


def share_variables(trainers: Sequence[Trainer]) -> None:
    """Copy the variables of the first replica of this process to the others, after they were changed outside a step."""
    for each in trainers[1:]:
        first = trainer_variables(trainers[0])
        for key, variable in trainer_variables(each).items():
            variable.assign(first[key])


def values_by_key(variables: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
    """Return copies of the values of variables."""
    return {key: variable.numpy() for key, variable in variables.items()}


def assign_variables(variables: Mapping[str, tf.Variable], tensors: Mapping[str, np.ndarray], source: str) -> None:
    """Assign arrays to the variables of the same keys, after checking all of them."""
    for key, variable in variables.items():
        if key not in tensors:
            raise UserError(
                f"{source} has no variable '{key}'.{did_you_mean(key, tensors)} Expected the same model and hooks."
            )
        if not variable.shape.is_compatible_with(tensors[key].shape):
            raise UserError(
                f"'{key}' has the shape {list(tensors[key].shape)} in {source}, but {list(variable.shape)} here."
            )
    for key, variable in variables.items():
        variable.assign(tensors[key])


FLOAT, FLOAT_BITS = 32, 32.0
Number = TypeVar("Number", int, float)
Answer = TypeVar("Answer")


Weights = dict[str, dict[str, np.ndarray]]
"""By network name, then by variable name."""


def weights_reader(trainer: Trainer) -> Callable[[int], Weights]:
    """Return a function that returns the `shipped_weights` at a step and is traced once."""

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)], autograph=False)
    def used(step: tf.Tensor) -> dict[str, dict[str, tf.Tensor]]:
        passes = trainer.forward(step, {}, objective="", training=False).passes
        values = {name: {**each.context.weights, **each.state} for name, each in passes.items()}
        return {name: {key: values[name][key] for key in trainer.networks[name].weights} for name in passes}

    traced = used.get_concrete_function()  # concrete: no retracing warnings in consecutive runs
    return lambda step: tf.nest.map_structure(lambda value: value.numpy(), traced(tf.constant(step, tf.int64)))


def shipped_weights(trainer: Trainer, step: int) -> Weights:
    """Return the values that evaluation uses for weights and moving statistics, after every hook."""
    return weights_reader(trainer)(step)


def shipped_bits(trainer: Trainer, weights: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Bits]:
    """Return, by network, the smallest bit widths in which hooks can hold the shipped values, at most float32's."""
    bits = {}  # each hook gets the final values: pruned kernels rounded to a sign hold no zeros
    for name, shipped in weights.items():
        hooks = [hook for hook in trainer.hooks if hook.network == name]
        given = [answer(each, "shipped_bits", Bits(), shipped, given=shipped) for each in hooks]
        bits[name] = Bits(
            _fewest([each.stored for each in given], FLOAT_BITS),
            _fewest([each.weights for each in given], FLOAT),
            _fewest([each.inputs for each in given], FLOAT),
        )
    return bits


def answer(hook: Hook, stage: str, empty: Answer, *arguments: Any, given: Mapping[str, Any] | None = None) -> Answer:
    """Return the checked result of a hook's stage; if it fails, warn and return `empty`."""
    what = f"What the hook '{hook.name}' returns from {stage}"
    return estimated(what, lambda: checked(hook, stage, getattr(hook, stage)(*arguments), given=given), empty)


def _fewest(given: Sequence[Mapping[str, Number]], most: Number) -> dict[str, Number]:
    """Return the smallest number for each name, and at most that of a float32."""
    names = {name: None for each in given for name in each}
    return {name: min(most, *(each[name] for each in given if name in each)) for name in names}


MATTERS = ("python", "cpu_flags", "intra_op_threads", "inter_op_threads", "gpus", "one_dnn", "git_commit")
"""Keys of environment.json that may change the bits of a step, besides the packages."""


def check_config(directory: Path, checkpoint: Checkpoint | None, digest: str) -> None:
    """Refuse a config that differs from the one a checkpoint was written with."""
    if checkpoint is not None and checkpoint.environment.get(CONFIG_DIGEST, digest) != digest:  # older ones have none
        raise UserError(
            f"{directory / FILE_NAME} has changed since the checkpoint of step {checkpoint.step} was written. "
            "Restore the old file: a resumed run keeps its config. To start a new run from its weights, use "
            f"init_from={directory}."
        )


def changed_environment(directory: Path) -> list[str]:
    """Return lines about differences from the environment in which the run was started that may change its bits."""
    plugins = used_plugins(read_stored(str(directory), "resume"))
    try:
        before = read_json(directory / ENVIRONMENT)
        used = [name for name in plugins if before.get("plugins", {}).get(name) is not None]  # installed packages
        was, now = _facts(before, used), _facts(environment(), used)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return [f"{ENVIRONMENT} cannot be read, so the environment at the start of the run is unknown"]
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return [f"{name} was {_short(was.get(name))} and is {_short(now.get(name))}" for name in names]


def _facts(stored: Mapping[str, Any], plugins: Sequence[str]) -> dict[str, Any]:
    """Return the facts to compare, by name."""
    facts = {name: stored.get(name) for name in MATTERS} | stored["packages"]
    return facts | {f"the plugin {name}": stored.get("plugins", {}).get(name) for name in plugins}


def _short(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


SAMPLES = 32
"""How many rows of a split are read for its fingerprint."""


def data_fingerprint(splits: Iterable[Split]) -> str:
    """Return a sha256 of the row numbers of each split, and of the contents of some rows."""
    digest = hashlib.sha256()
    for split in splits:
        rows = np.ascontiguousarray(split.indices)
        digest.update(f"{split.name} {split.source.size} {rows.size}".encode())
        digest.update(rows.data)
        places = np.unique(np.linspace(0, rows.size - 1, SAMPLES).astype(np.int64))
        batch = split.source.gather(tf.constant(rows[places]))
        digest.update(tensors_digest(_arrays(batch)).encode())
    return digest.hexdigest()


def _arrays(batch: Batch) -> dict[str, np.ndarray]:
    """Return the arrays of a batch by name; several inputs are numbered."""
    named = {name: tf.nest.flatten(value) for name, value in batch.items()}
    return {
        name if len(values) == 1 else f"{name}/{place}": value.numpy()
        for name, values in named.items()
        for place, value in enumerate(values)
    }


def run_state(run: Run) -> dict[str, Any]:
    """Return the state of a run that a checkpoint holds besides variables and hooks: JSON values."""
    own = {"best": run.best.as_json(), **asdict(run.journal), **run.times.as_json()}
    own |= {"stop_reason": run.control.stop_reason, "replicas": run.trainer.replica.count}
    return {**own, "data": run._fingerprint, "outside": _outside(run)}


def _outside(run: Run) -> dict[str, str]:
    """Return the digests of data that hooks use but no checkpoint holds, by "hooks.<key>.<what>"."""
    declared = [(hook.key, hook.declare().outside) for hook in run.trainer.hooks]
    return {f"hooks.{key}.{what}": digest for key, outside in declared for what, digest in outside.items()}


def restore_run(run: Run, checkpoint: Checkpoint) -> None:
    """Restore a run to the state of a checkpoint: variables, hooks, best value, times, journal."""
    state = checkpoint.state["run"]
    if state["data"] != run._fingerprint:
        raise UserError(
            "The data differs from that of the run: its rows, or the contents of some, have changed. Expected the same "
            "data, in the same order. To start a new run from these weights, use init_from=."
        )
    known = state.get("outside", {})
    if changed := [what for what, digest in _outside(run).items() if known.get(what, digest) != digest]:
        raise UserError(f"{changed[0]} has changed since the run began. Expected the same contents.")
    if (change := changed_replicas(checkpoint, run.trainer.replica.count)) is not None:
        warnings.warn(f"resume: {change}; the bits may differ from those of a whole run.", stacklevel=2)
    _go_to(run, checkpoint)
    run.times.put_back(state)
    run.control.stop_reason = state.get("stop_reason")  # older runs have none
    run.journal = Journal.of(state)
    run.journal.resumed_at.append(checkpoint.step)


def changed_replicas(checkpoint: Checkpoint, count: int) -> str | None:
    """Return, as text, how many replicas shared a batch before and now; None if the number is the same."""
    before = checkpoint.state["run"].get("replicas", 1)  # older runs had one
    return None if before == count else f"replicas was {before} and is {count}"


def roll_back(run: Run, checkpoint: Checkpoint, rate_factor: float) -> None:
    """Roll a run back to a checkpoint, and lower its learning rates once for each rollback since it was written."""
    journal = run.journal
    journal.rolled_back.append(run.step)
    _go_to(run, checkpoint)
    journal.final = dict(checkpoint.state["run"]["final"])
    times = len(journal.rolled_back) - len(checkpoint.state["run"]["rolled_back"])
    journal.returns.append({"to": checkpoint.step, "rate_factor": rate_factor**times})
    for network in run.networks.values():
        network.lower_rate(rate_factor**times)
    share_variables(run.loop.trainers)


def _go_to(run: Run, checkpoint: Checkpoint) -> None:
    """Restore variables, hooks and the run's step and best value from a checkpoint."""
    assign_variables(run.variables, checkpoint.tensors, f"the checkpoint of step {checkpoint.step}")
    share_variables(run.loop.trainers)
    run.loop.accumulators.reset_others()
    run.best.put_back(checkpoint.state["run"]["best"])
    run.step = checkpoint.step
    for hook in run.host_hooks:
        if hook.name in checkpoint.state["hooks"]:
            with in_stage(hook, "load_state_dict", checkpoint.step):
                hook.load_state_dict(checkpoint.state["hooks"][hook.name])
