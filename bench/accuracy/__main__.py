"""Our estimates and everybody else's against measured jobs.

    python -m bench.accuracy DATA_FOLDER [--sets xmem,timm,mlp,own] [--python SET=PYTHON] [--only GLOB]
                             [--models N] [--cache FILE] [--json FILE] [--report-only]

DATA_FOLDER has the public rows (see `bench/accuracy/jobs.py`). Answers are kept in the cache as they come,
so that a run that was stopped goes on; those of other code are not taken. Writes docs/accuracy.md,
docs/accuracy.svg and bench/results/accuracy.json, unless only some sets or jobs are run. The environment of
xMem's authors is made when it is first needed, if no other interpreter is named. timm models and MLPs are run
on the allocator of the fake device in one process; `--check N` runs `gpumem estimate` for N of these rows as
well and says whether both agree to the byte.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from bench.accuracy import census, ours, peers, report
from bench.accuracy.cache import Cache
from bench.accuracy.census import Census
from bench.accuracy.jobs import ROOT, SETS, Job, RowsError, read
from bench.accuracy.peers import learned
from bench.accuracy.rows import FITTED, Row, add_peers, outside_of, row_of
from bench.versions.environments import NotMade, Version, interpreter
from estimator import catalog

DOCUMENT, PICTURE = ROOT / "docs" / "accuracy.md", ROOT / "docs" / "accuracy.svg"
RESULTS = ROOT / "bench" / "results" / "accuracy.json"
WHOLE = 16  # steps: more than the scripts have, so that they are walked to their end
ENVIRONMENTS = {
    "xmem": Version("2.6.0", "3.11", ("torchvision==0.21.0", "transformers==4.49.0", "numpy")),
}
ENVIRONMENTS_FOLDER = Path.home() / ".cache" / "gpumem" / "accuracy"
CENSUS, LEARNED, SEED = "census", "learned", 0


def chosen(jobs: Sequence[Job], patterns: Sequence[str], models: int | None) -> list[Job]:
    """The jobs whose names match, of the large sets only so many models, in a seeded random order."""
    jobs = [job for job in jobs if not patterns or any(fnmatchcase(job.name, one) for one in patterns)]
    names = sorted({job.model for job in jobs if job.dataset == "timm"})
    random.Random(SEED).shuffle(names)
    rank = {name: place for place, name in enumerate(names[:models])}
    kept = [job for job in jobs if job.dataset != "timm" or job.model in rank]
    return sorted(kept, key=lambda job: rank.get(job.model, -1))


def python_of(dataset: str, named: Mapping[str, str]) -> str:
    """The interpreter for the jobs of a set: the one that is named, else its environment, else this one.

    Raises:
        NotMade: the environment cannot be made.
    """
    if dataset not in named and dataset in ENVIRONMENTS:
        return str(interpreter(ENVIRONMENTS[dataset], ENVIRONMENTS_FOLDER))
    return named.get(dataset, sys.executable)


def census_words(job: Job) -> tuple[str, ...]:
    """What the census of a job depends on: its command, but of a timm model all batches are alike."""
    return tuple(job.command[:2]) if job.dataset == "timm" else tuple(job.command)


def count(jobs: Sequence[Job], python: str, cache: Cache) -> None:
    """Takes the census that the cache does not have yet, or that failed."""
    first: dict[tuple[str, ...], Job] = {}
    for job in jobs:
        if "parameters" not in (cache.get(CENSUS, census_words(job)) or {}):
            first.setdefault(census_words(job), job)
    for place, (job, found) in enumerate(
        zip(first.values(), census.take(list(first.values()), python), strict=False), 1
    ):
        cache.put(CENSUS, census_words(job), {"batch": job.batch, **found})
        if place % 20 == 0:
            print(f"census {place}/{len(first)}", flush=True)


def counted(job: Job, cache: Cache) -> Census | None:
    """The census of a job from the cache, for its batch; None where it could not be taken."""
    found = cache.get(CENSUS, census_words(job))
    try:
        return None if found is None else census.scaled(census.parse(found), int(found["batch"]), job.batch)
    except census.CensusError:
        return None


def check(jobs: Sequence[Job], python: str, cache: Cache, many: int) -> None:
    """Holds the allocator's peaks of some jobs against those of `gpumem estimate`."""
    version = ours.torch_version(python)
    for job in random.Random(SEED).sample(list(jobs), min(many, len(jobs))):
        alone = cache.get(ours.ALLOCATOR, ours.words(job, job.command, version))
        said = cache.get("check", ours.words(job, job.command, version))
        if said is None:
            said = ours.estimated(job.command, job.gpu, python, WHOLE)
            cache.put("check", ours.words(job, job.command, version), said)
        both = (said.get("reserved_peak_bytes"), alone and alone.get("reserved"))
        print(f"{'same' if both[0] == both[1] else 'differs'} {job.name}: {both[0]} {both[1]}", flush=True)


def learn(rows: Sequence[tuple[Job, Census]], cache: Cache) -> Mapping[str, Sequence[int | None]]:
    """The learned estimators' answers in bytes by "data set/job"; kept for the same set of rows."""
    names = [f"{job.dataset}/{job.name}" for job, _ in rows]
    known = cache.get(LEARNED, [hashlib.sha256("\n".join(names).encode()).hexdigest()])
    if known is not None:
        return known
    try:
        answers = learned.out_of_fold(rows)
    except ValueError as error:
        print(f"learned estimators: {error}", file=sys.stderr)
        return {}
    said = {
        f"{dataset}/{name}": [answer.regressed_bytes, answer.range_bytes]
        for (dataset, name), answer in answers.items()
    }
    cache.put(LEARNED, [hashlib.sha256("\n".join(names).encode()).hexdigest()], said)
    return said


def main() -> int:
    """Runs what is missing, prints the tables and writes the files."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.accuracy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", type=Path, metavar="DATA_FOLDER")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="SET=PYTHON",
        help="interpreter for the jobs of a set",
    )
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="jobs by name")
    parser.add_argument(
        "--models", type=int, metavar="N", help="so many timm models, chosen at random (seeded)"
    )
    parser.add_argument("--check", type=int, default=0, metavar="N", help="rows to run in both ways")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "accuracy.jsonl", metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here, and no documents")
    parser.add_argument("--report-only", action="store_true", help="run nothing; report what the cache has")
    options = parser.parse_args()
    named = dict(one.split("=", 1) for one in options.python)
    sets = options.sets.split(",")
    try:
        jobs = read(options.data, sets)
        pythons = {name: python_of(name, named) for name in sets}
    except (RowsError, KeyError, NotMade) as error:
        print(f"bench.accuracy: {error}", file=sys.stderr)
        return 2
    cache = Cache(options.cache)
    cards = {key: gpu.usable_bytes for key, gpu in catalog.load().gpus.items()}
    tables: dict[str, list[Row]] = {}
    versions: dict[str, str] = {}
    all_counted = []
    for dataset in sets:
        wanted = chosen([job for job in jobs if job.dataset == dataset], options.only, options.models)
        if not wanted:
            continue
        python = pythons[dataset]
        versions[dataset] = ours.torch_version(python)
        if not options.report_only:
            if dataset not in FITTED:
                ours.run_estimates(wanted, python, cache)
            ours.run_allocator(wanted, python, cache)
            if dataset in FITTED:  # what needs the tracer, such as Triton's stand-in
                ours.run_estimates(
                    [job for job in wanted if ours.failed(job, versions[dataset], cache)], python, cache
                )
            if dataset != "own":
                count(wanted, python, cache)
        if options.check and dataset in FITTED:
            check(wanted, python, cache, options.check)
        found = [(job, ours.answers(job, versions[dataset], cache)) for job in wanted]
        found = [(job, raws) for job, raws in found if raws[0] is not None]
        constants = outside_of(found)
        rows = [row_of(job, raws, constants) for job, raws in found]
        add_peers(rows, lambda job: counted(job, cache), peers.PEERS)
        if rows:
            tables[dataset] = rows
    for job in jobs:  # the learned estimators learn from all rows, whether we were asked for them or not
        known = counted(job, cache)
        if known is not None:
            all_counted.append((job, known))
    said = learn(all_counted, cache)
    for row in (row for rows in tables.values() for row in rows):
        answer = said.get(f"{row.job.dataset}/{row.job.name}", (None, None))
        row.answers.update(zip(peers.LEARNED, answer, strict=True))
    for rows in tables.values():
        print(report.table(rows, cards), flush=True)
    results = json.dumps(report.as_json(tables, cards, versions), indent=None, separators=(",", ":"))
    results = results.replace('{"dataset"', '\n{"dataset"') + "\n"
    if options.json or options.only or set(sets) != set(SETS):
        if options.json:
            options.json.write_text(results)
        return 0
    RESULTS.write_text(results)
    PICTURE.write_text(report.picture(tables, cards))
    DOCUMENT.write_text(report.replaced(DOCUMENT.read_text(), report.section(tables, cards, versions)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
