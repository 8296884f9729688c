"""Builds the fake CUDA device (C++) beside the Python packages; the rest is in pyproject.toml.

`python setup.py build_fake_cuda` builds only the libraries, into estimator/fake_cuda/lib.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, find_namespace_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "estimator" / "fake_cuda"
# small libraries; all other sources make libgpumem_cuda.so
ALONE = {"libnvidia-ml.so.1": ["nvml.cpp"], "libgpumem_start.so": ["start.cpp", "opened.cpp", "programs.cpp"]}
FLAGS = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
# Loaded into other people's Python: bring no C++ runtime that could stand in the way of theirs, and
# no unused parts of ours, which ask for a newer C library than a container may have.
STATIC_RUNTIME = ["-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL", "-Wl,--gc-sections"]


def compiler() -> str:
    """The C++ compiler to use: $CXX, else the first that is installed."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "c++", "clang++")):
        if shutil.which(name):
            return name
    sys.exit("gpumem needs a C++ compiler (set CXX, or install g++ 10 or newer)")


def run(command: list[str]) -> None:
    """Runs a command of the build; ends with one line when it fails (the command has said why)."""
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"building the fake CUDA device failed: {' '.join(command)}")


def compile_sources(sources: list[Path], objects: Path) -> list[Path]:
    """Compiles what is older than its source or any header; returns the object files."""
    headers = max(path.stat().st_mtime for path in SOURCES.glob("*.h"))

    def compile_one(source: Path) -> Path:
        target = objects / f"{source.stem}.o"
        if not target.exists() or target.stat().st_mtime < max(headers, source.stat().st_mtime):
            run([compiler(), *FLAGS, *WARNINGS, "-c", str(source), "-o", str(target)])
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, sources))


def link(objects: list[Path], soname: str, folder: Path) -> None:
    """Links a shared library, replacing an old one in one step (it may be in use)."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{soname}.new"
    command = [
        compiler(),
        "-shared",
        f"-Wl,-soname,{soname}",
        "-Wl,-z,defs",
        "-Wl,-Bsymbolic-functions",
        "-o",
        str(fresh),
    ]
    inputs = [*map(str, objects), "-ldl", "-lpthread"]
    static = subprocess.run([*command, *STATIC_RUNTIME, *inputs], capture_output=True, check=False)
    if static.returncode != 0:  # no static C++ runtime here
        run([*command, *inputs])
    fresh.replace(folder / soname)


def build_libraries(folder: Path, objects: Path) -> None:
    """Builds the libraries into `folder`."""
    objects.mkdir(parents=True, exist_ok=True)
    sources = sorted(SOURCES.glob("*.cpp"))
    compiled = dict(zip((source.name for source in sources), compile_sources(sources, objects), strict=True))
    for soname, own in ALONE.items():
        link([compiled.pop(source) for source in own], soname, folder)
    link(list(compiled.values()), "libgpumem_cuda.so", folder)


class BuildFakeCuda(Command):
    """Builds the fake CUDA device in place."""

    description = "build the fake CUDA device (estimator/fake_cuda/lib)"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = []

    def initialize_options(self) -> None:
        """No options."""

    def finalize_options(self) -> None:
        """No options."""

    def run(self) -> None:
        """Compiles what changed and links."""
        build_libraries(SOURCES / "lib", ROOT / "build" / "fake_cuda")


class BuildPython(build_py):
    """Builds the libraries before the package files are collected."""

    def run(self) -> None:
        """Both editable installs and wheels come through here."""
        self.run_command("build_fake_cuda")
        super().run()


class PlatformDistribution(Distribution):
    """Holds compiled libraries, though no Python extensions."""

    def has_ext_modules(self) -> bool:
        """True: it is installed where platform-specific packages are."""
        return True


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 on this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """The libraries do not depend on the version of Python."""
        return "py3", "none", super().get_tag()[2]


PLUGIN = "slurm_plugin/job_submit.lua"  # an administrator finds it beside the other files to be copied
PACKAGES = ("settings", "estimator", "history", "slurm_plugin", "prolog", "testbed")

setup(
    distclass=PlatformDistribution,
    cmdclass={"build_fake_cuda": BuildFakeCuda, "build_py": BuildPython, "bdist_wheel": PlatformWheel},
    packages=find_namespace_packages(
        include=[pattern for name in PACKAGES for pattern in (name, f"{name}.*")],
        exclude=["*.lib", "*.__pycache__*"],
    ),
    include_package_data=False,
    package_data={
        "": ["py.typed"],
        "estimator.fake_cuda": ["lib/*.so", "lib/*.so.*"],
        "slurm_plugin": ["*.lua"],
        "history": ["migrations/*.mako", "migrations/*.ini", "*.ini"],
    },
    data_files=[("share/gpumem", [*sorted(f"etc/{path.name}" for path in (ROOT / "etc").iterdir()), PLUGIN])],
)
