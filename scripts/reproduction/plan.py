"""The runs that targets stand for, in the order in which they are made."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scripts.reproduction.targets import DATA, PLACEHOLDER, Export, Target, Variant


@dataclass(frozen=True)
class Job:
    """Hold one run to make.

    Attributes:
        name: of its run directory, such as "bnn/bnn_0".
        overrides: of train.py, with placeholders, and the seed.
        variant: key in results.json of what it repeats with another seed.
        needs: names of jobs that have to be complete before, by placeholder.
        data: data whose place it takes.
    """

    name: str
    overrides: tuple[str, ...]
    variant: tuple[str, str]
    needs: Mapping[str, str]
    data: tuple[str, ...]

    def filled(self, places: Mapping[str, str]) -> list[str]:
        """Return the overrides with places in the place of the names in braces.

        Args:
            places: of data and of other runs, as the command line takes them.
        """
        return [PLACEHOLDER.sub(lambda found: places[found[1]], text) for text in self.overrides]


def job_name(variant: Variant, seed: int) -> str:
    """Return the name of a run.

    Args:
        variant: of a target, or what one says of another's.
        seed: of the run.
    """
    return f"{variant.target}/{variant.name}_{seed}"


def jobs_of(target: Target, targets: Mapping[str, Target], seeds: Sequence[int]) -> dict[str, Job]:
    """Return the runs that a target needs, by name: all variants of a seed, then those of the next.

    Args:
        target: to be measured.
        targets: all, whose runs it may share.
        seeds: to make.
    """
    jobs: dict[str, Job] = {}
    for seed in seeds:
        for variant in target.runs.values():
            for job in _with_needs(variant, targets, seed):
                jobs.setdefault(job.name, job)
    return jobs


def _with_needs(variant: Variant, targets: Mapping[str, Target], seed: int) -> Iterator[Job]:
    """Yield the run of a variant after those that it begins from."""
    owner = targets[variant.target]
    whole = owner.runs[variant.name]
    first = {name: owner.runs[name] for name in whole.placeholders if name not in DATA}
    for each in first.values():
        yield from _with_needs(each, targets, seed)
    yield Job(
        job_name(whole, seed),
        (*whole.overrides, f"seed={seed}"),
        (whole.target, whole.name),
        {name: job_name(each, seed) for name, each in first.items()},
        tuple(name for name in whole.placeholders if name in DATA),
    )


def commands_of(target: Target, targets: Mapping[str, Target], seeds: Sequence[int]) -> list[str]:
    """Return the command lines that make the runs and exports of a target, as a user types them.

    Args:
        target: to be measured.
        targets: all, whose runs it may share.
        seeds: of the runs.
    """
    shown = {**jobs_of(target, targets, seeds[:1])}
    named = {name for job in shown.values() for name in job.needs.values()}
    exported: dict[str, list[Export]] = {}
    for export in target.exports.values():
        exported.setdefault(job_name(target.runs[export.run], seeds[0]), []).append(export)
    if not named and not exported and len(seeds) > 1:
        several = ",".join(map(str, seeds))
        return [_line(job, "-m --jobs 1 ", several, ()) for job in shown.values()]
    seed = str(seeds[0]) if len(seeds) == 1 else "$seed"
    lines = []
    for job in shown.values():
        lines.append(_line(job, "", seed, (*named, *exported)))
        for export in exported.get(job.name, ()):
            lines += _export_lines(export, _run(job.name, seed), alone=len(exported[job.name]) == 1)
    if len(seeds) == 1:
        return lines
    return [f"for seed in {' '.join(map(str, seeds))}; do", *(f"    {line}" for line in lines), "done"]


def _line(job: Job, flags: str, seed: str, named: Collection[str]) -> str:
    """Return the command of a run; it has a run_dir= where others name it."""
    places = {name: _shown(name) for name in job.data}
    places |= {key: _run(name, seed) for key, name in job.needs.items()}
    words = [*map(_quoted, job.filled(places)[:-1]), f"seed={seed}"]
    own = [f"run_dir={_run(job.name, seed)}"] if job.name in named else []
    return f"python train.py {flags}{' '.join([*words, *own])}"


def _export_lines(export: Export, run: str, *, alone: bool) -> list[str]:
    """Return the commands that write and judge an export; one of several needs a path of its own."""
    path = f"{run}/export/{'model' if alone else export.name}{export.ending}"
    output = [] if alone else [f"output={path}"]
    return [
        " ".join([f"python scripts/export.py run={run}", *export.options, *output]),
        f"python scripts/evaluate.py model={path}",
    ]


def _run(name: str, seed: str) -> str:
    return f"runs/{name.rpartition('_')[0]}_{seed}"


def _shown(data: str) -> str:
    return {"mnist": "mnist.npz"}.get(data, data)


def _quoted(text: str) -> str:
    return f'"{text}"' if any(character in text for character in "{}[]*' ") else text
