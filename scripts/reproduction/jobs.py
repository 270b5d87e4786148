"""The runs of a target, and the commands that make them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hookline.scripts.reproduction.targets import DATA, PLACEHOLDER, Export, Target, Variant


@dataclass(frozen=True)
class Job:
    """One run to make."""

    name: str  # of its run directory, such as "bnn/bnn_0"
    overrides: tuple[str, ...]  # of train.py, with placeholders, and the seed
    variant: tuple[str, str]  # what it repeats with another seed: target and variant
    needs: Mapping[str, str]  # names of the jobs that it begins from, by placeholder
    data: tuple[str, ...]  # data whose place it takes

    def filled(self, places: Mapping[str, str]) -> list[str]:
        """Return the overrides with the names in braces replaced by places."""
        return [PLACEHOLDER.sub(lambda found: places[found[1]], text) for text in self.overrides]


def job_name(variant: Variant, seed: int) -> str:
    """Return the name of a run."""
    return f"{variant.target}/{variant.name}_{seed}"


def jobs_of(target: Target, targets: Mapping[str, Target], seeds: Sequence[int]) -> dict[str, Job]:
    """Return the runs that a target needs, by name: all variants of a seed, then those of the next."""
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
    """Return the command lines that make the runs and exports of a target, as a user types them."""
    jobs = jobs_of(target, targets, seeds[:1]).values()
    named = {name for job in jobs for name in job.needs.values()}
    exported: dict[str, list[Export]] = {}
    for export in target.exports.values():
        exported.setdefault(job_name(target.runs[export.run], seeds[0]), []).append(export)
    if not named and not exported and len(seeds) > 1:
        several = ",".join(map(str, seeds))
        return [_line(job, "-m --jobs 1 ", several, ()) for job in jobs]
    seed = str(seeds[0]) if len(seeds) == 1 else "$seed"
    lines = []
    for job in jobs:
        lines.append(_line(job, "", seed, (*named, *exported)))
        for export in exported.get(job.name, ()):
            run, alone = _run(job.name, seed), len(exported[job.name]) == 1  # one of several needs a path of its own
            path = f"{run}/export/{'model' if alone else export.name}{export.ending}"
            output = [] if alone else [f"output={path}"]
            lines.append(" ".join([f"python scripts/export.py run={run}", *export.options, *output]))
            lines.append(f"python scripts/evaluate.py model={path}")
    if len(seeds) == 1:
        return lines
    return [f"for seed in {' '.join(map(str, seeds))}; do", *(f"    {line}" for line in lines), "done"]


def _line(job: Job, flags: str, seed: str, named: Collection[str]) -> str:
    """Return the command of a run; it has a run_dir= where others name it."""
    places = {"mnist": "mnist.npz", "cifar10": "cifar10", "clothing": "clothing"}
    places |= {key: _run(name, seed) for key, name in job.needs.items()}
    words = [f'"{word}"' if set("{}[]*' ") & set(word) else word for word in job.filled(places)[:-1]]
    own = [f"run_dir={_run(job.name, seed)}"] if job.name in named else []
    return f"python train.py {flags}{' '.join([*words, f'seed={seed}', *own])}"


def _run(name: str, seed: str) -> str:
    return f"runs/{name.rpartition('_')[0]}_{seed}"
