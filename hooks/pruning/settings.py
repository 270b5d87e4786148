"""The options of pruning, checked one by one and against each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hooks.options import check_choice, check_number, check_patterns
from hooks.pruning.criteria import CRITERIA
from hooks.pruning.options import Sparsity, Structure, check_layer_sparsity, parse_structure
from hooks.pruning.schedules import Schedule, check_used, parse_schedule
from trainer.errors import UserError

DEFAULT_SPARSITY = 0.5
SCOPES = ("per_layer", "global")


@dataclass(frozen=True)
class Settings:
    """Hold checked options.

    Attributes:
        layers: patterns on kernel layers.
        schedule: when masks change.
        final_sparsity: of the last masks, one for all layers or by pattern.
        stages: sparsities of an iterative schedule; empty otherwise.
        hysteresis: how much splicing favours what is kept; None where nothing comes back.
        scope: "per_layer" or "global".
        structure: what is kept or pruned together.
        criterion: how units are ranked.
    """

    layers: str | list[str]
    schedule: Schedule
    final_sparsity: Sparsity
    stages: list[Sparsity]
    hysteresis: float | None
    scope: str
    structure: Structure
    criterion: str


def parse_settings(given: Mapping[str, Any]) -> Settings:
    """Return the settings of a config.

    Args:
        given: the arguments of the hook by name.

    Raises:
        UserError: an option has the wrong type or value, or two of them contradict each other.
    """
    structure = parse_structure(given["structure"])
    stages = _parse_stages(given["stages"])
    schedule = parse_schedule({**given, "stages": len(stages)})
    check_used(schedule.name, given)
    expected = "a number of at least 1, such as 1.1"
    hysteresis = check_number("hysteresis", given["hysteresis"], minimum=1.0, expected=expected)
    settings = Settings(
        layers=check_patterns("layers", given["layers"]),
        schedule=schedule,
        final_sparsity=_final_sparsity(given["final_sparsity"], stages, structure),
        stages=stages,
        hysteresis=hysteresis if schedule.name == "splicing" else None,
        scope=check_choice("scope", given["scope"], SCOPES),
        structure=structure,
        criterion=check_choice("criterion", given["criterion"], CRITERIA),
    )
    _check_scope(settings)
    return settings


def _parse_stages(stages: Any) -> list[Sparsity]:
    if stages is None:
        return []
    if not isinstance(stages, Sequence) or isinstance(stages, str) or not stages:
        raise UserError(f"Invalid stages: {stages!r}. Expected rising sparsities, such as [0.5, 0.8, 0.9], or null.")
    return [check_layer_sparsity("stages", stage) for stage in stages]


def _final_sparsity(given: Any, stages: Sequence[Sparsity], structure: Structure) -> Sparsity:
    stated = None if given == "auto" else check_layer_sparsity("final_sparsity", given)
    if stated is not None and stages and stated != stages[-1]:
        raise UserError(f"final_sparsity={given} is not the last of stages, {stages[-1]}. Expected the same, or auto.")
    chosen = stages[-1] if stages else stated
    own = structure.own_sparsity
    if own is None:
        return DEFAULT_SPARSITY if chosen is None else chosen
    values = [] if chosen is None else list(chosen.values()) if isinstance(chosen, dict) else [chosen]
    if any(not math.isclose(value, own, abs_tol=1e-6) for value in values):
        raise UserError(
            f"A final sparsity of {chosen} contradicts structure={structure.config}, which prunes {own:g}. "
            "Expected that value, or auto."
        )
    return own


def _check_scope(settings: Settings) -> None:
    if settings.scope != "global":
        return
    if settings.structure.name == "n_m":
        raise UserError("scope=global has no meaning with n_m: every group keeps its share. Expected scope=per_layer.")
    if any(isinstance(sparsity, dict) for sparsity in (settings.final_sparsity, *settings.stages)):
        raise UserError("scope=global takes one sparsity for all layers. Expected a number, or scope=per_layer.")
