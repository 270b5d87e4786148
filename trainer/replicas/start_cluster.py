"""Start TensorFlow's server and collectives in a worker."""

from __future__ import annotations

import faulthandler
import functools
import signal
import sys
import threading

import tensorflow as tf

from hookline.trainer.errors import WorkersError
from hookline.trainer.quiet import silent
from hookline.trainer.replicas.cluster import Cluster
from hookline.trainer.replicas.rendezvous import meet

START_SECONDS = 120
"""After which a start that hangs ends the process: in it, TensorFlow hears no signal."""


@functools.cache
def start_cluster(cluster: Cluster) -> tf.distribute.Strategy:
    """Start the server of this worker and connect it with the others; once for a process.

    Nothing may have initialised TensorFlow's devices. The strategy itself is not used: it starts the server, and the
    service by whose heartbeats TensorFlow finds within seconds that a worker is gone.
    """
    meet(cluster)
    faulthandler.dump_traceback_later(START_SECONDS, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        with silent():
            resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
                task_type="worker",
                task_id=cluster.index,
                rpc_layer="grpc",
            )
            strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except (tf.errors.OpError, RuntimeError) as error:
        line = " ".join(str(error).split())[:200]
        raise WorkersError(f"Worker {cluster.index} could not start TensorFlow's server: {line}") from error
    finally:
        faulthandler.cancel_dump_traceback_later()
    _hear_signals_again()
    return strategy


def _hear_signals_again() -> None:
    """Put Python's handler of SIGTERM back in place: TensorFlow's service has put its own there."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
