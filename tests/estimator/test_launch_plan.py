"""`gpumem explain`: the plan of a script, by running it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from estimator import launch_plan
from estimator.layout import Layout
from tests.estimator.callers import Caller

ACTIVATE = Path(sys.executable).parent / "activate"
SCRIPT = f"""#!/bin/bash
#SBATCH --job-name=sweep
   # what comes before the first command
#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:a100:4
set -e
source {ACTIVATE}
export OMP_NUM_THREADS=8 WANDB_API_KEY=hush
pip install -q einops
python -m pip install -q einops
git push origin main
rsync -a somewhere:/data $TMPDIR/
python prepare.py
gpus=$(python -c 'import torch; print(torch.cuda.device_count())')
for rate in 1 2; do
    srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=$gpus train.py --rate $rate
done
(cd sub && bash run.sh) &
wait
python broken.py || true
"""


@pytest.fixture
def project(ordinary: Caller) -> Caller:
    ordinary.file("job.sbatch", SCRIPT)
    ordinary.file("train.py", "import torch\nopen('trained', 'w')\n")
    ordinary.file("prepare.py", "open('data.txt', 'w').write('x')\n")
    ordinary.file("broken.py", "import nothing_of_that_name\n")
    ordinary.file("sub/run.sh", "exec python -u -m pkg --fast\n")
    ordinary.file("sub/pkg.py", "import torch\n")
    return ordinary


def test_what_a_script_starts(project: Caller) -> None:
    done = project.gpumem("explain", "--timeout", "100", "--gpu", "h100", "--json", "job.sbatch")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["problems"] == []
    assert (plan["nodes"], plan["tasks"], plan["gpus_per_node"]) == (2, 2, 4)
    # a launcher's own interpreter may be called python3
    programs = {" ".join(["python", *one["command"][1:]]): one for one in plan["programs"]}
    assert list(programs) == [
        "python prepare.py",
        "python -c import torch; print(torch.cuda.device_count())",
        "python train.py --rate 1",
        "python train.py --rate 2",
        "python -m pkg --fast",
        "python broken.py",
    ]
    assert programs["python prepare.py"]["framework"] is None
    train = programs["python train.py --rate 1"]
    assert (train["framework"], train["ranks"], train["via"]) == ("PyTorch", 8, ["srun", "torchrun"])
    assert train["environment"]["OMP_NUM_THREADS"] == "8"
    assert train["environment"]["WANDB_API_KEY"] == "..."
    assert programs["python -m pkg --fast"]["cwd"] == str(project.work / "sub")
    assert "nothing_of_that_name" in programs["python broken.py"]["error"]
    assert [one["command"][0] for one in plan["skipped"]] == ["pip", "git", "rsync"]
    assert "hush" not in done.stdout
    assert sorted(path.name for path in project.work.iterdir()) == [
        "broken.py", "job.sbatch", "prepare.py", "sub", "train.py",
    ]  # fmt: skip


def test_as_text_and_without_pytorch(project: Caller) -> None:
    project.file("other.sh", "#!/bin/sh\npython3 prepare.py\nfalse\n")
    done = project.gpumem("explain", "--gpu", "h100", "other.sh")
    assert done.returncode == 3
    assert "prepare.py" in done.stdout
    assert "ended with exit code 1" in done.stdout
    assert "importing PyTorch" in done.stdout
    done = project.gpumem("explain", "--gpu", "h100", "nothing.sh")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("gpumem: ")


@pytest.mark.parametrize("content", ["", "{}", '{"argv": []}', "[1]", '{"argv": ["a"], "cwd": 1}'])
def test_a_record_that_no_program_of_ours_wrote(tmp_path: Path, content: str) -> None:
    (tmp_path / "program-1-1.json").write_text(content)
    with pytest.raises(launch_plan.PlanError, match=r"program-1-1\.json"):
        launch_plan.read(tmp_path, "x", tmp_path, None, Layout())


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "skipped-7").symlink_to("/etc/passwd")
    with pytest.raises(launch_plan.PlanError, match="skipped-7"):
        launch_plan.read(tmp_path, "x", tmp_path, None, Layout())
