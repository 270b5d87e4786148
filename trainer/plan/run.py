"""The plan of an assembled run: the plan of its step, with what it reports and what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.plan.memory import estimate_memory
from trainer.plan.plan import Metrics, Plan
from trainer.plan.replicas import replica_facts
from trainer.plan.step import plan_step
from trainer.run.assembly import Assembly
from trainer.run.control import Best, Run
from trainer.run.estimated import estimated
from trainer.run.fit import report_names
from trainer.step.stage import in_stage


def plan_run(config: Mapping[str, Any], recipe: str, parts: Assembly) -> Plan:
    """Return the plan of a run.

    Args:
        config: the resolved config.
        recipe: the recipe's name.
        parts: what it was assembled to.
    """
    settings = config["trainer"]
    plan = plan_step(parts.trainer, parts.host_hooks, report_names(parts.measures, parts.trainer, parts.host_hooks))
    monitor = f"{settings['monitor']} of the validation split, {settings['monitor_mode']}imal"
    if parts.settled_at:
        monitor += f", counted from step {parts.settled_at:,} on"
    metrics = Metrics(plan.metrics.training, tuple(parts.validation.names), monitor)
    plan = replace(plan, metrics=metrics, facts=_facts(config, recipe, parts), advice=_advice(config, recipe, parts))
    return replace(plan, memory=estimated("The memory of the run", lambda: estimate_memory(parts, plan, settings), ()))


def _advice(config: Mapping[str, Any], recipe: str, parts: Assembly) -> tuple[tuple[str, str], ...]:
    settings = config["trainer"]
    run = Run(
        directory=Path(),
        recipe=recipe,
        config=dict(config),
        networks=parts.trainer.networks,
        batch_size=settings["batch_size"],
        total_steps=parts.total_steps,
        steps_per_epoch=parts.steps_per_epoch,
        plan="",
        best=Best(settings["monitor"], settings["monitor_mode"], since=parts.settled_at),
        training=parts.training,
        replicas=parts.trainer.replica.count,
    )
    found = []
    for hook in parts.hooks:
        with in_stage(hook, "advise", 0):
            found += [(hook.name, line) for line in hook.advise(run)]
    return tuple(found)


def _facts(config: Mapping[str, Any], recipe: str, parts: Assembly) -> dict[str, str]:
    settings, training = config["trainer"], parts.training
    epochs = settings["epochs"] or parts.total_steps / parts.steps_per_epoch
    every, size = settings["evaluate_every_epochs"], settings["evaluation_batch_size"]
    splits = [training.split, *(each.split for each in parts.evaluated.values())]
    precision = settings.get("precision", "float32")
    augments = training.augmentation.augments if training.augmentation else []
    return {
        "recipe": recipe,
        "steps": f"{parts.total_steps:,} of {training.batch_size:,} examples: {_epochs(epochs)}",
        **replica_facts(parts, settings["accumulation_steps"]),
        "data": ", ".join(f"{split.size:,} {split.name}" for split in splits) + f"; on the {training.placement}",
        **({"augmentation": ", ".join(each.name for each in augments)} if augments else {}),
        "evaluation": f"every {_epochs(every) if every > 1 else 'epoch'}, {size:,} examples at a time",
        **({} if precision == "float32" else {"precision": precision}),
        "XLA": "compiles the step" if parts.loop.xla else "off",
    }


def _epochs(count: float) -> str:
    return f"{count:.4g} epoch{'' if count == 1 else 's'}"
