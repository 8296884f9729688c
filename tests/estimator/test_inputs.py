"""What an estimate depends on, and whether it still is as it was."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from estimator import inputs
from estimator.inputs import Noted
from estimator.trace import InputFile

LATER = 10**9  # ns


def of(path: Path, since_ns: int | None = None) -> InputFile:
    (file,) = inputs.of_paths([str(path)], time.time_ns() + LATER if since_ns is None else since_ns)
    return file


def test_small_files_count_by_content_and_large_ones_by_size_and_time(tmp_path: Path) -> None:
    code, data = tmp_path / "model.py", tmp_path / "data.bin"
    code.write_text("layers = 4")
    data.write_bytes(bytes(inputs.HASHED_FILE + 1))
    before = [of(code), of(data)]
    assert [file.sha256 is None for file in before] == [False, True]
    assert all(map(inputs.is_same, before))
    for path in (code, data):
        os.utime(path, ns=(1, 1))
    assert [inputs.is_same(file) for file in before] == [True, False]
    code.write_text("layers = 5")
    assert not inputs.is_same(before[0])


def test_what_changed_while_it_was_read_is_never_the_same(tmp_path: Path) -> None:
    code = tmp_path / "model.py"
    code.write_text("layers = 4")
    assert not inputs.is_same(of(code, since_ns=0))


def test_what_is_no_file_outside_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    paths = [tmp_path / "made-by-the-job", tmp_path / "pipe", tmp_path]
    assert inputs.of_paths(map(str, paths), 0) == ()


def test_what_is_missed_must_not_appear(tmp_path: Path) -> None:
    far, near, there = Path("/home/nobody/ckpt.pt"), tmp_path / "runs" / "last.pt", tmp_path / "there"
    there.touch()
    missed = inputs.of_absent(map(str, (far, near, there)), tmp_path)
    assert [file.path for file in missed] == [str(near), str(far)]
    assert all(map(inputs.is_same, missed))
    near.parent.mkdir()
    assert inputs.is_same(missed[0])
    near.mkdir()
    assert not inputs.is_same(missed[0])


def test_notes_are_read_as_far_as_they_make_sense(tmp_path: Path) -> None:
    ours = Path(inputs.__file__).with_name("tracer") / "run.py"
    noted = ["/home/u/a/../train.py", "/home/u/train.py", "/tmp/x/job/run.sh", "/home/u/m.pyc", str(ours)]
    noted += ["-/home/u/a/../b.pt", "-/tmp/x/out/y"]
    (tmp_path / inputs.NOTES).write_bytes(b"".join(path.encode() + b"\0" for path in noted) + b"/cut/sho")
    assert inputs.noted(tmp_path, Path("/tmp/x")) == Noted(("/home/u/train.py",), ("/home/u/b.pt",))


@pytest.mark.parametrize("kind", ["absent", "link", "pipe"])
def test_notes_that_are_no_file_are_none(tmp_path: Path, kind: str) -> None:
    if kind == "link":
        (tmp_path / inputs.NOTES).symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(tmp_path / inputs.NOTES)
    assert inputs.noted(tmp_path) == Noted()


def test_a_program_may_ask_for_the_name_of_its_job(tmp_path: Path) -> None:
    code = tmp_path / "train.py"
    code.write_text("name = os.environ['SLURM_JOB_NAME']")
    package = tmp_path / "site-packages" / "tool.py"
    package.parent.mkdir()
    package.write_bytes(code.read_bytes())
    assert inputs.name_jobs([of(code)])
    assert not inputs.name_jobs([of(package)])
