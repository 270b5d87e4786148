"""Find a learning rate.

python scripts/find_rate.py recipe=<name> [key=value ...]

Takes the arguments of train.py, and trains some steps while the learning rate grows by a constant factor. The loss
falls, levels off, and rises: a good rate is where it falls fastest, or a tenth of where it is lowest. This is the range
test of Smith, Cyclical Learning Rates, 2017 (arXiv 1506.01186), section 3.3. Only the picture is kept.

  lowest    first learning rate (1e-6)
  highest   last learning rate, unless the loss diverges before (1)
  count     training steps (200)
  picture   PNG file of loss against rate (learning_rate.png); it must not exist
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import built, check_output, make_main, new_figure, one_job, parse_options
from hookline.trainer.errors import UserError, check_integer, user_path

if TYPE_CHECKING:
    from hookline.trainer.config.preflight import Job
    from hookline.trainer.step.loop import ChunkLoop

SMOOTHING = 0.9
SPAN = 10
"""Approximate window of the smoothed loss, in steps; in the first window it is the noise of single batches."""


@dataclass
class Range:
    """The options of the test itself."""

    lowest: float = 1e-6
    highest: float = 1.0
    count: int = 200
    picture: str = "learning_rate.png"


@dataclass(frozen=True)
class Found:
    """The result of the test."""

    rates: list[float]  # learning rate of each step
    losses: list[float]  # total loss of each step, smoothed
    picture: Path  # where it was drawn

    @property
    def steepest(self) -> float:
        """Return the rate at which the loss falls fastest, by the slope over the logarithm of the rate."""
        until = self.losses.index(min(self.losses))
        span = min(SPAN, max(1, until // 3))
        falls = {at: self.losses[at] - self.losses[at + span] for at in range(span, until - span + 1)}
        return self.rates[max(falls, key=lambda at: falls[at]) + span // 2] if falls else self.rates[0]

    @property
    def lowest(self) -> float:
        return self.rates[self.losses.index(min(self.losses))]


def parse(arguments: Sequence[str]) -> tuple[Range, Job]:
    """Return the options of the test, and the run that it trains."""
    own = [each for each in arguments if each.partition("=")[0] in Range.__dataclass_fields__]
    options, rest = parse_options(own, Range), [each for each in arguments if each not in own]
    if any(each.startswith("resume=") for each in rest):
        raise UserError("resume= received. Expected init_from=<run> to start from the weights of a run.")
    if not 0 < options.lowest < options.highest:
        raise UserError(f"lowest={options.lowest:g} and highest={options.highest:g} received. Expected a rising range.")
    check_integer("count", options.count, 2)
    check_output("picture", options.picture, [".png"], overwrite=None)
    return options, one_job(rest)


def find(options: Range, job: Job) -> Found:
    """Train a run at rising rates until its loss diverges, and draw the losses."""
    factor = (options.highest / options.lowest) ** (1.0 / (options.count - 1))
    rising = {"initial_learning_rate": options.lowest, "decay_steps": 1, "decay_rate": factor}
    schedule = {"_target_": "keras.optimizers.schedules.ExponentialDecay", **rising}
    trainer = {**job.config["trainer"], "epochs": None, "steps": options.count}
    with built(replace(job, config={**job.config, "schedule": schedule, "trainer": trainer})) as run:
        losses = train(run.loop, options.count)
    if len(losses) < 2:
        raise UserError(f"The loss diverged at once, at {options.lowest:g}. Set a smaller lowest=<rate>.")
    rates = [options.lowest * factor**step for step in range(len(losses))]
    found = Found(rates, smoothed(losses), user_path(options.picture, "picture"))
    draw(found)
    return found


def train(loop: ChunkLoop, count: int) -> list[float]:
    """Return the total loss of each step, up to a vetoed or non-finite step, or until the smoothed loss diverges."""
    losses: list[float] = []
    for step in range(count):
        _, vetoes = loop.run(step, 1)
        values = loop.accumulators.read()
        loop.accumulators.reset()
        loss = sum(value for name, value in values.items() if name.endswith("loss/total"))
        if vetoes or not math.isfinite(loss):
            break
        losses.append(loss)
        if diverges(losses):
            break
    return losses


def diverges(losses: Sequence[float]) -> bool:
    """Return whether the smoothed loss is far above its minimum, above its first value, and by more than noise."""
    averages, noise = smoothed(losses), max(losses[:SPAN]) - min(losses[:SPAN])
    lowest = min(averages)
    return averages[-1] - lowest > max(3.0 * abs(lowest), averages[0] - lowest, 2.0 * noise)


def smoothed(losses: Sequence[float]) -> list[float]:
    """Return the exponential moving average of losses, with bias correction."""
    average, values = 0.0, []
    for step, loss in enumerate(losses, start=1):
        average = SMOOTHING * average + (1.0 - SMOOTHING) * loss
        values.append(average / (1.0 - SMOOTHING**step))
    return values


def draw(found: Found) -> None:
    """Write the picture."""
    figure = new_figure(8.0, 4.2)
    axes = figure.subplots()
    axes.plot(found.rates, found.losses, color="#1b6ca8")
    for rate, label in ((found.steepest, "falls fastest"), (found.lowest, "lowest")):
        axes.axvline(rate, color="#d1495b", linestyle="--", linewidth=1)
        axes.annotate(f"{label}: {rate:.2g}", (rate, max(found.losses)), rotation=90, va="top", ha="right", fontsize=8)
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss (smoothed)")
    figure.savefig(found.picture, dpi=110, format="png")


def print_found(found: Found) -> None:
    """Print the losses at some rates, and the rates to try."""
    from hookline.hooks.monitors.console import TextTable, open_console, show

    console = open_console()
    places = sorted({round(place * (len(found.rates) - 1) / 9) for place in range(10)})
    rows = [(f"{found.rates[place]:.2e}", f"{found.losses[place]:.4f}") for place in places]
    show(console, TextTable("Loss at rising learning rates, smoothed", ("learning rate", "loss"), rows))
    low, high = sorted((found.steepest, found.lowest / 10))
    console.print(
        f"falls fastest at {found.steepest:.2g}, lowest at {found.lowest:.2g}: try "
        f"optimizer.learning_rate={low:.1g} to {high:.1g}; picture {found.picture}",
        soft_wrap=True,
    )


main = make_main(__doc__, parse, lambda asked: print_found(find(*asked)))

if __name__ == "__main__":
    sys.exit(main())
