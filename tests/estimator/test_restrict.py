"""The containment for machines without namespaces: weaker, and every process is still gone at the end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from estimator import starter
from estimator.restrict import landlock_version
from tests.estimator.callers import DRIVER, REPOSITORY, Caller, running

MIB = 1024**2
NO_NAMESPACES = (
    'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --no-new-privs --bounding-set -all "$@"'
)


def contain(caller: Caller, script: str, **limits: Any) -> dict[str, Any]:
    """Has a script contained where no more user namespaces may be made."""
    done = caller.user.run(
        ["unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-c", NO_NAMESPACES, "sh",
         "setpriv", "--inh-caps", "-all", "--ambient-caps", "-all", sys.executable, "-c", DRIVER],
        env={"PYTHONPATH": str(REPOSITORY)},
        text=caller.order(["bash", "-c", script], required=False, **limits),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


def test_output_status_and_what_is_lacking_are_told(ordinary: Caller) -> None:
    outcome = contain(ordinary, f"pwd; echo kept > {ordinary.out}/trace-1.json; exit 3")
    assert (outcome["end"], outcome["code"], outcome["tail"]) == ("exit", 3, f"{ordinary.work}\n")
    assert outcome["notes"]
    assert (ordinary.out / "trace-1.json").read_text() == "kept\n"


@pytest.mark.skipif(landlock_version() < 4, reason="this kernel has no Landlock with TCP rules")
def test_landlock_refuses_writes_and_tcp(ordinary: Caller) -> None:
    ordinary.file("old.txt", "old")
    outcome = contain(
        ordinary,
        """echo x > new.txt; echo x > old.txt; rm old.txt; mkdir made; mv old.txt moved.txt; ln -s a b
        echo x > /tmp/gpumem-restricted; echo fine > $TMPDIR/mine && cat $TMPDIR/mine
        python3 -c 'import socket; socket.create_server(("127.0.0.1", 0))' 2>&1 | tail -1
        exit 0""",
    )
    assert "fine" in outcome["tail"]
    assert "PermissionError" in outcome["tail"]
    assert sorted(path.name for path in ordinary.work.iterdir()) == ["old.txt"]
    assert (ordinary.work / "old.txt").read_text() == "old"
    assert not Path("/tmp/gpumem-restricted").exists()


def test_daemons_are_gone_with_the_script(ordinary: Caller, marker: str) -> None:
    outcome = contain(
        ordinary,
        f"""{{ (setsid sh -c 'echo up; while :; do read x < /dev/zero; done' {marker} &)
        (nohup setsid python3 -c 'import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: print("up", flush=True), time.sleep(3600)' {marker} &) ; }} | {{ read; read; }}
        ps ax | grep -c {marker}""",
    )
    assert outcome["end"] == "exit"
    assert int(outcome["tail"].split()[-1]) >= 3
    assert running(marker) == []


def test_limits_hold(ordinary: Caller, marker: str) -> None:
    outcome = contain(
        ordinary, f"trap '' TERM; while :; do sh -c 'sleep 1000; exit' {marker}; done", wall_s=3.0
    )
    assert outcome["end"] == "timeout"
    assert running(marker) == []
    bomb = "import os, time\nwhile True:\n    try: os.fork() or time.sleep(60)\n    except OSError: pass"
    ordinary.file("bomb.py", bomb)
    outcome = contain(ordinary, f"exec python3 bomb.py {marker}", processes=50)
    assert outcome["end"] == "processes"
    assert running(marker) == []
    ordinary.file("hog.py", "hog = []\nwhile True: hog.append(bytearray(b'x') * (16 << 20))")
    assert contain(ordinary, "exec python3 hog.py", memory_bytes=300 * MIB)["end"] == "memory"


def test_python_loads_what_is_to_be_preloaded(ordinary: Caller, open_folder: Path) -> None:
    code = open_folder / "code.py"
    code.write_text("print('first', configuration)\n")
    ordinary.preload = starter.write(open_folder / "start", Path("order"), code)
    outcome = contain(ordinary, "python3 -I -S -c 'print(1)'")
    assert outcome["tail"] == "first order\n1\n"
