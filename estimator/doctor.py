"""`gpumem doctor`: what this machine can do, and what to mend where it cannot."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from settings import Settings

State = Literal["ok", "weak", "failed", "absent"]

MARKS: dict[State, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "weak": ("weak", "yellow"),
    "failed": ("failed", "bold red"),
    "absent": ("-", "dim"),
}
OLDEST_LINUX = (5, 12)
NAMESPACE_SWITCHES = (
    # file, the value that is in the way, what to do
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "an AppArmor profile with `userns` for gpumem's Python, or "
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


@dataclass(frozen=True)
class Finding:
    """The result of one check. `failed` keeps jobs from being estimated here, `absent` is only told."""

    check: str
    state: State
    found: str
    advice: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as a JSON list.")] = False,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="gpumem.toml. [default: /etc/gpumem/gpumem.toml]")
    ] = None,
) -> None:
    """Tell what this machine can do for estimates, and what to mend where it cannot.

    Checks are made as the user who asks, with that user's PATH and Python.

    Exit status: 0 jobs can be estimated here, 1 they cannot.
    """
    findings = list(examine(config, os.environ))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        _show(findings)
    raise typer.Exit(int(any(finding.state == "failed" for finding in findings)))


def examine(config: Path | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    """All checks, one after the other."""
    yield _linux(platform.release(), platform.machine())
    required = True
    settings_finding, settings = _settings(config)
    yield settings_finding
    if settings is not None:
        required = settings.estimate.require_containment
        yield _catalog(settings)
    yield _containment(required)
    yield _fake_device()
    yield _containers(environment.get("PATH", os.defpath))
    yield _torch(environment)
    yield _program("Slurm", "scontrol", "--version", environment)
    if settings is not None:
        yield _service(settings.service.user_socket)


def _linux(release: str, machine: str) -> Finding:
    match = re.match(r"(\d+)\.(\d+)", release)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    found = f"{release} on {machine}"
    if machine != "x86_64":
        return Finding("Linux", "failed", found, "the fake CUDA device is made for x86-64")
    if version < OLDEST_LINUX:
        return Finding("Linux", "weak", found, "namespaces can contain a script from Linux 5.12 on")
    return Finding("Linux", "ok", found)


def _settings(config: Path | None) -> tuple[Finding, Settings | None]:
    import settings

    try:
        loaded = settings.load(config)
    except settings.SettingsError as error:
        return Finding("configuration", "failed", str(error), "see etc/gpumem.toml for every key"), None
    on = [name for name, partition in loaded.partitions.items() if partition.enabled]
    told = f"partitions switched on: {', '.join(on) or 'none'}"
    return Finding("configuration", "ok", told), loaded


def _catalog(settings: Settings) -> Finding:
    from estimator.catalog import CatalogError, load

    try:
        catalog = load(settings.estimate.gpus_file)
        for partition in settings.partitions.values():
            catalog.find(partition.gpu)
    except CatalogError as error:
        return Finding(
            "GPU catalogue", "failed", str(error), "name the partition's GPU as the catalogue does"
        )
    return Finding("GPU catalogue", "ok", f"{len(catalog.gpus)} models")


def _containment(required: bool) -> Finding:
    """Runs a small script contained, which is the only proof that it can be done."""
    from estimator import sandbox
    from estimator.restrict import landlock_version

    with tempfile.TemporaryDirectory(prefix="gpumem-doctor-") as made:
        folder = Path(made).resolve()
        attempt = ["/bin/sh", "-c", "echo written > file && cat file"]
        try:
            outcome = sandbox.run(
                attempt,
                cwd=folder,
                environment={"PATH": os.defpath},
                discard=[folder],
                limits=sandbox.Limits(wall_s=20.0),
            )
        except sandbox.Refused as refused:
            advice = "; ".join(_switches(lambda path: Path(path).read_text(encoding="ascii"))) or (
                "ask for user namespaces, or let the service trace on a machine that has them"
            )
            if required:
                return Finding("containment", "failed", str(refused), advice)
            version = landlock_version()
            weaker = f"Landlock {version}: writes fail" if version else "none: what a script writes stays"
            return Finding("containment", "weak", f"{refused}; instead: {weaker}", advice)
        if outcome.tail != "written\n" or (folder / "file").exists():
            return Finding("containment", "weak", "; ".join(outcome.notes) or "a script could not write")
    return Finding(
        "containment", "ok", "namespaces: a script reads, computes, and what it writes is forgotten"
    )


def _switches(read: Callable[[str], str]) -> list[str]:
    """What an administrator can change so that users may make namespaces."""
    advice = []
    for path, obstacle, remedy in NAMESPACE_SWITCHES:
        try:
            value = read(path).strip()
        except OSError:
            continue
        if value == obstacle:
            advice.append(remedy)
    return advice


def _fake_device() -> Finding:
    from estimator.dry_run import missing_parts

    if missing := missing_parts():
        told = f"{', '.join(map(str, missing))}: missing"
        return Finding("fake CUDA device", "failed", told, "install gpumem again, with g++")
    return Finding("fake CUDA device", "ok", "installed")


def _containers(search_path: str) -> Finding:
    """Whether jobs in container images can be traced."""
    from estimator import containers, image_files

    programs = containers.installed(search_path)
    names = ", ".join(map(str, programs))
    if not names:
        return Finding("container images", "absent", "no apptainer, singularity or ch-run on PATH")
    if os.geteuid() == 0:
        return Finding("container images", "weak", f"{names}: {containers.NOT_AS_ROOT}")
    servers = image_files.servers(search_path, programs)
    obstacle = image_files.obstacle()
    if obstacle or "squashfs" not in servers:
        told = f"{names}; folders only, no image files: {obstacle or 'there is no squashfuse'}"
        return Finding("container images", "weak", told, "install squashfuse, open /dev/fuse to users (0666)")
    return Finding("container images", "ok", f"{names}; image files by {', '.join(servers.values())}")


def _torch(environment: Mapping[str, str]) -> Finding:
    """Which PyTorch the first Python on the user's PATH has; it is not imported."""
    python = shutil.which("python", path=environment.get("PATH")) or shutil.which(
        "python3", path=environment.get("PATH")
    )
    if python is None:
        return Finding("PyTorch", "absent", "no python on PATH", "a batch script activates its own")
    look = (
        "import importlib.util, os; spec = importlib.util.find_spec('torch'); "
        "print(os.path.dirname(spec.origin) if spec and spec.origin else '')"
    )
    try:
        done = subprocess.run([python, "-c", look], capture_output=True, text=True, timeout=20, check=False)
        folder = done.stdout.strip()
        text = Path(folder, "version.py").read_text(encoding="utf-8") if folder else ""
    except (OSError, subprocess.SubprocessError):
        folder, text = "", ""
    if not folder:
        return Finding("PyTorch", "absent", f"none for {python}", "a batch script activates its own")
    version = re.search(r"__version__ = ['\"]([^'\"]+)", text)
    cuda = re.search(r"^cuda\b.*?=\s*['\"]([\d.]+)", text, re.MULTILINE)
    name = f"{version[1] if version else 'unknown version'} for {python}"
    if cuda is None:
        return Finding(
            "PyTorch", "weak", f"{name}, without CUDA", "install the CUDA build of the compute nodes"
        )
    return Finding("PyTorch", "ok", f"{name}, CUDA {cuda[1]}")


def _program(check: str, name: str, option: str, environment: Mapping[str, str]) -> Finding:
    path = shutil.which(name, path=environment.get("PATH"))
    if path is None:
        return Finding(check, "absent", f"no {name} on PATH")
    try:
        done = subprocess.run([path, option], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(check, "weak", f"{path}: {error}")
    told = (done.stdout or done.stderr).strip().partition("\n")[0]
    if done.returncode != 0:
        return Finding(check, "weak", told or f"{path} fails", "jobs cannot be submitted from here")
    return Finding(check, "ok", told)


def _service(path: Path) -> Finding:
    if not path.exists():
        return Finding("gpumemd", "absent", f"no {path}: it does not run on this machine")
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2.0)
            connection.connect(str(path))
    except OSError as error:
        return Finding("gpumemd", "weak", f"{path}: {error.strerror}", "systemctl status gpumemd")
    return Finding("gpumemd", "ok", f"listens on {path}")


def _show(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        mark, style = MARKS[finding.state]
        text = Text(finding.found)
        if finding.advice and finding.state != "ok":
            text.append(f"\n-> {finding.advice}", style="dim")
        table.add_row(Text(mark, style=style), finding.check, text)
    Console().print(table, highlight=False)
