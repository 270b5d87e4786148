"""MLflow."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from hookline.hooks.monitors.remote import RemoteLogger

MOST = 100  # maximum number of parameters in one MLflow request
TAG = "hookline.id"  # tag of a remote run that holds the id stored in the run directory, by which it is found again


class MLflow(RemoteLogger):
    """Log reports, config, results and pictures to an MLflow server.

    The names of metrics begin with the split, such as `validation/metric/accuracy`. The parameters are those of
    TensorBoard's HPARAMS tab; the whole config, the pictures of `pictures/` and the output of `scripts/export.py` are
    artifacts. Results are tags; those on the test split are metrics too only if the best step is the last one. A
    separate thread sends everything, so training never waits. If the service fails, training continues, and one warning
    gives the reason. A resumed run continues the same remote run and logs each step once: `mlflow.json` in the run
    directory holds the id. `pip install -e '.[mlflow]'` installs the dependencies.

    Group: monitor

    Cost: A thread that makes one request for each reported step; at the end, at most `timeout` seconds. With a server
        that accepts connections and never answers, the hook took 0.2 % (at most 0.5 %) of the loop's time.

    Pitfalls:
        tests/hooks/monitors/test_remote.py: a resumed run must not log a step twice, nor lose steps that were reported
            but not yet sent when the run was killed; a service that fails or hangs must not stop a run.

    Example:
        python train.py recipe=bnn +hooks=mlflow hooks.mlflow.tracking_uri=http://localhost:5000
    """

    package = "mlflow"

    def __init__(self, *, experiment: str = "hookline", tracking_uri: str | None = None, timeout: float = 30.0) -> None:
        """Set where to log.

        Args:
            experiment: name of the experiment; created if it does not exist.
            tracking_uri: a server, or such as sqlite:///mlflow.db; None for MLFLOW_TRACKING_URI or MLflow's default.
            timeout: seconds to wait at the end until everything is sent.
        """
        super().__init__(timeout)
        self._experiment, self._uri = experiment, tracking_uri
        self._client: Any = None
        self._id = ""

    def connect(self, identifier: str, reports: bool) -> int:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # would garble the progress bar
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._client = MlflowClient(self._uri)
        found = self._client.get_experiment_by_name(self._experiment)
        where = found.experiment_id if found else self._client.create_experiment(self._experiment)
        runs = self._client.search_runs([where], filter_string=f"tags.`{TAG}` = '{identifier}'")
        tags = {TAG: identifier, **{f"hookline.{tag}": "true" for tag in self.tags}}
        run = runs[0] if runs else self._client.create_run(where, run_name=self.directory.name, tags=tags)
        self._id = run.info.run_id
        self._client.update_run(self._id, status="RUNNING")
        settings = {_allowed(name): str(value) for name, value in self.settings.items()}
        parameters = [Param(name, value) for name, value in settings.items() if name not in run.data.params]
        for start in range(0, len(parameters), MOST):
            self._client.log_batch(self._id, params=parameters[start : start + MOST])
        self._client.log_dict(self._id, {**self.config}, "config.yaml")
        histories = [self._client.get_metric_history(self._id, name) for name in run.data.metrics]
        return max((each.step for history in histories for each in history), default=-1)

    def send(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(_allowed(name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, complete: bool, reached: Mapping[str, float]) -> None:
        for name, value in reached.items():
            self._client.set_tag(self._id, _allowed(name), f"{value:.6g}")
        for path in self.pictures:
            self._client.log_artifact(self._id, str(path), "pictures")
        if export := self.export:
            send = self._client.log_artifacts if export.is_dir() else self._client.log_artifact
            send(self._id, str(export), f"export/{export.name}" if export.is_dir() else "export")
        self._client.set_terminated(self._id, "FINISHED" if complete else "KILLED")


def _allowed(name: str) -> str:
    """Return a name with "_" for each character that MLflow does not allow."""
    return "".join(character if character.isalnum() or character in "_-. :/" else "_" for character in name)
