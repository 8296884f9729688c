"""The same work in another wording, and other work that looks like it."""

import pytest

from estimator.essence import of_script

SCRIPT = """#!/bin/bash
#SBATCH --job-name=first
#SBATCH --output=logs/2024-05-01/%j.out
#SBATCH --gres=gpu:1
# trains the small one
module load cuda
LOGS=logs/2024-05-01
mkdir -p $LOGS
echo "begins at" 12
python train.py --lr 3 --out $OUT > $LOGS/train.log 2>&1
python test.py | tee logs/2024-05-01.log
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--job-name=first", "-J second"),
        ("#SBATCH --gres=gpu:1\n", "#SBATCH --time=1:00:00 --gres gpu:1 --mail-type END\n"),
        ("# trains the small one\n", ""),
        ("trains the small one", "trains the 'other one"),
        ('echo "begins at" 12\n', "hostname\nnvidia-smi\n"),
        ("2024-05-01", "2025-11-30"),
        ("mkdir -p $LOGS", "mkdir -p $LOGS other"),
        ("\npython train", "\n\n    python train"),
        ("--lr 3 --out", "--lr 3 \\\n    --out"),
        (" 2>&1", " 2>&1  "),
    ],
)
def test_another_wording_is_the_same_work(before: str, after: str) -> None:
    assert before in SCRIPT
    assert of_script(SCRIPT.replace(before, after)) == of_script(SCRIPT)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("gpu:1", "gpu:2"),
        ("bin/bash", "bin/sh"),
        ("module load cuda", "module load cuda/12"),
        ("--lr 3", "--lr 4"),
        ("--out $OUT", "--out $LOGS"),
        ("python test.py | tee", "python test.py 2024-05-01 | tee"),
        ("echo", "echo batch: 3 > config.yaml; echo"),
        ('echo "begins at" 12', 'echo "batch: 3" > config.yaml'),
        ('echo "begins at" 12', 'echo "$(bash other.sh)"'),
        ("echo", "sed -i s/1/2/ config.yaml; echo"),
        ("> $LOGS/train.log", "> other.log"),
        ("module load", "# remark \\\nmodule load other\nmodule load"),
        ("#SBATCH --gres=gpu:1\n", "#SBATCH --gres=gpu:1\n#SBATCH --cpus-per-task=2\n"),
    ],
)
def test_other_work_is_told_apart(before: str, after: str) -> None:
    assert before in SCRIPT
    assert of_script(SCRIPT.replace(before, after)) != of_script(SCRIPT)


@pytest.mark.parametrize(
    ("script", "before", "after"),
    [
        ("python - <<END\nx = 1\n# batch 8\nEND\n", "batch 8", "batch 9"),
        ("printf '%s\n# batch 8\n' > config\npython train.py\n", "batch 8", "batch 9"),
        ("DATA=data/20240501\npython train.py --data $DATA\n", "0501", "0502"),
        ("DATA=data/20240501\nsource run.sh > log\n", "0501", "0502"),
        ("cd runs/2024-05-01\npython train.py\n", "05-01", "05-02"),
        ("cp data/2024-05-01.tar . > log\npython train.py\n", "05-01", "05-02"),
        ("python train.py --name $SLURM_JOB_NAME\n#", "#", "\n#"),
    ],
)
def test_texts_that_programs_may_see_count(script: str, before: str, after: str) -> None:
    script = f"#!/bin/bash\n#SBATCH -J one\n{script}"
    changed = script.replace("-J one", "-J two") if "JOB_NAME" in script else script.replace(before, after)
    assert of_script(changed) != of_script(script)


def test_other_languages_stay_as_they_are() -> None:
    python = "#!/usr/bin/env python\n#SBATCH -J one\nprint('# 1')\n"
    assert of_script(python.replace("# 1", "# 2")) != of_script(python)
    assert of_script("no script") != of_script("no script at all")
