"""Who may change which network: what a run declares, before anything is traced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainer.errors import UserError, unknown_name
from trainer.network import Network
from trainer.objective import Objective


def check_ownership(networks: Sequence[Network], objectives: Sequence[Objective]) -> None:
    """Refuse networks and objectives that do not fit together.

    Names are unique, no variable and no optimizer belongs to two networks, every objective changes networks that exist,
    and every network is changed by one objective, unless it says that it is shared or fixed.

    Args:
        networks: of a run.
        objectives: of the run, in order.

    Raises:
        UserError: names the networks and the objectives, and the remedy.
    """
    _check_names("network", [network.name for network in networks])
    _check_names("objective", [objective.name for objective in objectives])
    _check_apart(networks)
    for objective in objectives:
        for name in objective.changes:
            if name not in {network.name for network in networks}:
                known = ", ".join(network.name for network in networks)
                raise UserError(f"Objective '{objective.name}' changes the network '{name}'. Expected: {known}.")
        if type(objective.updates) is not int or objective.updates < 1:
            raise UserError(
                f"Objective '{objective.name}' has updates={objective.updates!r}. Expected how often a step runs it: "
                "an integer of at least 1."
            )
    for network in networks:
        _check_owners(network, [objective.name for objective in objectives if network.name in objective.changes])


def owners_of(network: str, objectives: Iterable[Objective]) -> list[str]:
    """Return the names of the objectives that may change a network.

    Args:
        network: its name.
        objectives: of the run.
    """
    return [objective.name for objective in objectives if network in objective.changes]


def find_objective(name: str, objectives: Sequence[Objective]) -> Objective:
    """Return the objective of a name.

    Args:
        name: unique in the run.
        objectives: of the run.

    Raises:
        UserError: there is none.
    """
    for objective in objectives:
        if objective.name == name:
            return objective
    raise unknown_name("objective", name, [objective.name for objective in objectives])


def _check_names(kind: str, names: Sequence[str]) -> None:
    for position, name in enumerate(names):
        if name in names[:position]:
            raise UserError(f"Two of the {kind}s are named '{name}'. Expected a name of its own for each {kind}.")
        if not name or "/" in name:
            article = "An" if kind == "objective" else "A"
            raise UserError(f"{article} {kind} is named '{name}'. Expected a name without '/', such as 'generator_0'.")


def _check_apart(networks: Sequence[Network]) -> None:
    variables: dict[int, tuple[str, str]] = {}
    optimizers: dict[int, str] = {}
    for network in networks:
        for name, variable in network.variables.items():
            other, _ = variables.setdefault(id(variable), (network.name, name))
            if other != network.name:
                raise UserError(
                    f"The networks '{other}' and '{network.name}' share the variable '{name}', so each would change "
                    "the other. Expected models with variables of their own: build each, then copy with copy_network."
                )
        other = optimizers.setdefault(id(network.optimizer), network.name)
        if other != network.name:
            raise UserError(
                f"The networks '{other}' and '{network.name}' share one optimizer. Expected one for each: call "
                "build_optimizer once for each network."
            )


def _check_owners(network: Network, owners: Sequence[str]) -> None:
    if network.fixed and owners:
        raise UserError(
            f"The network '{network.name}' is fixed, but the objective '{owners[0]}' changes it. Take the network out "
            "of the objective's `changes`, or do not declare it fixed."
        )
    if not owners and not network.fixed:
        raise UserError(
            f"No objective changes the network '{network.name}', so it would never be trained. Put it into the "
            "`changes` of one, or declare it with Network(..., fixed=True)."
        )
    if len(owners) > 1 and not network.shared:
        names = " and ".join(f"'{name}'" for name in owners)
        raise UserError(
            f"The objectives {names} change the network '{network.name}', which one objective alone may own. Take it "
            "out of the `changes` of the others, or declare it with Network(..., shared=True)."
        )
