"""Which metrics are compared, on which split, and which of their values are better."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainer.comparison.stored_run import StoredRun, number
from trainer.errors import UserError, unknown_name
from trainer.run.results import is_metric, is_total_loss, short_name

SPLITS = ("train", "validation", "test")
HIGHER_IS_BETTER = ("accuracy",)


@dataclass(frozen=True)
class Metric:
    """Name what is compared.

    Attributes:
        split: "train" (the last report), "validation" (the best evaluation) or "test".
        name: such as "metric/accuracy".
        direction: "max" or "min": which values are better; None where nobody knows.
    """

    split: str
    name: str
    direction: str | None = None

    @property
    def label(self) -> str:
        """Return the name for people, such as "test accuracy"."""
        return f"{self.split} {short_name(self.name)}"

    def of(self, run: StoredRun) -> float | None:
        """Return the value of a run, or None."""
        return run.value(self.split, self.name)


def default_metrics(runs: Sequence[StoredRun]) -> list[Metric]:
    """Return what runs have measured on the test split: the metrics, or the total losses where there is none.

    Args:
        runs: complete.
    """
    names = dict.fromkeys(name for run in runs for name in run.values("test"))
    chosen = [name for name in names if is_metric(name)] or [name for name in names if is_total_loss(name)]
    return [Metric("test", name, direction_of(name, runs)) for name in chosen]


def parse_metrics(text: str, runs: Sequence[StoredRun]) -> list[Metric]:
    """Return the metrics that a user asks for.

    Args:
        text: such as "accuracy,validation/loss/total"; without a split in front, the test split.
        runs: complete.

    Raises:
        UserError: no run has measured it.
    """
    parts = [part.strip() for part in text.strip("[] ").split(",")]
    if not all(parts):
        raise UserError(f"metrics={text} received. Expected names such as metrics=accuracy,validation/loss/total.")
    return list(dict.fromkeys(_parse(part, runs) for part in parts))


def _parse(text: str, runs: Sequence[StoredRun]) -> Metric:
    split, separator, rest = text.partition("/")
    if not separator or split not in SPLITS:
        split, rest = "test", text
    values = [run.values(split) for run in runs]
    names = list(dict.fromkeys(name for each in values for name in each if number(each[name]) is not None))
    for name in names:
        if rest in (name, short_name(name)):
            return Metric(split, name, direction_of(name, runs))
    raise unknown_name(f"metric of the {split} split", rest, names)


def direction_of(name: str, runs: Iterable[StoredRun]) -> str | None:
    """Return which values of a metric are better: "max", "min", or None where nobody knows.

    Losses are better when low, accuracies when high; of others a run knows that decided its best step by them.

    Args:
        name: such as "metric/accuracy".
        runs: that have it.
    """
    last = name.rpartition("/")[2]
    if name.startswith("loss/") or "/loss/" in name:
        return "min"
    if last in HIGHER_IS_BETTER:
        return "max"
    modes = {monitor_of(run)[1] for run in runs if monitor_of(run)[0] == name}
    return modes.pop() if len(modes) == 1 else None


def monitor_of(run: StoredRun) -> tuple[str, str]:
    """Return by which metric of the validation split a run decided its best step, and "max" or "min".

    Args:
        run: with a config.
    """
    trainer = run.config.get("trainer", {})
    return str(trainer.get("monitor", "")), str(trainer.get("monitor_mode", "max"))
