"""Workers from the variables that torchrun and its kind set."""

from __future__ import annotations

from collections.abc import Mapping

from hookline.trainer.errors import UserError
from hookline.trainer.replicas.hosts import expand_hosts, number_of

NAME = "RANK"
COUNT, ADDRESS, PORT, HOSTS = "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HOSTS"
LOCAL, LOCAL_COUNT, TAKEN = "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE"


def is_there(environment: Mapping[str, str]) -> bool:
    """Return whether the variables are set."""
    return NAME in environment and COUNT in environment


def read(environment: Mapping[str, str]) -> tuple[list[str], int]:
    """Return the addresses of all workers and the index of this one.

    Worker n listens at MASTER_PORT + n, one higher where torchrun itself holds that port. TensorFlow needs the address
    of each: on several hosts, HOSTS must name them.
    """
    index, count = number_of(environment, NAME), number_of(environment, COUNT)
    if not count:
        raise UserError(f"{COUNT}=0 received. Expected the number of workers.")
    port = number_of(environment, PORT) + (environment.get(TAKEN) == "True")
    if text := environment.get(HOSTS, "").strip():
        hosts = expand_hosts(text)
        if count % len(hosts):
            raise UserError(f"{COUNT}={count} and {len(hosts)} {HOSTS} received. Expected as many workers on each.")
    elif number_of(environment, LOCAL, index) != index or number_of(environment, LOCAL_COUNT, count) != count:
        raise UserError(
            f"{COUNT}={count} workers are on several hosts, and {ADDRESS} names one. Expected {HOSTS}=host1,host2,... "
            "in the order of the ranks, or TF_CONFIG."
        )
    else:
        hosts = [environment.get(ADDRESS, "").strip() or "127.0.0.1"]
    each = count // len(hosts)
    return [f"{hosts[rank // each]}:{port + rank}" for rank in range(count)], index
