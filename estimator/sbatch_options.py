"""Options of `sbatch` as it reads them: of the lines of a script, of its environment, of its command line.

The rules are those of Slurm's src/sbatch/opt.c (lines and words) and src/common/slurm_opt.c (the options).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

# Options without a value, and those that have one only after "=" (a short one: only attached); all others
# of Slurm 17.11 to 26.05 take one.
_FLAGS_NAMES = (
    "consolidate-segments contiguous external get-user-env help hold ignore-pbs no-requeue overcommit "
    "oversubscribe parsable quiet reboot share spread-job spread-segments stepmgr test-only usage use-"
    "min-nodes verbose version wait"
)
_FLAGS = frozenset(_FLAGS_NAMES.split())
_OPTIONAL_NAMES = "exclusive nice no-kill oom-kill-step propagate requeue resv-ports"
_OPTIONAL = frozenset(_OPTIONAL_NAMES.split())
_VALUED_NAMES = (
    "account acctg-freq array batch bb bbf begin chdir cluster cluster-constraint clusters comment "
    "constraint container container-id context core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-"
    "task deadline delay-boot dependency distribution error exclude export export-file extra extra-node-"
    "info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint "
    "input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu "
    "mem-per-gpu mem-update mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu "
    "ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output partition power prefer priority "
    "profile qos reservation resources runtime segment signal sockets-per-node switches tasks-per-node "
    "thread-spec threads-per-core time time-min tmp tres-bind tres-per-job tres-per-node tres-per-task "
    "uid wait-all-nodes wckey workdir wrap"
)
_VALUED = frozenset(_VALUED_NAMES.split())
_KNOWN = _FLAGS | _OPTIONAL | _VALUED
_SHORT = {
    "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile", "G": "gpus",
    "H": "hold", "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes", "O": "overcommit",
    "Q": "quiet", "S": "core-spec", "V": "version", "W": "wait", "a": "array", "b": "begin",
    "c": "cpus-per-task", "d": "dependency", "e": "error", "h": "help", "i": "input", "k": "no-kill",
    "m": "distribution", "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "s": "oversubscribe",
    "t": "time", "v": "verbose", "w": "nodelist", "x": "exclude",
}  # fmt: skip
_SAME = {
    "tasks-per-node": "ntasks-per-node",
    "cluster": "clusters",
    "share": "oversubscribe",
    "workdir": "chdir",
}

# Options that a component of a heterogeneous job does not take over from the one before it.
_OF_ONE_COMPONENT_NAMES = (
    "bb consolidate-segments constraint contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-"
    "per-task distribution exclusive extra-node-info gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket "
    "gpus-per-task gres gres-flags hint licenses mail-type mail-user mem-bind mem-per-cpu mem-per-gpu "
    "mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node "
    "ntasks-per-socket ntasks-per-tres overcommit oversubscribe resources resv-ports segment sockets-per-"
    "node spread-job spread-segments switches thread-spec threads-per-core tmp tres-bind tres-per-node "
    "tres-per-task use-min-nodes"
)
OF_ONE_COMPONENT = frozenset(_OF_ONE_COMPONENT_NAMES.split())

# Variables of the environment whose names are not those of their options.
_VARIABLES = {
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_BURST_BUFFER": "bb",
    "SBATCH_CPU_FREQ_REQ": "cpu-freq",
    "SBATCH_DEBUG": "verbose",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_SEGMENT_SIZE": "segment",
    "SBATCH_TIMELIMIT": "time",
    "SLURM_CLUSTERS": "clusters",
    "SLURM_HINT": "hint",
}
_NAMED_ALIKE = (
    "account acctg-freq batch chdir cluster-constraint clusters consolidate-segments constraint container "
    "container-id core-spec cpus-per-gpu delay-boot distribution error exclusive export get-user-env "
    "gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint input job-name "
    "mem-bind mem-per-cpu mem-per-gpu network no-kill no-requeue open-mode output overcommit partition power "
    "profile qos requeue reservation runtime signal spread-job spread-segments thread-spec threads-per-core "
    "tres-bind tres-per-task use-min-nodes wait wait-all-nodes wckey"
)
_VARIABLES |= {f"SBATCH_{name.upper().replace('-', '_')}": name for name in _NAMED_ALIKE.split()}
del _VARIABLES["SBATCH_CHDIR"]  # there is none

# Options whose value is a number (of nodes: a range, or a list).
_NUMBER = r"0{0,9}[1-9]\d{0,9}[km]?"
_NUMBERS = dict.fromkeys(
    ("cpus-per-gpu", "cpus-per-task", "ntasks", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket"),
    re.compile(_NUMBER, re.IGNORECASE),
) | {"nodes": re.compile(rf"{_NUMBER}(?:[-,:]{_NUMBER})*", re.IGNORECASE)}

_BLANK = " \t\v\f\r\n"


class Refused(Exception):
    """`sbatch` would refuse such options; the text says which."""


def of_line(text: str) -> list[str]:
    """The words of what follows `#SBATCH` on a line.

    Quotes group, a backslash takes the next character as it is (a blank other than a space ends the word all
    the same; in older Slurm, such as 22.05, a space does, too), and an unquoted `#` begins a remark even
    within a word. Nothing follows `hetjob`.

    Raises:
        Refused: a quote is not closed.
    """
    words = []
    rest = text.lstrip(_BLANK)
    while not _is_separator(rest) and (word_and_rest := _next_word(rest)):
        word, rest = word_and_rest
        words.append(word)
        rest = rest.lstrip(_BLANK)
    return words


def _is_separator(text: str) -> bool:
    """Whether `text` begins with the word that separates the components of a heterogeneous job."""
    return re.match(r"\s*(hetjob|packjob)(\s|$)", text, re.IGNORECASE) is not None


def _next_word(text: str) -> tuple[str, str] | None:
    """The first word of `text`, which begins with no blank; None if there is none, or an empty one."""
    if text.startswith(":"):
        raise Refused(f'"{text}" begins with a colon')
    word: list[str] = []
    quote = None
    place = 0
    while place < len(text) and (quote or text[place] not in _BLANK):
        character = text[place]
        if character == "\\":
            place += 1
            if place < len(text) and (quote or text[place] == " " or text[place] not in _BLANK):
                word.append(text[place])
                place += 1
            continue
        place += 1
        if character == quote:
            quote = None
        elif quote:
            word.append(character)
        elif character in "\"'":
            quote = character
        elif character == "#":
            place -= 1
            break
        else:
            word.append(character)
    if quote:
        raise Refused(f"a quote ({quote}) is not closed in: {text}")
    return ("".join(word), text[place:]) if word else None


def read(words: Sequence[str]) -> dict[str, str]:
    """Options by their long names from `words`, later ones winning; the value of a flag is "".

    An option that Slurm does not have may be one of a plug-in of the site; it keeps the name that it has, and
    is taken to have the value after its "=", else the next word if that is no option.

    Raises:
        Refused: a word is no option, the last one lacks its value, or a number is none.
    """
    found: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        if word.startswith("--") and len(word) > 2:
            _long(word[2:], left, found)
        elif word.startswith("-") and len(word) > 1 and word != "--":
            _short(word[1:], left, found)
        else:
            raise Refused(f'"{word}" is not an option')
    for name, value in found.items():
        if name in _NUMBERS and not _NUMBERS[name].fullmatch(value.strip()):
            raise Refused(f'"{value}" is not a number for --{name}')
    return found


def on_command_line(text: str | None) -> list[str]:
    """The words of options as one types them in a shell.

    Raises:
        Refused: a quote is not closed.
    """
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise Refused(f"sbatch options {text}: {error}") from None


def of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Options that variables such as `SBATCH_PARTITION` set."""
    return {
        option: environment[variable] for variable, option in _VARIABLES.items() if variable in environment
    }


def _long(word: str, left: list[str], found: dict[str, str]) -> None:
    given, equals, value = word.partition("=")
    name = _in_full(given)
    if not equals and name in _VALUED:
        value = _value(f"--{name}", left)
    elif not equals and name not in _KNOWN and left and not left[0].startswith("-"):
        value = left.pop(0)
    found[_SAME.get(name, name)] = value


def _short(letters: str, left: list[str], found: dict[str, str]) -> None:
    """Flags may stand together; the first option with a value takes the rest of the word for it."""
    while letters:
        letter, letters = letters[0], letters[1:]
        name = _SHORT.get(letter, letter)
        if name in _FLAGS:
            found[name] = ""
            continue
        if name in _VALUED:
            found[name] = letters or _value(f"-{letter}", left)
        else:
            found[name] = letters or (
                left.pop(0) if name not in _OPTIONAL and left and left[0][:1] != "-" else ""
            )
        return


def _in_full(name: str) -> str:
    """Long options may be shortened as long as only one begins so (getopt_long)."""
    if name in _KNOWN:
        return name
    begun = {_SAME.get(known, known): known for known in _KNOWN if known.startswith(name)}
    return next(iter(begun)) if len(begun) == 1 else name


def _value(option: str, left: list[str]) -> str:
    if not left:
        raise Refused(f"{option} needs a value")
    return left.pop(0)


def components(lines: Iterable[str]) -> list[dict[str, str]]:
    """The options of a script's lines up to its first command: one set for each component of the job.

    `lines` follow the first one, which names the interpreter. All words of a component are read together.

    Raises:
        Refused: as `of_line` and `read`.
    """
    words: list[list[str]] = [[]]
    for line in lines:
        text = next((line[len(mark) :] for mark in ("#SBATCH", "#SLURM") if line.startswith(mark)), None)
        if text is None:
            if line.strip(_BLANK) and not line.lstrip(_BLANK).startswith("#"):
                break
            continue
        if _is_separator(text):
            words.append([])  # and nothing else is read of such a line
        else:
            words[-1] += of_line(text)
    found: list[dict[str, str]] = []
    for own in words:
        before = found[-1] if found else {}
        kept = {name: value for name, value in before.items() if name not in OF_ONE_COMPONENT}
        found.append(kept | read(own))
    return found
