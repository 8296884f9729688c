"""Half the batch, where it stands."""

from pathlib import Path

import pytest

from estimator.dry_run import Launch
from estimator.smaller_batch import NoSuchOption, halved


@pytest.mark.parametrize(
    ("command", "option", "expected"),
    [
        ("python t.py --batch-size 12 --lr 1", "--batch-size", "python t.py --batch-size 6 --lr 1"),
        ("python t.py --batch-size=13", "--batch-size", "python t.py --batch-size=6"),
        ("python t.py train.batch=8 x=8", "train.batch", "python t.py train.batch=4 x=8"),
    ],
)
def test_in_a_command(command: str, option: str, expected: str) -> None:
    with halved(Launch.of_command(command.split()), option) as (smaller, _):
        assert " ".join(smaller.command) == expected


@pytest.mark.parametrize(
    "command", ["python t.py", "python t.py --batch-size 1", "python t.py --batch-size x"]
)
def test_where_it_is_not(command: str) -> None:
    with (
        pytest.raises(NoSuchOption, match="--batch-size"),
        halved(Launch.of_command(command.split()), "--batch-size"),
    ):
        pass


def test_in_the_text_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text("#!/bin/bash\npython t.py --my-batch-size 3 --batch-size  32 --x\n")
    with halved(Launch.of_script(script, []), "--batch-size") as (smaller, change):
        assert change == "--batch-size  16"
        assert smaller.script is not None
        assert smaller.name == "train.sbatch"
        copy = smaller.script.path
        assert copy.read_text() == "#!/bin/bash\npython t.py --my-batch-size 3 --batch-size  16 --x\n"
    assert not copy.exists()
    with halved(Launch.of_script(script, ["--batch-size", "8"]), "--batch-size") as (smaller, _):
        assert smaller.command == ("--batch-size", "4")
        assert smaller.script is not None and smaller.script.path == script
