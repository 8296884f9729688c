"""Stand-ins for the cluster's programs in a dry run: one task, one GPU, here, and nothing is submitted."""

from __future__ import annotations

import shutil
from pathlib import Path

# Options of srun(1) that take no value, or one only after "=". Every other option takes one.
_SRUN_FLAGS = (
    "bcast compress contiguous debugger-test disable-status exact exclusive get-user-env help hold immediate "
    "interactive kill-on-bad-exit label multi-prog no-allocate no-kill nice overcommit overlap oversubscribe "
    "preserve-env propagate pty quiet quit-on-interrupt reboot resv-ports send-libs share spread-job "
    "test-only unbuffered usage use-min-nodes verbose version x11"
)
_SRUN_SHORT_FLAGS = "EHIKOQVXZhklsuv"

_SRUN = """#!/bin/sh
# Starts one task of the step here: srun's own options go, the command stays.
while [ $# -gt 0 ]; do
    case $1 in
    --) shift; break ;;
    --chdir=*) cd "${1#*=}" || exit 1; shift ;;
    --chdir|-D) cd "$2" || exit 1; shift 2 ;;
    --*=*) shift ;;
    @FLAGS@) shift ;;
    --*|-?) [ $# -gt 1 ] || exit 1; shift 2 ;;
    -*) shift ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || exit 0
SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=localhost
SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=1 SLURM_NPROCS=1
export SLURM_STEP_ID SLURM_STEPID SLURM_STEP_NUM_TASKS SLURM_STEP_NUM_NODES SLURM_STEP_NODELIST
export SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_NPROCS
exec "$@"
"""

_NVIDIA_SMI = """#!/bin/sh
# Tells of the GPU that the dry run pretends to have.
query= units=1 header=1
for word in "$@"; do
    case $word in
    -L|--list-gpus) echo "GPU 0: @NAME@ (UUID: @UUID@)"; exit 0 ;;
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
line=
for field in $(echo "$query" | tr ',' ' '); do
    unit=
    case $field in
    name|gpu_name) value="@NAME@" ;;
    uuid|gpu_uuid) value="@UUID@" ;;
    index|utilization.*) value=0 ;;
    count) value=1 ;;
    memory.total|memory.free) value=@MIB@ unit=" MiB" ;;
    memory.used) value=0 unit=" MiB" ;;
    compute_cap) value="@CC@" ;;
    *) value="[N/A]" ;;
    esac
    [ $units = 1 ] || unit=
    line="${line:+$line, }$value$unit"
done
echo "$line"
"""

_SCONTROL = """#!/bin/sh
# Changes nothing; the only node is this one.
case "$*" in show*hostname*) echo localhost ;; esac
exit 0
"""

_NOTHING = """#!/bin/sh
# Succeeds and does nothing: this is a dry run.
exit 0
"""


def write(
    folder: Path, *, name: str, uuid: str, memory_bytes: int, compute_capability: tuple[int, int]
) -> None:
    """Writes the stand-ins into `folder`; the rest describes the GPU that `nvidia-smi` shows."""
    flags = "|".join(
        [*(f"--{flag}" for flag in _SRUN_FLAGS.split()), *(f"-{flag}" for flag in _SRUN_SHORT_FLAGS)]
    )
    about = {
        "@NAME@": name,
        "@UUID@": uuid,
        "@MIB@": str(memory_bytes // 1024**2),
        "@CC@": ".".join(map(str, compute_capability)),
    }
    nvidia_smi = _NVIDIA_SMI
    for mark, text in about.items():
        nvidia_smi = nvidia_smi.replace(mark, "".join(c for c in text if c.isalnum() or c in " ._-()/"))
    texts = {"srun": _SRUN.replace("@FLAGS@", flags), "nvidia-smi": nvidia_smi, "scontrol": _SCONTROL}
    texts |= dict.fromkeys(("sbatch", "scancel", "sleep"), _NOTHING)
    folder.mkdir()
    for program, text in texts.items():
        path = folder / program
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)


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
