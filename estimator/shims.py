"""Stand-ins for the cluster's programs in a dry run: one task of a step, here, and nothing is submitted."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from estimator import containers

# Options of srun(1) that take no value, or one only after "=". Every other option takes one.
_SRUN_FLAGS = (
    "bcast compress contiguous debugger-test disable-status exact exclusive get-user-env help hold immediate "
    "interactive kill-on-bad-exit label multi-prog no-allocate no-kill nice oom-kill-step overcommit overlap "
    "oversubscribe preserve-env propagate pty quiet quit-on-interrupt reboot resv-ports send-libs share "
    "spread-job stepmgr test-only unbuffered usage use-min-nodes verbose version wait-for-children whole x11 "
    # of pyxis
    "container-mount-home no-container-mount-home container-remap-root no-container-remap-root "
    "container-entrypoint no-container-entrypoint container-readonly container-writable"
)
_SRUN_SHORT_FLAGS = "EHIKOQVXZhklsuv"

_SRUN = r"""#!/bin/sh
# Starts one task of the step here, told of all of them: srun's own options go, the command stays.
number() { case $1 in *[!0-9]*|'') echo "$2" ;; *) echo "$1" ;; esac; }
gpus_of() {  # LIST OF GRES: how many GPUs that are; nothing if none are spoken of
    sum=
    for one in $(echo "$1" | tr ',' ' '); do
        one=${one#gres?} one=${one%%\(*}
        case $one in
        gpu|gpu[:=]*) sum=$((${sum:-0} + $(number "${one##*[:=]}" 1))) ;;
        none) sum=0 ;;
        esac
    done
    echo "$sum"
}
free_gpus() {  # COUNT: takes that many GPUs for this process, else names one that has some of them in `busy`
    chosen= busy= left=$1 tries=0
    until mkdir "@OUT@/taking" 2> /dev/null || [ $tries -gt 1000 ]; do tries=$((tries + 1)); done
    for gpu in $(echo "${SLURM_JOB_GPUS:-0}" | tr ',' ' '); do
        [ "$left" -gt 0 ] || break
        user=$(cat "@OUT@/gpu-$gpu" 2> /dev/null)
        if [ -n "$user" ] && [ -d "/proc/$user" ]; then busy=$user; continue; fi
        chosen=$chosen${chosen:+,}$gpu left=$((left - 1))
    done
    if [ "$left" -eq 0 ] || [ -z "$busy" ]; then
        busy=
        for gpu in $(echo "$chosen" | tr ',' ' '); do echo $$ > "@OUT@/gpu-$gpu"; done
    fi
    rmdir "@OUT@/taking" 2> /dev/null
    [ -z "$busy" ]
}
split=0 place=0
if [ -n "${SLURM_HET_SIZE:-}" ]; then  # srun COMPONENT : COMPONENT
    for word in "$@"; do
        place=$((place + 1))
        if [ "$word" = : ]; then split=$place; break; fi
    done
fi
if [ $split -gt 0 ]; then
    (
        place=0
        for word do
            shift
            place=$((place + 1))
            [ $place -ge $split ] || set -- "$@" "$word"
        done
        exec "$0" "$@"
    ) &
    shift $split
    "$0" "$@"
    code=$?
    wait
    exit $code
fi
tasks= nodes= per_node= cpus= overlap= exports= programs= group=
gpus=${SLURM_GPUS_PER_TASK:-} of_node= of_step=
while [ $# -gt 0 ]; do
    case $1 in
    --ntasks=*) tasks=${1#*=} ;;
    --ntasks|-n) tasks=${2:-} ;;
    -n[0-9]*) tasks=${1#-n} ;;
    --nodes=*) nodes=${1#*=} ;;
    --nodes|-N) nodes=${2:-} ;;
    -N[0-9]*) nodes=${1#-N} ;;
    --ntasks-per-node=*) per_node=${1#*=} ;;
    --ntasks-per-node) per_node=${2:-} ;;
    --cpus-per-task=*) cpus=${1#*=} ;;
    --cpus-per-task|-c) cpus=${2:-} ;;
    -c[0-9]*) cpus=${1#-c} ;;
    --gpus-per-task=*) gpus=${1#*=} ;;
    --gpus-per-task) gpus=${2:-} ;;
    --gres=*|--tres-per-node=*) of_node=$(gpus_of "${1#*=}") ;;
    --gres|--tres-per-node) of_node=$(gpus_of "${2:-}") ;;
    --gpus-per-node=*) of_node=$(gpus_of "gpu:${1#*=}") ;;
    --gpus-per-node) of_node=$(gpus_of "gpu:${2:-}") ;;
    --gpus=*) of_step=$(gpus_of "gpu:${1#*=}") ;;
    --gpus|-G) of_step=$(gpus_of "gpu:${2:-}") ;;
    -G[0-9a-z]*) of_step=$(gpus_of "gpu:${1#-G}") ;;
    --overlap) overlap=1 ;;
    --export=*) exports=${1#*=} ;;
    --export) exports=${2:-} ;;
    --multi-prog) programs=1 ;;
    --het-group=*|--pack-group=*) group=$(number "${1#*=}" "") ;;
    --het-group|--pack-group) group=$(number "${2:-}" "") ;;
    --container-image|--container-image=*)
        printf '%s\0' "@CONTAINER@" "${0##*/}" "$@" 2> /dev/null > "@OUT@/skipped-$$"
        echo "srun: @CONTAINER@" >&2
        exit 1 ;;
    esac
    case $1 in
    --) shift; break ;;
    --chdir=*) cd "${1#*=}" || exit 1; shift ;;
    --chdir|-D) cd "$2" || exit 1; shift 2 ;;
    --*=*) shift ;;
    @FLAGS@) shift ;;
    --*|-?)
        [ $# -gt 1 ] || exit 1
        case $2 in -*) shift ;; *) shift 2 ;; esac ;;
    -*) shift ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || exit 0
if [ -n "$group" ]; then
    eval "SLURM_NTASKS=\${SLURM_NTASKS_HET_GROUP_$group:-1} SLURM_NNODES=\${SLURM_NNODES_HET_GROUP_$group:-1}"
fi
nodes=$(number "${nodes%%-*}" "${SLURM_NNODES:-1}")
[ -z "$per_node" ] || export SLURM_NTASKS_PER_NODE="$per_node"
[ -z "$cpus" ] || export SLURM_CPUS_PER_TASK="$cpus"
if [ -n "$per_node" ] && [ -z "$tasks" ]; then tasks=$((nodes * $(number "$per_node" 1))); fi
if [ -z "$tasks" ] && [ "$nodes" != "${SLURM_NNODES:-1}" ]; then tasks=$nodes; fi
tasks=$(number "$tasks" "${SLURM_NTASKS:-1}")
[ "$nodes" -le "$tasks" ] || nodes=$tasks
per_node=$(((tasks + nodes - 1) / nodes))
rank=@RANK@
SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NUM_TASKS=$tasks SLURM_STEP_NUM_NODES=$nodes
SLURM_STEP_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE=$per_node
SLURM_PROCID=$rank SLURM_LOCALID=$((rank % per_node)) SLURM_NODEID=$((rank / per_node))
SLURM_NTASKS=$tasks SLURM_NPROCS=$tasks SLURM_NNODES=$nodes SLURM_JOB_NUM_NODES=$nodes
export SLURM_STEP_ID SLURM_STEPID SLURM_STEP_NUM_TASKS SLURM_STEP_NUM_NODES SLURM_STEP_NODELIST
export SLURM_STEP_TASKS_PER_NODE SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_NPROCS
export SLURM_NNODES SLURM_JOB_NUM_NODES
gpus=$(number "${gpus##*:}" 0)
[ -z "$of_step" ] || of_node=$(((of_step + nodes - 1) / nodes))
[ "$gpus" = 0 ] || of_node=$((gpus * per_node))
if [ "$of_node" = 0 ]; then
    export CUDA_VISIBLE_DEVICES= GPU_DEVICE_ORDINAL=
elif [ -n "$of_node" ]; then  # steps side by side have GPUs of their own, or wait for one another
    if [ -n "$overlap" ]; then
        chosen=$(echo "${SLURM_JOB_GPUS:-0}" | cut -d, -f "-$of_node")
    else
        until free_gpus "$of_node"; do tail --pid="$busy" -f /dev/null 2> /dev/null || break; done
    fi
    [ "$gpus" = 0 ] || chosen=$(echo "$chosen" | cut -d, -f "-$gpus")  # those of the one task that runs
    export CUDA_VISIBLE_DEVICES="$chosen" GPU_DEVICE_ORDINAL="$chosen"
fi
set -f
IFS=,
for one in $exports; do
    case $one in [A-Za-z_]*=*) export "$one" ;; esac
done
unset IFS
set +f
if [ -n "$programs" ]; then  # a file of "RANKS PROGRAM ARGUMENTS": the first rank of each line
    while read -r ranks program; do
        case $ranks in ''|'#'*) continue ;; esac
        rank=$(number "${ranks%%[-,]*}" 0)
        program=$(printf '%s' "$program" | sed "s/%t/$rank/g; s/%o/0/g")
        SLURM_PROCID=$rank SLURM_LOCALID=$((rank % per_node)) sh -c "exec $program" < /dev/null &
    done < "$1"
    wait
    exit 0
fi
exec "$@"
"""

_MPIRUN = """#!/bin/sh
# Starts one of the processes here: mpirun's own options go, the command stays.
size=
while [ $# -gt 0 ]; do
    case $1 in
    --) shift; break ;;
    -np|--np|-n|--n|-c) size=$2; shift 2 ;;
    -x) case $2 in *=*) export "$2" ;; esac; shift 2 ;;
    -genv|--genv|-env) export "$2=$3"; shift 3 ;;
    --mca|-mca|--gmca|-gmca|--prtemca|--pmixmca) shift 3 ;;
    -H|-N|-ppn|--ppn|-f|-host|--host|-hosts|--hostfile|-hostfile|--machinefile|-machinefile|--map-by|-map-by|\
    --bind-to|-bind-to|--rank-by|-rank-by|--npernode|-npernode|--wdir|-wdir|-wd|--prefix|--timeout|\
    --output-filename|--ppr|-iface|-bootstrap) shift 2 ;;
    -*) shift ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || exit 0
size=${size:-${SLURM_NTASKS:-1}} tasks=${size:-1} rank=@RANK@
nodes=${SLURM_NNODES:-1} per_node=$(((size + nodes - 1) / nodes)) local=$((rank % per_node))
OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$size
OMPI_COMM_WORLD_LOCAL_RANK=$local OMPI_COMM_WORLD_LOCAL_SIZE=$per_node
PMI_RANK=$rank PMI_SIZE=$size MPI_LOCALRANKID=$local MPI_LOCALNRANKS=$per_node
export OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
export PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
exec "$@"
"""

_NVIDIA_SMI = """#!/bin/sh
# Tells of the GPU that the dry run pretends to have.
query= units=1 header=1
uuid() { echo "@UUIDS@" | cut -d' ' -f$(($1 + 1)); }
for word in "$@"; do
    case $word in
    -L|--list-gpus)
        i=0
        while [ $i -lt @COUNT@ ]; do echo "GPU $i: @NAME@ (UUID: $(uuid $i))"; i=$((i + 1)); done
        exit 0 ;;
    --query-gpu=*) query=${word#*=} ;;
    --format=*) case $word in *noheader*) header=0 ;; esac; case $word in *nounits*) units=0 ;; esac ;;
    --query-*) exit 0 ;;
    esac
done
if [ -z "$query" ]; then
    echo "GPU 0: @NAME@, @MIB@ MiB, idle"
    exit 0
fi
[ $header = 0 ] || echo "$query" | sed 's/,/, /g'
i=0
while [ $i -lt @COUNT@ ]; do
line=
for field in $(echo "$query" | tr ',' ' '); do
    unit=
    case $field in
    name|gpu_name) value="@NAME@" ;;
    uuid|gpu_uuid) value="$(uuid $i)" ;;
    index) value=$i ;;
    utilization.*) value=0 ;;
    count) value=@COUNT@ ;;
    memory.total|memory.free) value=@MIB@ unit=" MiB" ;;
    memory.used) value=0 unit=" MiB" ;;
    compute_cap) value="@CC@" ;;
    *) value="[N/A]" ;;
    esac
    [ $units = 1 ] || unit=
    line="${line:+$line, }$value$unit"
done
echo "$line"
i=$((i + 1))
done
"""

_SCONTROL = """#!/bin/sh
# Changes nothing; all nodes are this one. Their names are one write: `| head -1` ends no writer by SIGPIPE.
case "$*" in
show*hostname*)
    names= i=0
    while [ $i -lt "${SLURM_NNODES:-1}" ]; do names="${names}localhost\\n" i=$((i + 1)); done
    printf "$names" ;;
show*job*) cat << EOF
JobId=$SLURM_JOB_ID${SLURM_ARRAY_TASK_ID:+ ArrayJobId=$SLURM_ARRAY_JOB_ID ArrayTaskId=$SLURM_ARRAY_TASK_ID} \
JobName=$SLURM_JOB_NAME
   UserId=$(id -un)($(id -u)) Account=${SLURM_JOB_ACCOUNT:-(null)} QOS=${SLURM_JOB_QOS:-(null)}
   JobState=RUNNING Reason=None Dependency=(null)
   Partition=${SLURM_JOB_PARTITION:-(null)} AllocNode:Sid=localhost:1
   NodeList=localhost
   BatchHost=localhost
   NumNodes=${SLURM_JOB_NUM_NODES:-1} NumTasks=${SLURM_NTASKS:-1} CPUs/Task=${SLURM_CPUS_PER_TASK:-1}
   TRES=node=${SLURM_JOB_NUM_NODES:-1},gres/gpu=$((${SLURM_JOB_NUM_NODES:-1} * ${SLURM_GPUS_ON_NODE:-0}))
   Command=$(printf '%s' @COMMAND@)
   WorkDir=$(printf '%s' @CWD@)
   StdIn=/dev/null
EOF
;;
esac
exit 0
"""

_NOTHING = """#!/bin/sh
# Succeeds and does nothing: this is a dry run.
printf '%s\\0' "@WHY@" "${0##*/}" "$@" 2> /dev/null > "@OUT@/skipped-$$"
exit 0
"""

_SOME = """#!/bin/sh
# Does nothing for some of its commands, which need the network or change the environment; else it is itself.
for word in "$@"; do
    case $word in
    -*) ;;
    @COMMANDS@)
        printf '%s\\0' "@WHY@" "${0##*/}" "$@" 2> /dev/null > "@OUT@/skipped-$$"
        exit 0 ;;
    *) break ;;
    esac
done
exec "@REAL@" "$@"
"""

_RSYNC = """#!/bin/sh
# Copies nothing: what lies on this machine is linked to, which is as good for reading.
why="@ABSENT@"
for word in "$@"; do case $word in -*) ;; *:*) why="@WHY@" ;; esac; done
printf '%s\\0' "$why" "${0##*/}" "$@" 2> /dev/null > "@OUT@/skipped-$$"
value= last=
count=0 all=$#
n=0
while [ $n -lt $all ]; do  # "$@" becomes what is no option
    n=$((n + 1)); word=$1; shift
    if [ -n "$value" ]; then value= && continue; fi
    case $word in
    -e|-f|--rsh|--exclude|--include|--filter|--exclude-from|--include-from|--files-from|--bwlimit|--chmod|--chown|\
    --partial-dir|--temp-dir|-T|--log-file|--max-size|--min-size|--timeout) value=next ;;
    -*) ;;
    *) set -- "$@" "$word"; last=$word ;;
    esac
done
for word in "$@"; do
    case $word in *:*) count=0 && break ;; esac
    [ ! -e "$word" ] || [ "$word" = "$last" ] || count=$((count + 1))
done
[ "$count" -gt 0 ] || exit 0
rm -f "@OUT@/skipped-$$"
case $last in */) mkdir -p "$last" ;; esac
link() {  # SOURCE TARGET: the target is a link to the source; of two folders, the entries are put together
    if [ -d "$1" ] && [ -d "$2" ] && [ ! -L "$2" ]; then
        for entry in "$1"/* "$1"/.[!.]*; do
            [ ! -e "$entry" ] || link "$entry" "$2/${entry##*/}"
        done
    elif [ ! "$1" -ef "$2" ]; then
        ln -sfn "$(realpath "$1")" "$2"
    fi
}
for word in "$@"; do
    [ -e "$word" ] && [ "$word" != "$last" ] || continue
    case $word in
    */|*/.|.) mkdir -p "$last"; link "${word%/.}" "${last%/}" ;;
    *)
        if [ -d "$word" ] || [ -d "$last" ]; then
            mkdir -p "$last"
            link "$word" "${last%/}/${word##*/}"
        else
            link "$word" "$last"
        fi ;;
    esac
done
exit 0
"""

_SUDO = """#!/bin/sh
# Runs the command with no more rights than the job has.
while [ $# -gt 0 ]; do
    case $1 in
    -[CDghprRtTuU]|--user|--group|--chdir|--prompt) [ $# -gt 1 ] || exit 1; shift 2 ;;
    --) shift; break ;;
    -*) shift ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || exit 0
exec env "$@"
"""

_SUBMITS = "nothing is submitted, ended or changed in a dry run"
_WAITS = "a dry run does not wait"
NETWORK = "a dry run has no network"
NOT_HERE = "what it copies is not on this machine"
INSTALLS = "nothing is installed in a dry run"  # also in tracer/command_line.py
_TELLS = "a dry run tells nobody"
_SERVES = "there is no GPU in a dry run"

# what they answer to: the reason why nothing is done
_NOTHING_DONE = {
    _SUBMITS: ("sbatch", "salloc", "scancel", "sbcast", "squeue", "sacct", "sstat", "scrontab", "qsub"),
    _WAITS: ("sleep",),
    NETWORK: (
        "scp", "sftp", "ssh", "wget", "curl", "aria2c", "rclone", "aws", "gsutil", "gcloud",
        "azcopy", "s5cmd", "s3cmd", "globus", "kaggle", "huggingface-cli", "hf", "ping",
    ),
    INSTALLS: ("apt-get", "apt", "yum", "dnf"),
    _TELLS: ("mail", "mailx", "sendmail", "mutt"),
    _SERVES: ("dcgmi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-persistenced"),
}  # fmt: skip
_SOME_DONE = {"git": ("push|pull|fetch|clone|submodule", NETWORK)}


def write(
    folder: Path,
    notes: Path,
    *,
    name: str,
    uuids: Sequence[str],
    memory_bytes: int,
    compute_capability: tuple[int, int],
    search_path: str = os.defpath,
    command: str = "",
    cwd: Path = Path("/"),
    middle: bool = False,
) -> None:
    """Writes the stand-ins into `folder`; `middle`: steps start their middle task, not the first one.

    What is not done is noted in files `skipped-PID` in `notes`: the reason and the words of the command, each
    ended by NUL. `search_path` is where the host's own programs are found. `command` (the script as it was
    submitted, with its arguments) and `cwd` are what `scontrol show job` tells. The rest describes the GPUs
    that `nvidia-smi` shows, one for each of `uuids`.
    """
    flags = "|".join(
        [*(f"--{flag}" for flag in _SRUN_FLAGS.split()), *(f"-{flag}" for flag in _SRUN_SHORT_FLAGS)]
    )
    about = {
        "@NAME@": name,
        "@UUIDS@": " ".join(uuids),
        "@COUNT@": str(len(uuids)),
        "@MIB@": str(memory_bytes // 1024**2),
        "@CC@": ".".join(map(str, compute_capability)),
    }
    nvidia_smi = _NVIDIA_SMI
    for mark, text in about.items():
        nvidia_smi = nvidia_smi.replace(mark, "".join(c for c in text if c.isalnum() or c in " ._-()/"))
    mpirun = _MPIRUN.replace("@RANK@", "$((tasks / 2))" if middle else "0")
    texts = {
        "srun": _SRUN.replace("@CONTAINER@", containers.NOT_TRACED)
        .replace("@FLAGS@", flags)
        .replace("@RANK@", "$((tasks / 2))" if middle else "0"),
        "nvidia-smi": nvidia_smi,
        "scontrol": _SCONTROL.replace("@COMMAND@", shlex.quote(command)).replace(
            "@CWD@", shlex.quote(str(cwd))
        ),
        "sudo": _SUDO,
        "mpirun": mpirun,
        "mpiexec": mpirun,
        "rsync": _RSYNC.replace("@WHY@", NETWORK).replace("@ABSENT@", NOT_HERE),
    }
    for why, names in _NOTHING_DONE.items():
        texts |= dict.fromkeys(names, _NOTHING.replace("@WHY@", why))
    folder.mkdir()
    texts |= containers.stand_ins(folder.parent, search_path, NETWORK)
    for program, (commands, why) in _SOME_DONE.items():
        if real := shutil.which(program, path=search_path):
            kept = _kept(folder, program, real)
            text = _SOME.replace("@COMMANDS@", commands).replace("@WHY@", why)
            texts[program] = text.replace("@REAL@", str(kept))
    for program, text in texts.items():
        path = folder / program
        path.write_text(text.replace("@OUT@", str(notes)), encoding="utf-8")
        path.chmod(0o755)


def _kept(folder: Path, program: str, real: str) -> Path:
    """A copy of the host's own program: where it stood, the stand-in will stand."""
    kept = folder.parent / "real" / program
    kept.parent.mkdir(exist_ok=True)
    return Path(shutil.copy(real, kept))


def missing(folder: Path, search_path: str) -> list[Path]:
    """The stand-ins in `folder` for programs that the host does not have."""
    return [one for one in sorted(folder.iterdir()) if not shutil.which(one.name, path=search_path)]


def covered(folder: Path, search_path: str) -> dict[Path, Path]:
    """The host's own programs that the stand-ins in `folder` must hide, and what hides them.

    Being first on PATH is not enough: `#!/bin/bash -l` and `module load` set PATH anew.
    """
    found = {}
    for stand_in in folder.iterdir():
        if own := shutil.which(stand_in.name, path=search_path):
            program = Path(own).resolve()
            if program.name == stand_in.name:  # else one program of many names, such as busybox
                found[program] = stand_in
    return found
