"""What of a batch script decides over what it does: the same work is known again in another wording.

Remarks, lines that only tell something, dates in names, and options that Slurm alone acts upon are left out.
Whatever is not surely without effect counts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from estimator import batch_script

# sbatch options that change when a job runs, who pays and where its output goes
_WITHOUT_EFFECT_NAMES = (
    "account begin comment deadline dependency error hold job-name kill-on-invalid-dep mail-type "
    "mail-user nice no-requeue open-mode output parsable priority qos quiet requeue reservation time "
    "time-min verbose wckey"
)
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT_NAMES.split())
_NAME = re.compile(r"JOB_NAME")  # SLURM_JOB_NAME, SBATCH_JOB_NAME: the script uses the name
_TELLS = re.compile(
    r"(?:echo|printf|date|hostname|pwd|whoami|uptime|lscpu|free|nvidia-smi|module (?:list|avail)|"
    r"squeue|scontrol show job|sleep|which|type|mkdir -p)(?:\s|$)"
)
_DOES_MORE = re.compile(r"[`<>|&;{}]|\$\(")  # substitution, redirection, or more than one command
_ADDED = re.compile(r">\s*/dev/null|2>&1")
_DATE = re.compile(r"(?<!\d)20\d\d([-_.]?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])(?!\d)")
_OUTPUT = re.compile(r"(?:[012&]?>>?|\|\s*tee(?:\s+-a)?\s)\s*(?:\"[^\"]*\"|[^\s<>|&;]+)")
_LITERAL = re.compile(r"([A-Za-z_]\w*)=[\w./:%+,@\"'-]*")
_SOURCES = re.compile(r"(?:^|[;&|]\s*)(?:source|\.|eval|export|declare|set -a)\s", re.MULTILINE)


def of_script(text: str) -> list[object]:
    """What two scripts of the same work have in common: their interpreter, options and commands.

    A text that is no batch script, or that cannot be taken apart into lines, stays as it is.
    """
    try:
        script = batch_script.parse(Path("script"), text)
    except batch_script.NotABatchScript:
        return [text]
    named = _NAME.search(text) is not None
    return [
        list(script.interpreter),
        [
            sorted(
                (name, value)
                for name, value in options.items()
                if name not in WITHOUT_EFFECT or (named and name == "job-name")
            )
            for options in (script.options, *script.others)
        ],
        _commands(text) if Path(script.interpreter[0]).name in _SHELLS else text,
    ]


_SHELLS = ("bash", "sh", "dash", "zsh", "ksh")


def _commands(text: str) -> list[str]:
    """The lines that do something; from the first one that does not end by itself on, all as they stand."""
    found, rest = _lines(text)
    everything = "\n".join((*found, *rest))
    used = _OUTPUT.sub("", everything)
    if _SOURCES.search(everything):
        return [*(_without_dates(line, frozenset()) for line in found), *rest]
    names = {match[1] for line in found if (match := _LITERAL.fullmatch(line))}
    # a variable that only says where output goes is seen by no program
    apart = frozenset(name for name in names if not re.search(rf"\b{name}\b(?!=)", used))
    return [*(_without_dates(line, apart) for line in found), *rest]


def _lines(text: str) -> tuple[list[str], list[str]]:
    """Whole commands without those that only tell something, and what cannot be taken apart."""
    found: list[str] = []
    lines = iter(text.splitlines()[1:])
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):  # a remark does not go on after a backslash
            continue
        whole = line
        while whole.endswith("\\"):
            whole = whole[:-1] + next(lines, "")
        bare = whole.strip() if re.search("['\"\\\\]", whole) else " ".join(whole.split())
        if not _ends_by_itself(bare):
            return found, [whole, *lines]
        if not (_TELLS.match(bare) and not _DOES_MORE.search(_ADDED.sub("", bare))):
            found.append(bare)
    return found, []


def _ends_by_itself(line: str) -> bool:
    """Whether no quote and no here-document goes on in the next line."""
    if "<<" in line:
        return False
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return False
    return True


def _without_dates(line: str, apart: frozenset[str]) -> str:
    """Output may be named after the day: without it, as far as it stands in names of output."""
    if (match := _LITERAL.fullmatch(line)) and match[1] in apart:
        return _DATE.sub("DATE", line)
    return _OUTPUT.sub(lambda target: _DATE.sub("DATE", target[0]), line)


_LOG = re.compile(r"/dev/null|&[12]|\"?[^\s\"]*(?:\.(?:log|out|err|txt)|(?i:log)[^\s\"]*)\"?")
_TARGET = re.compile(r"(?:[012&]?>>?|\|\s*tee(?:\s+-a)?\s)\s*(\"[^\"]*\"|&?[^\s<>|&;]+)")
_ASKING = re.compile(
    r"\$\((?:date|hostname|pwd|nproc|which|dirname|realpath|basename|wc|echo|expr|shuf|"
    r"scontrol show hostnames?|"
    r"nvidia-smi|cat|seq|id)\b[^()`;&<>]*\)"
)
_LAUNCHES = re.compile(
    r"(?:(?:time|exec|nohup|srun|mpirun|mpiexec|stdbuf|numactl|env|(?:uv|poetry|conda) run|"
    r"-\S+|\d+|\w+=\S*)\s+)*"
    r"(?:\S*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed)\s"
)
_SETS = re.compile(
    r"(?:(?:export|declare|local|readonly)\s.*|[A-Za-z_]\w*=.*|set\s.*|ulimit\s.*|cd\s.*|"
    r"module\s.*|ml\s.*|umask\s.*|"
    r"(?:conda|mamba|micromamba)\s+(?:de)?activate\b.*|wait|exit(?: \d+)?|"
    r"(?:source|\.)\s+\S*(?:activate(?:\s\S+)?|\.bashrc|\.bash_profile|\.profile|conda\.sh|/etc/\S*))"
)


def is_plain(text: str) -> bool:
    """Whether a script does nothing but set what programs find, and start them one after another.

    Then it is known by what it starts. Any other may also change files that its programs read, or hang on
    what they leave behind.
    """
    try:
        script = batch_script.parse(Path("script"), text)
    except batch_script.NotABatchScript:
        return False
    if Path(script.interpreter[0]).name not in _SHELLS:
        return False
    found, rest = _lines(text)
    return not rest and all(_is_plain(line) for line in found)


def starts_python(command: Sequence[str]) -> bool:
    """Whether a command is a launcher or Python itself, not a script that starts them."""
    return _LAUNCHES.match(f"{shlex.join(command)} ") is not None


def _is_plain(line: str) -> bool:
    if not all(_LOG.fullmatch(target) for target in _TARGET.findall(line)):
        return False
    bare = _ASKING.sub("", _TARGET.sub("", line))
    bare = re.sub(r"'[^']*'|\$\{\w+\}", "", bare)
    if re.search(r"[`<>|&;]|\$\(|\{|[*?\[]", bare):
        return False
    return bool(_LAUNCHES.match(f"{bare} ") or _SETS.fullmatch(bare))
