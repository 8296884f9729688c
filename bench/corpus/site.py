"""A pretend HPC site for batch scripts whose own site is not here: its commands, and where one may write.

These are stand-ins for what such scripts find where they belong: environment modules, conda, uv, containers,
profilers. They are no part of gpumem, which meets them as it would meet the real ones.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

# PyTorch, as far as a plan needs it: a plan ends at its import, which takes seconds for the real one.
_TORCH = '''"""Stands in for PyTorch where only its import matters."""
import os

__version__ = "2.6.0"


class cuda:
    @staticmethod
    def device_count():
        return len([one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one])

    @staticmethod
    def is_available():
        return bool(cuda.device_count())
'''

# Takes off the options of a program that starts another one. Those named take a value of their own.
_RUNS = """#!/bin/sh
# @NAME@: starts the command that it is given.
while [ $# -gt 0 ]; do
    case $1 in
    --) shift; break ;;
    --env) export "$2"; shift 2 ;;
    --env=*=*) export "${1#*=}"; shift ;;
    @VALUED@) shift 2 ;;
    -*|*=*) shift ;;
    @WORDS@) shift ;;
    *) break ;;
    esac
done
@BEFORE@
[ $# -gt 0 ] || exit 0
exec "$@"
"""

# name: (options with a value, words of its own before the command, what is done before)
_STARTERS = {
    "numactl": ("-N|-m|-C|-i|-p", "''", ""),
    "nsys": ("-o|-t|-s|-c|-w|-f|-e|-y|-d|-b", "profile|launch", ""),
    "ncu": ("-o|-k|-c|-s|-f", "''", ""),
    "apptainer": ("-B|-H|-W|--bind|--env|--home|--pwd|--workdir|--overlay", "exec|run", "shift"),
    "uv": (
        "--with|--directory|--project|--python|-p|--extra|--group|--env-file",
        "run",
        'case ${1:-} in pip|sync|venv|lock|add|tool) exit 0 ;; *.py) exec python "$@" ;; esac',
    ),
    "pipenv": ("''", "run", 'case ${1:-} in install|sync|lock) exit 0 ;; esac'),
    "poetry": ("''", "run", 'case ${1:-} in install|lock) exit 0 ;; esac'),
    "conda": ("-n|-p|--name|--prefix", "run|activate", ""),
    "shifter": ("-e|--env|--image|--module|-V|--volume", "''", ""),
    "podman-hpc": ("-e|--env|-v|--volume|-w", "run", "shift"),
    "time": ("-o|-f", "''", ""),
    "ibrun": ("-n|-o", "''", ""),
    "jsrun": ("-n|-r|-a|-c|-g|-b|-d", "''", ""),
    "flux": ("-n|-N|-g|-c", "run|submit", ""),
}  # fmt: skip

IN_IMAGE = "in_image"  # as apptainer, but not known to gpumem, which wants the image to be here

_PARALLEL = """#!/bin/sh
# GNU parallel, as far as `parallel [-j N] COMMAND ::: ARGUMENTS` goes, one after another.
command=
while [ $# -gt 0 ]; do
    case $1 in
    :::) shift; break ;;
    -j|--jobs|--delay|--joblog) if [ -z "$command" ]; then shift 2; else command="$command $1"; shift; fi ;;
    -*) [ -z "$command" ] || command="$command $1"; shift ;;
    *) command="$command $1"; shift ;;
    esac
done
for argument in "$@"; do
    case $command in
    *{}*) sh -c "$(printf '%s' "$command" | sed "s/{}/$argument/g")" ;;
    *) sh -c "$command $argument" ;;
    esac
done
"""

_CONDA = """#!/bin/sh
# conda: its environments are all the one that is there.
case "$1 $2" in
"shell.bash "*|"shell.posix "*|"shell hook"*) echo 'conda() { command conda "$@"; }; mamba() { :; }' ;;
"info --base") echo "@SITE@" ;;
esac
case $1 in
run)
    shift
    while [ $# -gt 0 ]; do
        case $1 in
        -n|-p|--name|--prefix|--cwd) shift 2 ;;
        -*) shift ;;
        *) break ;;
        esac
    done
    exec "$@" ;;
esac
exit 0
"""

_FUNCTIONS = """# What interactive shells, and batch scripts, find at a site with environment modules.
module() { :; }
ml() { :; }
"""

_PATH = 'export PATH="@BIN@:$PATH" BASH_ENV="${BASH_ENV:-@START@}"\n'


@dataclass(frozen=True)
class Site:
    """The site in `folder`: the environment of a user who submits there."""

    folder: Path
    environment: dict[str, str]


def build(folder: Path, functions: str = "") -> Site:
    """Makes the site below `folder`; `functions` are of all its batch scripts (bash)."""
    programs, home, packages = folder / "bin", folder / "home", packages_of(folder)
    for place in (programs, home, packages / "torch", folder / "etc" / "profile.d", folder / "scratch"):
        place.mkdir(parents=True)
    (packages / "torch" / "__init__.py").write_text(_TORCH)
    (packages / "torch" / "version.py").write_text("__version__ = '2.6.0'\n")
    interpreter = os.path.realpath(sys.executable)  # without the packages of the environment it is run in
    (folder / "pyvenv.cfg").write_text(f"home = {Path(interpreter).parent}\n")
    for name in ("python", "python3", *(f"python3.{minor}" for minor in range(5, 15))):
        (programs / name).symlink_to(interpreter)
    conda = _CONDA.replace("@SITE@", str(folder))
    launcher = f"#!{programs}/python\nimport torch\n"  # as those of pip: their launcher imports PyTorch
    texts = {
        **{name: _starter(name, *about) for name, about in _STARTERS.items()},
        **{name: _starter(name, *_STARTERS["apptainer"]) for name in ("singularity", IN_IMAGE)},
        "parallel": _PARALLEL,
        **dict.fromkeys(("conda", "mamba", "micromamba"), conda),
        **dict.fromkeys(("torchrun", "accelerate", "deepspeed", "composer", "colossalai", "tune"), launcher),
        **dict.fromkeys(("module", "ml"), "#!/bin/sh\n"),
    }
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    start = folder / "etc" / "functions.sh"
    start.write_text(_FUNCTIONS + functions)
    (folder / "etc" / "profile.d" / "conda.sh").write_text('conda() { command conda "$@"; }\n')
    profile = _PATH.replace("@BIN@", str(programs)).replace("@START@", str(start)) + f". {start}\n"
    (home / ".bash_profile").write_text(profile)
    (home / ".bashrc").write_text(profile)
    environment = {
        "BASH_ENV": str(start),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "LC_CTYPE": "C.UTF-8",
        "LOGNAME": "user",
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SCRATCH": str(folder / "scratch"),
        "SHELL": "/bin/bash",
        "TERM": "xterm",  # sbatch passes it on, and `clear` wants it
        "TMPDIR": "/tmp",
        "USER": "user",
        "WORK": str(folder / "scratch"),
    }
    return Site(folder, environment)


def packages_of(folder: Path) -> Path:
    """Where the packages of the site's Python lie; scripts may set PYTHONPATH as they like."""
    return folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _starter(name: str, valued: str, words: str, before: str) -> str:
    text = _RUNS
    for mark, new in (("@NAME@", name), ("@VALUED@", valued), ("@WORDS@", words), ("@BEFORE@", before)):
        text = text.replace(mark, new)
    return text
