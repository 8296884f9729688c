"""Attacks on the containment, as an ordinary user and as root; real processes, nothing pretended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from estimator import sandbox
from tests.estimator.callers import DRIVER, REPOSITORY, Caller, running, tree, wait_until

MIB = 1024**2


def test_exit_status_output_and_identity(caller: Caller) -> None:
    outcome = caller.contain("id -u; pwd; hostname; echo to stderr >&2; exit 3")
    assert (outcome["end"], outcome["code"], outcome["notes"]) == ("exit", 3, [])
    assert outcome["tail"].split("\n")[:4] == [
        str(caller.user.uid),
        str(caller.work),
        "localhost",
        "to stderr",
    ]


def test_what_a_script_writes_seems_written_and_vanishes(caller: Caller) -> None:
    caller.file("old.txt", "old")
    caller.file("results/old.txt", "old")
    before, beside = tree(caller.work), set(os.listdir("/tmp")) | set(os.listdir("/var/tmp"))
    outcome = caller.contain(
        """set -e
        echo new > old.txt; echo more >> results/old.txt; mkdir -p a/b; echo x > a/b/c; mv results moved
        rm old.txt; echo back > old.txt; cat old.txt moved/old.txt a/b/c
        echo x > /tmp/gpumem-left; echo x > /var/tmp/gpumem-left; echo x > /dev/shm/gpumem-left
        cat /tmp/gpumem-left; ln -s /etc link; chmod 600 old.txt"""
    )
    assert (outcome["end"], outcome["code"]) == ("exit", 0), outcome["tail"]
    assert outcome["tail"].split() == ["back", "oldmore", "x", "x"]
    assert tree(caller.work) == before
    assert not Path("/dev/shm/gpumem-left").exists()
    left = (set(os.listdir("/tmp")) | set(os.listdir("/var/tmp"))) - beside
    assert not [name for name in left if name.startswith("gpumem-left")]


def test_only_out_dir_keeps_what_is_written(caller: Caller) -> None:
    outcome = caller.contain(f"echo kept > {caller.out}/trace-1.json")
    assert outcome["code"] == 0, outcome["tail"]
    assert (caller.out / "trace-1.json").read_text() == "kept\n"


def test_nothing_else_can_be_written(caller: Caller) -> None:
    places = ["/etc/x", "/usr/x", "/opt/x", "/x", "/sys/kernel/x", "/proc/sys/kernel/hostname", "/home/x"]
    outcome = caller.contain(f"for f in {' '.join(places)}; do (echo x > $f) && echo wrote $f; done; exit 0")
    assert "wrote" not in outcome["tail"]
    assert not any(Path(place).exists() for place in places if not place.startswith("/proc"))
    assert socket.gethostname() not in ("x", "localhost")


def test_folders_of_a_shared_project_can_be_written(ordinary: Caller) -> None:
    """Overlayfs cannot copy up what belongs to a group that the namespace does not know."""
    shared = ordinary.file("shared/deep/old.txt").parent
    for folder in (shared, shared.parent):
        os.chown(folder, ordinary.user.uid, 1)
    outcome = ordinary.contain("touch shared/new shared/deep/new && ls shared shared/deep")
    assert (outcome["code"], outcome["notes"]) == (0, []), outcome["tail"]
    assert os.listdir(shared.parent) == ["deep"]


def test_no_rights_and_no_way_to_get_them(caller: Caller) -> None:
    outcome = caller.contain(
        """grep -E '^(Cap(Prm|Eff|Bnd|Amb|Inh)|NoNewPrivs)' /proc/self/status
        mount -o remount,rw / ; unshare --user --map-root-user --mount sh -c 'mount -o remount,rw /; echo x > /etc/x'
        su -c 'echo gained'; ls /dev; kill -9 1; exit 0"""
    )
    lines = outcome["tail"].splitlines()
    rights = [line.split() for line in lines[:6]]
    assert [value.strip("0") for name, value in rights if name.startswith("Cap")] == [""] * 5
    assert ["NoNewPrivs:", "1"] in rights
    assert "gained" not in outcome["tail"]
    assert not Path("/etc/x").exists()
    assert not {"vda", "sda", "kmsg", "mem", "nvidia0", "kvm", "fuse", "tty"} & set(lines)


def test_no_network(caller: Caller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(b"\0gpumem-test-%d" % os.getpid())
        abstract.listen()
        outcome = caller.python(
            f"""
import socket
def attempt(family, address):
    with socket.socket(family) as s:
        s.settimeout(2)
        try:
            s.connect(address)
            print("connected", address)
        except OSError as error:
            print("refused", error.errno)
attempt(socket.AF_INET, ("127.0.0.1", {server.getsockname()[1]}))
attempt(socket.AF_INET, ("192.0.2.1", 80))
attempt(socket.AF_UNIX, b"\\0gpumem-test-{os.getpid()}")
listener = socket.create_server(("127.0.0.1", 0))
attempt(socket.AF_INET, listener.getsockname())
"""
        )
    words = [line.split()[0] for line in outcome["tail"].splitlines()]
    assert words == ["refused"] * 3 + ["connected"], outcome["tail"]


def test_a_server_of_the_host_cannot_be_asked(caller: Caller, open_folder: Path) -> None:
    """A terminal multiplexer or a session bus would run commands outside for whoever connects."""
    paths = [caller.work / "in_work.sock", open_folder / "beside.sock", Path("/run/gpumem-test.sock")]
    if not os.access("/run", os.W_OK):
        paths.pop()
    servers = [socket.socket(socket.AF_UNIX) for _ in paths]
    try:
        for server, path in zip(servers, paths, strict=True):
            server.bind(str(path))
            server.listen()
            path.chmod(0o777)
        outcome = caller.python(
            f"""
import socket
for path in {[str(path) for path in paths]}:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        print("connected", path)
    except OSError as error:
        print("refused")
"""
        )
    finally:
        for server, path in zip(servers, paths, strict=True):
            server.close()
            path.unlink(missing_ok=True)
    assert outcome["tail"].split() == ["refused"] * len(paths)


def test_folders_that_cannot_be_looked_at_do_not_keep_others_from_being_written(ordinary: Caller) -> None:
    """As one that is removed while the place is built: its name was listed, and that is all."""
    if os.geteuid() != 0:
        pytest.skip("needs a folder of somebody else")
    shut = ordinary.work / "shut"
    (shut / "inner").mkdir(parents=True)
    shut.chmod(0o744)
    outcome = ordinary.contain("echo written > new.txt && cat new.txt; ls shut 2> /dev/null; exit 0")
    assert (outcome["tail"], outcome["notes"]) == ("written\ninner\n", [])


def test_processes_of_the_host_are_not_seen(caller: Caller, marker: str) -> None:
    victim = subprocess.Popen(
        ["sh", "-c", "exec sleep 60 # $0", marker], user=caller.user.uid, start_new_session=True
    )
    try:
        outcome = caller.contain(f"ls -d /proc/[0-9]* | wc -l; kill -9 {victim.pid} -1; exit 0")
        assert int(outcome["tail"].split()[0]) < 8
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_a_gigabyte_of_output_costs_little_and_its_end_is_kept(ordinary: Caller) -> None:
    outcome = ordinary.contain("head -c 1G /dev/zero | tr '\\0' x; echo; echo the end", wall_s=60.0)
    assert (outcome["end"], outcome["code"]) == ("exit", 0)
    assert outcome["tail"].endswith("x\nthe end\n")
    assert len(outcome["tail"]) <= 64 * 1024


def test_whatever_forks_and_sleeps_is_gone_with_the_script(caller: Caller, marker: str) -> None:
    outcome = caller.contain(
        f"""{{ (setsid sh -c 'echo up; while :; do read x < /dev/zero; done' {marker} &)
        (nohup setsid python3 -c 'import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: print("up", flush=True), time.sleep(3600)' {marker} &) ; }} | {{ read; read; }}
        ps ax | grep -c {marker}"""
    )
    assert outcome["end"] == "exit"
    assert int(outcome["tail"].split()[-1]) >= 3
    assert running(marker) == []


def test_one_that_never_ends_is_stopped(caller: Caller, marker: str) -> None:
    outcome = caller.contain(
        f"trap '' TERM INT HUP; echo started; while :; do sh -c 'sleep 1000; exit' {marker}; done", wall_s=3.0
    )
    assert (outcome["end"], outcome["code"], outcome["tail"]) == ("timeout", None, "started\n")
    assert 3.0 <= outcome["wall_s"] < 15.0
    assert running(marker) == []


def test_no_process_is_left_when_the_caller_is_killed(caller: Caller, marker: str) -> None:
    order = caller.order(["sh", "-c", f"sleep 1000 # {marker}\nexit"])
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        stdin=subprocess.PIPE,
        user=caller.user.uid,
        group=caller.user.gid,
        env=caller.user.environment({"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(caller.work)}),
        cwd="/",
    )
    assert driver.stdin is not None
    with driver.stdin as pipe:
        pipe.write(order.encode())
    wait_until(lambda: bool(running(marker)))
    driver.kill()
    driver.wait()
    wait_until(lambda: not running(marker))


def test_a_memory_hog_is_stopped(caller: Caller) -> None:
    outcome = caller.python(
        "hog = []\nwhile True: hog.append(bytearray(b'x') * (16 << 20))", memory_bytes=300 * MIB
    )
    assert outcome["end"] == "memory"
    assert outcome["memory_peak_bytes"] > 300 * MIB
    assert outcome["wall_s"] < 10


def test_memory_shared_by_forks_is_counted_once(ordinary: Caller) -> None:
    outcome = ordinary.python(
        """
import os, time
shared = bytearray(b"x") * (100 << 20)
for _ in range(5):
    if os.fork() == 0:
        break
time.sleep(0.6)
""",
        memory_bytes=300 * MIB,
    )
    assert (outcome["end"], outcome["code"]) == ("exit", 0)


def test_reserved_memory_does_not_count(ordinary: Caller) -> None:
    program = "import mmap; m = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | 0x4000); print(len(m) >> 40)"
    assert ordinary.python(program, memory_bytes=300 * MIB)["tail"] == "1\n"


def test_a_fork_bomb_is_stopped(caller: Caller) -> None:
    bomb = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError:
        pass
"""
    outcome = caller.python(bomb, processes=50)
    assert outcome["end"] == "processes"
    assert outcome["wall_s"] < 10


def test_disk_limits(ordinary: Caller) -> None:
    script = "head -c 40M /dev/zero > {0} || echo no space; ls -s --block-size=1M {0}"
    outcome = ordinary.contain(script.format("big"), scratch_bytes=20 * MIB, output_bytes=30 * MIB)
    assert "No space left" in outcome["tail"]
    outcome = ordinary.contain(
        f"for i in 1 2 3 4; do head -c 9M /dev/zero > {ordinary.out}/$i; done; sleep 5", output_bytes=30 * MIB
    )
    assert outcome["end"] == "output"


def test_cpu_limit_and_other_signals(ordinary: Caller) -> None:
    outcome = ordinary.contain("while :; do :; done", cpu_s=1)
    assert (outcome["end"], outcome["code"]) == ("signal", signal.SIGXCPU)
    outcome = ordinary.contain("kill -SEGV $$")
    assert (outcome["end"], outcome["code"]) == ("signal", signal.SIGSEGV)
    assert sandbox.signal_name(signal.SIGSEGV) == "SIGSEGV"


def test_signals_are_as_a_fresh_program_expects_them(ordinary: Caller) -> None:
    outcome = ordinary.contain("yes | head -1; echo ${PIPESTATUS[0]}; cat; readlink /proc/self/fd/0")
    assert outcome["tail"].split() == ["y", "141", "/dev/null"]


def test_a_command_that_is_not_there(ordinary: Caller) -> None:
    done = ordinary.user.run(
        [sys.executable, "-c", DRIVER],
        env={"PYTHONPATH": str(REPOSITORY)},
        text=ordinary.order(["/no/such/shell"]),
    )
    outcome = json.loads(done.stdout)
    assert (outcome["end"], outcome["code"]) == ("not_started", None)
    assert outcome["tail"] == "[Errno 2] No such file or directory: '/no/such/shell'"


def test_refused_where_there_are_no_namespaces(ordinary: Caller) -> None:
    """A namespace in which no more user namespaces may be made stands for a site that switched them off."""
    script = (
        'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --no-new-privs --bounding-set -all "$@"'
    )
    done = ordinary.user.run(
        ["unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-c", script, "sh",
         "setpriv", "--inh-caps", "-all", "--ambient-caps", "-all", sys.executable, "-c", DRIVER],
        env={"PYTHONPATH": str(REPOSITORY)},
        text=ordinary.order(["true"]),
    )  # fmt: skip
    outcome = json.loads(done.stdout)
    assert outcome["end"] == "refused"
    assert "user namespaces" in outcome["tail"]


def test_links_and_mounts_lead_nowhere(caller: Caller, open_folder: Path) -> None:
    outside = open_folder / "outside.txt"
    outside.write_text("as it was")
    outside.chmod(0o666)
    outcome = caller.contain(
        f"""ln -s {outside} link; echo changed > link
        ln -s {open_folder} folder; echo changed > folder/outside.txt; rm -f folder/outside.txt
        ln {outside} hard && echo changed > hard
        mkdir there; mount --bind {open_folder} there && echo changed > there/outside.txt
        unshare --user --map-root-user --mount sh -c \
            'mount --bind {open_folder} there; mount -o remount,rw,bind there; echo changed > there/outside.txt'
        python3 -c 'import os; os.chroot("/proc/1/root")'
        for fd in /proc/1/fd/* /proc/1/cwd/..; do ls $fd/../..; done
        exit 0"""
    )
    assert outcome["end"] == "exit"
    assert outside.read_text() == "as it was"
    assert not (caller.work / "link").exists()


def test_the_process_that_watches_cannot_be_touched(caller: Caller) -> None:
    """PID 1 of the namespace holds rights that the script has given up."""
    outcome = caller.python(
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.argtypes = [ctypes.c_long] * 7
ATTACH, SEIZE, PROCESS_VM_READV, PIDFD_OPEN, PIDFD_GETFD = 16, 0x4206, 310, 434, 438
print("attached" if libc.ptrace(ATTACH, 1, 0, 0) == 0 else "refused")
print("seized" if libc.ptrace(SEIZE, 1, 0, 0) == 0 else "refused")
descriptor = libc.syscall(PIDFD_OPEN, 1, 0, 0, 0, 0, 0)
print("stolen" if libc.syscall(PIDFD_GETFD, descriptor, 3, 0, 0, 0, 0) >= 0 else "refused")
for name in ("mem", "environ", "maps"):
    try:
        with open("/proc/1/" + name, "rb") as file:
            print("opened" if name == "mem" else file.read(1) and "read")
    except OSError:
        print("refused")
"""
    )
    assert set(outcome["tail"].split()) == {"refused"}, outcome["tail"]


def test_a_library_preloaded_by_the_script_is_contained_like_the_script(caller: Caller) -> None:
    caller.file(
        "escape.c",
        """#include <stdio.h>
        __attribute__((constructor)) static void begin(void) {
            FILE *file = fopen("/etc/gpumem-escaped", "w");
            puts(file ? "wrote" : "refused");
            fflush(stdout);
        }""",
    )
    outcome = caller.contain(
        "cc -shared -fPIC -o escape.so escape.c && LD_PRELOAD=./escape.so sh -c 'exit 7'"
    )
    assert (outcome["code"], outcome["tail"].split()) == (7, ["refused"])
    assert not Path("/etc/gpumem-escaped").exists()


def test_files_of_others_stay_unread(ordinary: Caller, open_folder: Path) -> None:
    secret = open_folder / "secret"
    secret.write_text("do not tell")
    secret.chmod(0o600)
    outcome = ordinary.contain(
        f"""cat {secret} /etc/shadow
        unshare --user --map-root-user cat {secret} /etc/shadow; exit 0"""
    )
    assert outcome["tail"].count("Permission denied") >= 4
    assert "do not tell" not in outcome["tail"]


def test_keys_of_the_login_session_are_left_behind(caller: Caller) -> None:
    keys = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
ADD_KEY, REQUEST_KEY, SESSION = 248, 249, -3
def add(): return libc.syscall(ADD_KEY, b"user", b"gpumem-test", b"secret", 6, SESSION)
def found(): return libc.syscall(REQUEST_KEY, b"user", b"gpumem-test", None, 0) > 0
"""
    caller.file("keys.py", keys)
    program = caller.file(
        "session.py",
        f"""
import ctypes, subprocess, sys
from keys import *
libc.syscall(250, 1, None)  # a session of its own
if add() <= 0:
    print("no keys")
else:
    print(found())
    sys.stdout.flush()
    subprocess.run([sys.executable, "-c", {DRIVER!r}], input=open("order").read(), text=True)
""",
    )
    caller.file("order", caller.order(["python3", "-c", "from keys import *; print(found())"]))
    done = caller.user.run(
        [sys.executable, str(program)], env={"PYTHONPATH": str(REPOSITORY)}, cwd=caller.work
    )
    first, *rest = done.stdout.splitlines()
    if first == "no keys":
        pytest.skip("this kernel has no keyrings")
    assert first == "True"
    assert json.loads(rest[0])["tail"] == "False\n"
