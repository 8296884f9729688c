"""Launch plans of scripts whose programs and site are not here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.corpus import __main__ as corpus
from bench.corpus import lenient, site
from estimator.catalog import load
from testbed.cluster import make_folder

HEAD = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --gres=gpu:4\n"


@pytest.fixture(scope="module")
def place() -> Iterator[site.Site]:
    folder = make_folder("gpumem-corpus-")
    made = site.build(folder / "site", lenient.FUNCTIONS)
    lenient.add_to(site.packages_of(folder / "site"))
    yield made
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("set -e\nsource /no/such/activate\ncd /no/where\nsrun python train.py\n", corpus.PROGRAM),
        ("module load x\nconda activate y\npython here.py\n", corpus.TRAINING),
        ("srun torchrun --nproc_per_node 4 /no/such/train.py\n", corpus.TRAINING),
        ("python -m no_such_module --x\n", corpus.PROGRAM),
        ("python broken.py\n", corpus.FAILED),
        ('if [ "$1" = go ]; then python train.py; fi\n', corpus.NEEDS),
        ("false && python train.py\n", corpus.NONE),
        ("#SBATCH nothing\npython train.py\n", corpus.NO_PLAN),
    ],
)
def test_what_becomes_of_a_script(tmp_path: Path, place: site.Site, text: str, found: str) -> None:
    (tmp_path / "job.sh").write_text(HEAD + text)
    (tmp_path / "here.py").write_text(
        "import numpy as np\nfrom lib.x import Y\nz = np.a.b(1)\nimport torch\n"
    )
    (tmp_path / "broken.py").write_text("raise SystemError\n")
    gpu = load(corpus.LIMITS.gpus_file).find(corpus.MODEL)
    result = corpus.look(tmp_path / "job.sh", tmp_path, place, gpu)
    assert (result.found, result.starts_python) == (found, True), result


def test_which_files_are_batch_scripts(tmp_path: Path) -> None:
    (tmp_path / "yes.slurm").write_text(HEAD)
    (tmp_path / "submits.sh").write_text("#!/bin/bash\nsbatch <<END\n#!/bin/bash\n#SBATCH -n 2\nEND\n")
    (tmp_path / "no.sh").write_text("#!/bin/bash\n")
    assert [path.name for path in corpus.scripts(tmp_path, "*")] == ["yes.slurm"]


def test_the_counts() -> None:
    results = [corpus.Result("a", True, corpus.TRAINING), corpus.Result("b", True, corpus.NONE)]
    results += [corpus.Result("c", True, corpus.NEEDS), corpus.Result("d", False, corpus.NONE)]
    last = corpus.table({"x": results}).splitlines()[-1]
    assert last == "| all | 4 | 4 | 3 | 1 | 0 | 0 | 0 | 1 | 1 | 50.0 % of 2 |"
