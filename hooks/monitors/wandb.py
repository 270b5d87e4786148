"""Weights & Biases."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookline.hooks.monitors.metrics_jsonl import FILE_NAME
from hookline.hooks.monitors.remote import RemoteLogger


class WandB(RemoteLogger):
    """Log reports, config, results and pictures to Weights & Biases.

    The names of scalars begin with the split, such as `validation/metric/accuracy`. Tags are the recipe and the
    technique hooks. The results of TensorBoard's HPARAMS tab are in the summary; the pictures of `pictures/` are logged
    at the end, and the output of `scripts/export.py` is an artifact. Results on the test split are only in the summary,
    unless the best step is the last one. A separate thread sends everything, so training never waits. If the service
    fails, training continues, and one warning gives the reason. `pip install -e '.[wandb]'` installs the dependencies.

    A resumed run continues the same remote run and logs each step once: `wandb.json` in the run directory holds the id.
    With `WANDB_MODE=offline`, `wandb sync` uploads W&B's own files later; a resumed run deletes the earlier offline
    files and writes all steps again.

    Group: monitor

    Cost: A thread that calls `wandb.log` once for each reported step; at the end, at most `timeout` seconds. The hook
        took 0.06 % of the loop's time, but W&B's own processes slowed runs of a few seconds by 7 to 16 %, on 2 shared
        cores.

    Pitfalls:
        tests/hooks/monitors/test_remote.py: a resumed run must not log a step twice, nor lose steps that were reported
            but not yet sent when the run was killed; a service that fails or hangs must not stop a run.

    Example:
        python train.py recipe=bnn +hooks=wandb hooks.wandb.project=digits
    """

    package = "wandb"

    def __init__(self, *, project: str = "hookline", entity: str | None = None, timeout: float = 30.0) -> None:
        """Set where to log.

        Args:
            project: name of the project.
            entity: user or team; None for your default entity.
            timeout: seconds to wait at the end until everything is sent.
        """
        super().__init__(timeout)
        self._project, self._entity = project, entity
        self._run: Any = None

    def connect(self, identifier: str, reports: bool) -> int:
        import wandb

        settings = wandb.Settings(console="off", silent=True)
        online = wandb.setup(settings).settings.mode in (None, "online", "shared")
        if online and not wandb.login(prompt=False):  # a prompt would disturb the progress bar
            raise ConnectionError("not logged in; run `wandb login`, or set WANDB_MODE=offline")
        self._run = wandb.init(
            project=self._project,
            entity=self._entity,
            id=identifier,
            resume="allow",
            name=self.directory.name,
            config={**self.config},
            tags=self.tags,
            reinit="create_new",
            settings=settings,
        )
        if self._run.offline and reports and (self.directory / FILE_NAME).exists():  # a killed run's lack its end
            own = Path(self._run.settings.sync_dir)
            for folder in own.parent.glob(f"offline-run-*-{self._run.id}"):
                if folder.name != own.name:
                    shutil.rmtree(folder, ignore_errors=True)
        return int(self._run.step) - 1

    def send(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def finish(self, complete: bool, reached: Mapping[str, float]) -> None:
        import wandb

        if self.pictures:
            self._run.log({f"pictures/{path.stem}": wandb.Image(str(path)) for path in self.pictures})
        if export := self.export:
            artifact = wandb.Artifact(f"export-{self._run.id}", type="model")
            (artifact.add_dir if export.is_dir() else artifact.add_file)(str(export))
            self._run.log_artifact(artifact)
        self._run.summary.update(dict(reached))
        self._run.finish(exit_code=0 if complete else 1)
