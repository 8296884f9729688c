"""job_submit.lua by itself, in the Lua that slurmctld is linked to; in a real Slurm: test_submission.py."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from testbed.cluster import make_folder
from tests.slurm_plugin.running import PLUGIN

LUA = shutil.which("lua5.1")
HARNESS = Path(__file__).with_name("harness.lua")
REPLY = {
    "action": "defer",
    "decision_id": "abc",
    "set": {"tres_per_node": "gres:shard:80", "tres_per_job": "", "user_id": "0"},
    "environment": {"SLURM_GPUS": "", "SLURM_GPUS_PER_NODE": ""},
    "begin_in_s": 100,
    "admin_comment": "gpumem decision=abc",
    "message": "100 % of a GPU",
}

pytestmark = pytest.mark.skipif(LUA is None, reason="lua5.1 is not installed")


def submit(reply: dict[str, Any] | None, refusing: str = "", *more: str) -> tuple[list[str], bytes]:
    """What the plug-in did with one job, and what it asked."""
    folder = make_folder()
    path, asked = folder / "s", []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def answer() -> None:
        connection, _ = listener.accept()
        data = b""
        while b"\r\n\r\n" not in data or len(data.split(b"\r\n\r\n", 1)[1]) < length(data):
            data += connection.recv(65536)
        asked.append(data)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(reply).encode())
        connection.close()

    thread = threading.Thread(target=answer, daemon=True)
    if reply is not None:
        thread.start()
    plugin = folder / PLUGIN.name
    text = PLUGIN.read_text()
    if reply is not None:  # a busy machine may keep our thread from answering in 50 ms
        text, changed = re.subn(r"(?<=DEADLINE_S = )[\d.]+", "10", text)
        assert changed == 1
    plugin.write_text(text)
    done = subprocess.run(
        [str(LUA), str(HARNESS), str(plugin), refusing, *more],
        env={"GPUMEM_SUBMIT_SOCKET": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    listener.close()
    shutil.rmtree(folder)
    return done.stdout.splitlines(), b"".join(asked)


def length(data: bytes) -> int:
    head = data.split(b"\r\n\r\n", 1)[0].decode().lower()
    return int(head.split("content-length: ")[1].split("\r\n")[0])


def test_it_compiles() -> None:
    subprocess.run([shutil.which("luac5.1") or "luac5.1", "-p", str(PLUGIN)], check=True)


def test_the_question_has_what_was_set_and_nothing_else() -> None:
    _, asked = submit(REPLY)
    head, _, body = asked.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/submissions HTTP/1.0\r\n")
    assert json.loads(body) == {
        "v": 1,
        "uid": 1000,
        "partition": "gpu",
        "tres_per_node": "gres:gpu:1",
        "min_nodes": 1,
        "script": "#!/bin/bash\npython $DATA ${OTHER:-x}\n",
        "argv": ["/x/train.sh", "a"],
        "environment": {"PATH": "/bin", "DATA": "data", "OTHER": "other"},
    }


def test_the_answer_is_applied_as_far_as_it_may_be() -> None:
    before = int(time.time())
    printed, _ = submit(REPLY)
    assert printed[:2] == ["code 0", "tres_per_node gres:shard:80"]
    assert printed[2] == "tres_per_job "
    assert 100 <= int(printed[3].split()[1]) - before <= 102
    assert printed[4:6] == ["admin_comment gpumem decision=abc", "SLURM_GPUS ;"]
    assert printed[6].startswith("info gpumem: decision=abc action=defer user=1000 ms=")
    assert printed[7] == "user gpumem: 100 % of a GPU"


@pytest.mark.parametrize("refusing", ["begin_time", "admin_comment"])
def test_an_answer_that_slurm_refuses_half_way_is_taken_back(refusing: str) -> None:
    printed, _ = submit(REPLY, refusing)
    assert printed[:5] == [
        "code 0", "tres_per_node gres:gpu:1", "tres_per_job ", "begin_time 0", "admin_comment nil"
    ]  # fmt: skip
    assert "decision=none action=pass" in printed[6] and "cannot write" in printed[6]


GUARDED = {
    **REPLY,
    "export": {
        "PYTORCH_CUDA_ALLOC_CONF": "a:1",
        "PYTORCH_ALLOC_CONF": "b:1",
        "PATH": "/x",
        "LD_PRELOAD": "y",
    },
}


def test_the_variables_of_the_guard_are_set_and_no_others() -> None:
    printed, _ = submit(GUARDED, "", "environment")
    assert printed[6:9] == ["PYTORCH_CUDA_ALLOC_CONF a:1;", "PYTORCH_ALLOC_CONF b:1;", "PATH /bin;"]


def test_a_guard_that_cannot_be_set_leaves_the_job_as_it_was() -> None:
    printed, _ = submit(GUARDED, "PYTORCH_ALLOC_CONF", "environment")
    assert printed[1] == "tres_per_node gres:gpu:1"
    assert printed[6:8] == ["PYTORCH_CUDA_ALLOC_CONF ;", "PYTORCH_ALLOC_CONF nil;"]


def test_nobody_answers() -> None:
    printed, _ = submit(None)
    assert printed[:2] == ["code 0", "tres_per_node gres:gpu:1"]
    assert "fault=no answer in time" in printed[6]
    assert 45 < float(printed[6].split("ms=")[1].split()[0]) < 90  # a busy machine adds some
