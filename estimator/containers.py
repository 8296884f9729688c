"""Stand-ins for programs that run what is in container images: what runs there is traced as well.

Image files are mounted for them (`mounter.py`), as /dev/fuse is not within the containment.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from estimator import image_files, mounter, starter

# Options of `apptainer exec` whose value may be the next word.
_APPTAINER_OPTIONS = (
    "--add-caps --app --apply-cgroups --authfile --bind -B --blkio-weight --blkio-weight-device --cpu-shares "
    "--cpus --cpuset-cpus --cpuset-mems --cwd --dns --docker-host --drop-caps --env --env-file "
    "--fusemount --home -H --hostname --memory --memory-reservation --memory-swap --mount --netns-path "
    "--network --network-args --no-mount --overlay -o --pem-path --pids-limit --pwd --scratch -S "
    "--security --workdir -W"
)

# Those of `ch-run`.
_CH_RUN_OPTIONS = (
    "--bind -b --cd -c --gid -g --join-ct --join-pid --join-tag --mount -m --storage -s --uid -u --unset-env"
)

_REAL = """#!/bin/sh
# Has what runs in a container image traced as well: our files are bound in, with the library that starts the
# tracer in every Python (the sandbox's own order to load it is not seen inside).
skip() { printf '%s\\0' "$why" "${0##*/}" "$@" 2> /dev/null > "@OUT@/skipped-$$"; }
# Its own place is covered by this file. It is open here or, as Python's `subprocess` closes it, in a caller.
real="@REAL@" process=$$
while [ "${process:-0}" -gt 0 ]; do
    if [ -x "/proc/$process/fd/@NUMBER@" ]; then real=/proc/$process/fd/@NUMBER@; break; fi
    process=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$process/status" 2> /dev/null)
done
if [ ! -x "$real" ] || [ "$real" -ef "$0" ]; then  # one that a module brings
    set -f
    IFS=:
    for folder in $PATH; do
        own=$folder/${0##*/}
        if [ -x "$own" ] && [ ! "$own" -ef "$0" ] && [ ! "$own" -ef "@FILES@/bin/${0##*/}" ]; then
            exec 9< "$own"  # by its name, this file would be executed
            real=/proc/$$/fd/9
            break
        fi
    done
    unset IFS
    set +f
fi
installed() {  # WORDS OF THE COMMAND
    if [ ! -x "$real" ] || [ "$real" -ef "$0" ]; then
        why="@ABSENT@"
        skip "$@"
        echo "${0##*/}: @ABSENT@" >&2
        exit 127
    fi
}
fail() { echo "${0##*/}: $word: $1" >&2; exit 255; }
mounted() {  # IMAGE: the folder where a file is mounted (see `mounter.py`), which takes its place
    [ -e "$1" ] || { echo "$1"; return; }
    [ "$(id -u)" != 0 ] || grep -q '^CapEff:.*[1-9a-f]' /proc/self/status || fail "@ROOT@"
    [ -f "$1" ] || { echo "$1"; return; }
    [ -z "@OBSTACLE@" ] || fail "the image cannot be mounted in a dry run: @OBSTACLE@"
    [ -p "@REQUESTS@" ] || fail "the image cannot be mounted without user namespaces"
    case $1 in /*) file=$1 ;; *) file=$PWD/$1 ;; esac
    mkfifo "@OUT@/image-$$" && exec 3<> "@OUT@/image-$$" || exit 255
    printf '%s\\n' "@OUT@/image-$$" "$file" "$(readlink -f "$real")" > "@REQUESTS@"
    read -r answer <&3
    exec 3<&-
    rm -f "@OUT@/image-$$"
    case $answer in no\\ *) fail "the image cannot be mounted in a dry run: ${answer#no }" ;; esac
    echo "$answer"
}
"""

_APPTAINER = """
found= count=$#
for word in "$@"; do
    case $word in
    -*) ;;
    pull|push|build|library|remote|registry|key|keys) why="@NETWORK@"; skip "$@"; exit 0 ;;
    *) break ;;
    esac
done
installed "$@"
lacking() {  # IMAGE: why it is not here, if it is not
    case $1 in
    docker://*|library://*|oras://*|shub://*|http://*|https://*)
        echo "the image has to be fetched, and @NETWORK@: pull it to a file once" ;;
    *:*) ;;
    *) [ -e "$1" ] || echo "no such image" ;;
    esac
}
overlay() {  # FOLDER OR IMAGE[:ro]
    if [ ! -f "${1%:r[ow]}" ]; then echo "$1"; else place=$(mounted "${1%:r[ow]}") && echo "$place:ro"; fi
}
binds() {  # SOURCE[:TARGET[:OPTIONS]],...: what lies in an image file is bound from where that is mounted
    found= given=
    set -f
    IFS=,
    for one in $1; do
        case $one in
        *:*:image-src=*)
            given=1 inner=${one#*:image-src=} target=${one#*:}
            place=$(mounted "${one%%:*}") || exit 255
            one=$place/${inner#/}:${target%%:*}:ro ;;
        /*|*:*) given= ;;
        *) [ -z "$given" ] || continue ;;  # another option of the image
        esac
        found=$found${found:+,}$one
    done
    echo "$found"
}
word=bind  # what fails, if it does
for name in APPTAINER_BIND APPTAINER_BINDPATH SINGULARITY_BIND SINGULARITY_BINDPATH; do
    eval "value=\\${$name-}"
    case $value in *:image-src=*) value=$(binds "$value") || exit 255; export "$name=$value" ;; esac
done
value= image= scratch= file=.
while [ $count -gt 0 ]; do
    word=$1 count=$((count - 1))
    shift
    case $word in LD_PRELOAD=*|--env=LD_PRELOAD=*) word=$word:@PRELOAD@ ;; esac  # the last --env counts
    if [ -n "$image" ]; then
        :
    elif [ -n "$value" ]; then
        case $value in
        --overlay|-o) word=$(overlay "$word") || exit 255 ;;
        --bind|-B) word=$(binds "$word") || exit 255 ;;
        esac
        value=
    elif [ -n "$found" ]; then
        case $word in
        # The kernel allows no other /proc where parts of it are covered; --contain wants a /dev/tty.
        -C|--containall) word=--cleanenv ;;
        -c|--contain|-p|--pid) continue ;;
        --overlay=*) word=--overlay=$(overlay "${word#*=}") || exit 255 ;;
        --bind=*) word=--bind=$(binds "${word#*=}") || exit 255 ;;
        --writable-tmpfs) scratch=$word; continue ;;
        @VALUES@) value=$word ;;
        -*) ;;
        *)
            image=1 file=$word
            word=$(mounted "$file") || exit 255
            # Apptainer lets nobody write over what lies on FUSE.
            [ -z "$scratch" ] || [ "$word" != "$file" ] || set -- "$@" "$scratch" ;;
        esac
    fi
    set -- "$@" "$word"
    [ -z "$found" ] || continue
    case $word in
    exec|run|shell|test)  # set-user-ID does not work here, and being root is not enough
        found=1
        set -- "$@" --userns --bind "@FILES@" --bind "@OURS@" --env "LD_PRELOAD=@PRELOAD@" ;;
    -*) ;;
    *) found=1 image=1 ;;
    esac
done
why=$(lacking "$file")
[ -n "$why" ] || exec "$real" "$@"
"$real" "$@" || { word=$file; fail "$why"; }
"""

_CH_RUN = """
installed "$@"
value= image= count=$#
while [ $count -gt 0 ]; do
    word=$1 count=$((count - 1))
    shift
    if [ -n "$image$value" ]; then
        value=
    else
        case $word in
        @VALUES@) value=1 ;;
        -w|--write|-W|--write-fake|--write-fake=*) continue ;;
        -*) ;;
        *)  # what is bound in needs a place in the image: one that can be written into has any
            image=1
            word=$(mounted "$word") || exit 255
            set -- "$@" --write-fake --bind="@FILES@" --bind="@OURS@" \\
                --set-env="LD_PRELOAD=@PRELOAD@${LD_PRELOAD:+:$LD_PRELOAD}" ;;
        esac
    fi
    set -- "$@" "$word"
done
exec "$real" "$@"
"""

_OTHER_IMAGE = """#!/bin/sh
# A container that the tracer does not get into: said, and not run.
case ${1:-} in
pull|push|build|load|import|login|images|*version) exit 0 ;;
esac
printf '%s\\0' "@ABSENT@" "${0##*/}" "$@" 2> /dev/null > "@OUT@/skipped-$$"
echo "${0##*/}: @ABSENT@" >&2
exit 127
"""

NOT_INSTALLED = "runs in a container image, and this program is not installed here"
NOT_AS_ROOT = "root, who has no rights in a dry run, cannot start an image there: try as another user"
NOT_TRACED = "runs in a container that cannot be traced"
IN_CONTAINERS = (NOT_INSTALLED, NOT_TRACED)
_OF_IMAGES = {
    "apptainer": (_APPTAINER, _APPTAINER_OPTIONS),
    "singularity": (_APPTAINER, _APPTAINER_OPTIONS),
    "ch-run": (_CH_RUN, _CH_RUN_OPTIONS),
}
_HELD = {program: 871 + place for place, program in enumerate(_OF_IMAGES)}  # unlikely to be used by a script
_OTHER_CONTAINERS = ("podman", "podman-hpc", "docker", "enroot", "shifter", "sarus")
OURS = Path(__file__).parent


def stand_ins(files: Path, search_path: str, network: str) -> dict[str, str]:
    """The stand-ins by name, still with `@OUT@`, where they note what is not done.

    Args:
        files: the folder of the dry run, in which the library that starts the tracer is.
        search_path: where the host's own programs are found.
        network: why nothing is fetched.
    """
    texts = {program: _OTHER_IMAGE.replace("@ABSENT@", NOT_TRACED) for program in _OTHER_CONTAINERS}
    obstacle = image_files.obstacle()
    for program, (text, options) in _OF_IMAGES.items():
        given = {
            "REAL": shutil.which(program, path=search_path) or "/nonexistent",
            "NUMBER": _HELD[program],
            "ABSENT": NOT_INSTALLED,
            "VALUES": "|".join(options.split()),
            "NETWORK": network,
            "OBSTACLE": obstacle,
            "ROOT": NOT_AS_ROOT,
            "REQUESTS": f"{mounter.PLACE}/{mounter.REQUESTS}",
            "OURS": OURS,
            "FILES": files,
            "PRELOAD": files / "start" / starter.LIBRARY.name,
        }
        texts[program] = _REAL + text
        for mark, value in given.items():
            texts[program] = texts[program].replace(f"@{mark}@", str(value))
    return texts


def held(search_path: str) -> dict[int, Path]:
    """File descriptors that the stand-ins execute, and the host's programs that must be open there.

    A copy of Apptainer would look for its configuration and its other programs around the copy.
    """
    found = {_HELD[program]: shutil.which(program, path=search_path) for program in _OF_IMAGES}
    return {number: Path(own).resolve() for number, own in found.items() if own}


def installed(search_path: str) -> list[Path]:
    """The host's own programs that run images which can be traced."""
    return [Path(own) for program in _OF_IMAGES if (own := shutil.which(program, path=search_path))]
