"""`make demo`: two PyTorch jobs of an ordinary user come to share one GPU, on a pretend cluster.

Exit code 0 only if everything that is claimed was seen; 1 if not; 2 if the cluster cannot be started.
"""

from __future__ import annotations

import argparse
import io
import itertools
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from history import client
from history.table import print_table
from history.wire import JobRecord
from testbed import nodes
from testbed.cluster import ClusterError, parse_job
from testbed.site import Site, SiteError, commands
from testbed.story import GIB, JobStory, Place, Step, gib, shards_of
from testbed.users import User, UserError

USER = "gpumem-alice"
SHARING_JOBS = ("resnet50", "gpt2")
OTHER_JOB = "hello"
LOOK_EVERY_S = 0.2
_STYLES = {Step.SHARING: "bold green", Step.REWRITTEN: "green", Step.HISTORY: "cyan"}


@dataclass
class Demo:
    """The jobs of the demo, and what was seen of them; tells `tell` of every new step."""

    site: Site
    stories: list[JobStory]
    tell: Callable[[JobStory, Step], None]
    started: float = field(default_factory=time.monotonic)
    shared: Place | None = None

    def finished(self) -> bool:
        """Whether every job has ended and is in the history as far as it will be."""
        return all(
            story.ended and (story.name == OTHER_JOB or Step.HISTORY in story.steps) for story in self.stories
        )

    def look(self) -> None:
        """Looks at Slurm, the history and the GPUs once."""
        now_s = time.monotonic() - self.started
        lines = self.site.cluster.scontrol("-o", "show", "job", "-d", "-a").splitlines()
        jobs = {int(job["JobId"]): job for job in map(parse_job, lines) if "JobId" in job}
        records = {record.job_id: record for record in self.site.history()}
        for story in self.stories:
            slurm = jobs[story.job_id]
            for step in story.look(slurm, records.get(story.job_id), self.site.shards_per_gpu, now_s):
                self.tell(story, step)
        for one, other in itertools.combinations(self.stories, 2):
            if one.place is not None and one.place == other.place and self._both_hold_memory(one.place):
                self.shared = one.place
                for story, with_whom in ((one, other), (other, one)):
                    if story.note(Step.SHARING, f"{one.place} with {with_whom.name}", now_s):
                        self.tell(story, Step.SHARING)

    def used(self, where: Place) -> list[int]:
        """Bytes that each process holds on a GPU now."""
        folder = self.site.node_folder(where.node)
        uuid = nodes.uuids(folder)[where.gpu]
        running = (process for process in nodes.processes(folder) if process.running)
        return [used for process in running for gpu, used, _ in process.usage if gpu == uuid and used]

    def _both_hold_memory(self, where: Place) -> bool:
        return len(self.used(where)) >= 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--examples", type=Path, default=Path("examples"), help="folder of the batch scripts")
    parser.add_argument("--timeout", type=float, default=150, help="seconds until the demo gives up")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw what was printed into a picture")
    options = parser.parse_args(argv)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # stops everything on its way out
    console = Console(
        highlight=False,
        soft_wrap=not (sys.stdout.isatty() or options.svg),
        record=options.svg is not None,
        width=110 if options.svg else None,
    )
    begun = time.monotonic()
    try:
        with Site(settings={"service": {"tracers": len(SHARING_JOBS) + 1}}) as site:
            _introduce(console, site)
            demo = _submit(site, options.examples, console)
            with _shown(demo, console):
                _follow(demo, options.timeout)
            checks = check(demo.stories, demo.shared, site.cluster.drained())
            _conclude(console, demo, checks)
            folder = site.folder
    except (ClusterError, SiteError, UserError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("demo: interrupted; everything is stopped", file=sys.stderr)
        return 130
    console.print(f"All stopped, {folder} is gone; {time.monotonic() - begun:.0f} s in all.")
    if options.svg:
        picture = console.export_svg(title="make demo")
        options.svg.write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL))  # no downloads
    return 0 if all(ok for _, ok in checks) else 1


def _submit(site: Site, examples: Path, console: Console) -> Demo:
    """Submits the batch scripts as an ordinary user, whose home has a copy of `examples` and the `.venv`."""
    user = site.user(USER)
    folder = user.home / "examples"
    shutil.copytree(examples, folder)
    for path in (folder, *folder.iterdir()):
        shutil.chown(path, user.uid, user.gid)
    (user.home / ".venv").symlink_to(commands().parent)
    names = (*SHARING_JOBS, OTHER_JOB)
    stories = [JobStory(name, _sbatch(site, user, name, console)) for name in names]
    return Demo(site, stories, tell=lambda story, step: None)


def _sbatch(site: Site, user: User, name: str, console: Console) -> int:
    script = Path("examples") / f"{name}.sbatch"
    done = site.cluster.try_sbatch(script, user=user, cwd=user.home)
    if done.returncode != 0:
        raise ClusterError(f"sbatch {script}: {done.stderr.strip()}")
    job_id = int(done.stdout)
    console.print(f"{user.name}$ [bold]sbatch {script}[/]\nSubmitted batch job {job_id}")
    for line in done.stderr.splitlines():
        console.print(Text(line.removeprefix("sbatch: "), "dim"))
    return job_id


def _follow(demo: Demo, timeout_s: float) -> None:
    """Looks until all is done; gives up in silence, the checks will tell."""
    while not demo.finished() and time.monotonic() - demo.started < timeout_s:
        try:
            demo.look()
        except client.Unreachable:
            return
        time.sleep(LOOK_EVERY_S)


# ---- what must have been seen


def check(
    stories: Sequence[JobStory], shared: Place | None, drained: dict[str, str]
) -> list[tuple[str, bool]]:
    """All that the demo claims, and whether it was seen."""
    by_name = {story.name: story for story in stories}
    checks: list[tuple[str, bool]] = []
    for name in SHARING_JOBS:
        story = by_name[name]
        wanted = (Step.DEFERRED, Step.TRACED, Step.REWRITTEN, Step.RUNNING, Step.EPILOG, Step.HISTORY)
        checks.append((f"{name}: {', '.join(wanted)}", all(step in story.steps for step in wanted)))
        checks.append((f"{name}: ended well", _ended_well(story)))
        checks.append((f"{name}: measured peak is within what it got", _fits(story.record)))
    together = " and ".join(SHARING_JOBS)
    checks.append((f"{together} ran at the same time on {shared or 'one GPU'}", shared is not None))
    other = by_name[OTHER_JOB]
    unchanged = Step.PASSED in other.steps and other.steps.get(Step.RUNNING, "").endswith(" gpu:1")
    checks.append((f"{OTHER_JOB}: not PyTorch, passed unchanged and ran", unchanged and _ended_well(other)))
    checks.append(("no node was drained", not drained))
    return checks


def _ended_well(story: JobStory) -> bool:
    return story.slurm.get("JobState") == "COMPLETED" and story.slurm.get("ExitCode") == "0:0"


def _fits(record: JobRecord | None) -> bool:
    if record is None or record.measured_peak_bytes is None or record.estimated_peak_bytes is None:
        return False
    shards = shards_of(record.got or "")
    return shards is not None and record.measured_peak_bytes <= shards * GIB


# ---- what is shown


def _introduce(console: Console, site: Site) -> None:
    cluster = site.cluster
    console.print(
        f"A pretend cluster in {site.folder}: {len(cluster.nodes)} nodes with {cluster.gpus_per_node} GPUs "
        f"each ({site.gpu.name}), {site.shards_per_gpu} shards of 1 GiB per GPU.\n"
        "Slurm, gpumemd, prolog, epilog and PyTorch are real; the GPUs count memory but compute nothing.\n"
    )


@contextmanager
def _shown(demo: Demo, console: Console) -> Iterator[None]:
    """Shows the jobs while they go their way: live on a terminal, else a line for each step."""
    console.print()
    if not console.is_terminal:
        demo.tell = lambda story, step: console.print(_line(story, step))
        yield
        return
    with Live(get_renderable=lambda: _picture(demo), console=console, refresh_per_second=8):
        yield


def _line(story: JobStory, step: Step) -> Text:
    head = f"{story.times[step]:5.1f} s  job {story.job_id} {story.name:<9} "
    return Text(head).append(f"{step.value}: ", _STYLES.get(step, "")).append(story.steps[step])


def _picture(demo: Demo) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("JOB", "SCRIPT", "STATE", "WAY"):
        table.add_column(name, header_style="bold", no_wrap=name != "WAY")
    for story in demo.stories:
        way = Text(" → ").join(_short(step, text) for step, text in story.steps.items())
        table.add_row(str(story.job_id), f"{story.name}.sbatch", story.slurm.get("JobState", "").lower(), way)
    places = sorted({story.place for story in demo.stories if story.place}, key=str)
    gpus = [_gpu_line(demo, where) for where in places]
    return Group(table, Text(), *gpus)


def _short(step: Step, text: str) -> Text:
    words = {
        Step.TRACED: f"traced, {text}" if text.startswith("needs") else "traced, no estimate",
        Step.REWRITTEN: text.rpartition(" ")[2],
        Step.RUNNING: text.partition(" with ")[0].removeprefix("on "),
        Step.SHARING: f"sharing with {text.rpartition(' ')[2]}",
        Step.HISTORY: text,
    }
    unbroken = words.get(step, step.value).replace(" ", "\N{NO-BREAK SPACE}")
    return Text(unbroken, _STYLES.get(step, ""))


def _gpu_line(demo: Demo, where: Place) -> Text:
    total, width = demo.site.gpu.memory_bytes, 40
    used = demo.used(where)
    line = Text(f"{where}  ")
    filled = 0
    for index, size in enumerate(used):
        cells = max(1, round(width * size / total))
        line.append("█" * cells, ("cyan", "magenta", "green")[index % 3])
        filled += cells
    line.append("·" * (width - filled), "dim")
    jobs = "  ".join(story.name for story in demo.stories if story.place == where)
    return line.append(f"  {gib(sum(used))} of {gib(total)}  {jobs}")


def _conclude(console: Console, demo: Demo, checks: Sequence[tuple[str, bool]]) -> None:
    console.print()
    table = io.StringIO()
    print_table([story.record for story in demo.stories if story.record], table)
    console.print(Text(table.getvalue()))
    for text, ok in checks:
        console.print(Text("✓ " if ok else "✗ ", "green" if ok else "red").append(text))
    if all(ok for _, ok in checks):
        return
    console.print("\n[red]Not everything was seen.[/] The jobs' last lines, and gpumemd's:")
    for story in demo.stories:
        output = demo.site.cluster.output(story.job_id).splitlines()[-5:]
        console.print(Text("\n".join([f"-- {story.name}: {story.slurm.get('JobState')}", *output])))
    console.print(Text("\n".join(["-- gpumemd", *demo.site.service_log().splitlines()[-15:]])))


if __name__ == "__main__":
    sys.exit(main())
