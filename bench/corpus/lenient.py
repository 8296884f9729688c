"""What lets scripts go on whose files, programs and packages are not here."""

from __future__ import annotations

import re
from pathlib import Path

from bench.corpus import site

# bash: what is missing is passed over; commands that need it succeed.
FUNCTIONS = """
source() { if [ -e "$1" ] && [ "$1" != /etc/profile ]; then builtin source "$@"; fi; }
function . { if [ -e "$1" ] && [ "$1" != /etc/profile ]; then builtin . "$@"; fi; }
cd() { builtin cd "$@" 2> /dev/null || :; }
pushd() { builtin pushd "$@" > /dev/null 2>&1 || :; }
popd() { builtin popd "$@" > /dev/null 2>&1 || :; }
for command in cat chmod cp ln ls mkdir mv rm tar touch unzip; do
    eval "$command() { command $command \\"\\$@\\" 2> /dev/null || :; }"
done
unset command
conda() {
    case $1 in
    activate) export CONDA_PREFIX="$HOME" CONDA_DEFAULT_ENV="${2:-base}" ;;
    *) command conda "$@" ;;
    esac
}
# what is in images that are not here is what is here
singularity() { @IN_IMAGE@ "$@"; }
apptainer() { @IN_IMAGE@ "$@"; }
# an environment of another site is the one that is here
srun() {
    local word words=()
    for word; do
        case $word in
        singularity|apptainer) word=@IN_IMAGE@ ;;
        */bin/python*|*/bin/torchrun|*/bin/accelerate|*/bin/deepspeed) [ -x "$word" ] || word=${word##*/} ;;
        esac
        words+=("$word")
    done
    command srun "${words[@]}"
}
command_not_found_handle() { :; }
""".replace("@IN_IMAGE@", site.IN_IMAGE)

# Python: a program that is not here ends well; a package that is not here has whatever is asked of it.
_CUSTOMIZE = '''"""Passes over programs and packages that are not here."""
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys


class Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Thing

    def __iter__(cls):
        return iter(())


class Thing(metaclass=Anything):
    def __init__(self, *arguments, **named):
        pass

    def __call__(self, *arguments, **named):
        return Thing()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Thing()

    def __iter__(self):
        return iter(())


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if name.startswith("_") or top in sys.stdlib_module_names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module):
        module.__path__ = []
        module.__getattr__ = lambda name: getattr(Thing, name)


def program(words):
    while words:
        word = words.pop(0)
        if word in ("-W", "-X"):
            words = words[1:]
        elif word in ("-c", "-"):
            return None
        elif word.startswith("-") and word.endswith("m") and not word.startswith("--"):
            return words[0].partition(".")[0] if words else None
        elif not word.startswith("-"):
            return word
    return None


with open("/proc/self/cmdline") as file:
    words = file.read().split("\\0")[1:-1]
name = program(list(words))
if name is not None:
    sys.path.insert(0, os.getcwd())
    here = os.path.exists(name) if "/" in name or name.endswith(".py") else importlib.util.find_spec(name)
    sys.path.pop(0)
    if not here and not os.path.exists(name):
        os._exit(0)
sys.meta_path.append(Missing())
'''


# Where output goes to, if that is a folder beside the script.
_WRITTEN = re.compile(r"(?:>|\btee(?: -a)?) *\"?(?!/)((?:[\w.-]+/)+)")
_ELSEWHERE = re.compile(r"(?:[/~$][\w./~{}$-]*)?/bin/(python[\d.]*|torchrun|accelerate|deepspeed)\b")


def programs_of(script: str) -> str:
    """Functions (bash) in the place of programs that a script calls by their paths at another site.

    With them, the folders that it writes its output into.
    """
    paths = {match[0]: match[1] for match in _ELSEWHERE.finditer(script)}
    folders = " ".join(sorted({match[1] for match in _WRITTEN.finditer(script)}))
    made = f"command mkdir -p {folders} 2> /dev/null || :\n" if folders else ""
    return made + "".join(
        f'function {path} {{ {name} "$@"; }}\n'
        for path, name in sorted(paths.items())
        if path.startswith("/") and "$" not in path and not Path(path).exists()
    )


def add_to(packages: Path) -> None:
    """Puts the Python side of it among the packages of the site."""
    (packages / "pass_over_missing.py").write_text(_CUSTOMIZE)
    (packages / "pass_over_missing.pth").write_text("import pass_over_missing\n")
    for other in ("tensorflow", "jax"):
        (packages / other).mkdir()
        (packages / other / "__init__.py").write_text("")
