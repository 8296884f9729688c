"""How long it takes to see that a known job is unchanged: `python -m bench.reuse [--files N] [--uid UID]`.

What `gpumemd` does at a submission: the fingerprint, and a look at each file that the estimate depends on, as
the user. Touched: the same files with other times, as another `git checkout` leaves them, so all are read.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import settings
from estimator.inputs import of_absent, of_paths
from slurm_plugin import policy
from slurm_plugin.known import unchanged
from slurm_plugin.wire import Input, Submission

SCRIPT = (
    "#!/bin/bash\n#SBATCH --gres=gpu:1\n" + "# a remark\nexport NAME=value\n" * 30 + "srun python train.py\n"
)
BYTES = 8192  # of each file


def median_ms(what: Callable[[], object], times: int = 200) -> float:
    """Of one call, wall time."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        what()
        taken.append(time.perf_counter() - began)
    return 1000 * statistics.median(taken)


def main() -> None:
    """Prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--absent", type=int, default=100, help="files that it looked for in vain")
    parser.add_argument("--uid", type=int, default=os.getuid(), help="only root can be another user")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        paths = [folder / f"module{number}.py" for number in range(options.files)]
        for path in paths:
            path.write_bytes(os.urandom(BYTES))
            path.chmod(0o644)
        files = of_paths(map(str, paths), time.time_ns() + 10**9)
        files += of_absent((str(folder / f"absent{number}.pt") for number in range(options.absent)), folder)
        inputs = [Input.model_validate(file.model_dump()) for file in files]
        submission = Submission(
            v=1,
            uid=options.uid,
            script=SCRIPT,
            work_dir=place,
            argv=["train.sh"],
            environment=dict(os.environ),
        )
        partition = settings.Partition(gpu="a100-80gb", shards_per_gpu=80)
        estimate = settings.Estimate()

        def look() -> bool:
            return unchanged(inputs, options.uid)

        assert look()
        found = {"fingerprint": median_ms(lambda: policy.fingerprint(submission, partition, estimate))}
        found[f"{len(inputs)} files unchanged"] = median_ms(look)
        for path in paths:
            os.utime(path, (1, 1))
        assert look()
        found[f"{len(inputs)} files only touched"] = median_ms(look)
    for what, ms in found.items():
        print(f"{what:24} {ms:6.2f} ms")


if __name__ == "__main__":
    main()
