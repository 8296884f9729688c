"""Image files in the containment, and attacks by what serves them and by who asks; real mounts by FUSE."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from estimator import image_files
from tests.estimator.callers import Caller, running, wait_until

# Has the image $1 mounted and prints the answer.
ASK = r"""ask() {
    rm -f reply; mkfifo reply; exec 3<> reply
    printf '%s\n' "$PWD/reply" "$PWD/$1" "$PWD/bin/apptainer" > /run/gpumem-images/requests
    read -r -t 15 place <&3; echo "$place"
}
"""
# Takes each request and answers none but the first; then waits for an answer to a request of its own, which
# nobody can give any more: SIGKILL does not end such a process.
HANGS = f"""#!{sys.executable}
import os, struct, sys, threading
image, device = sys.argv[-2:]
fuse = int(os.path.basename(device))
def read():
    length, kind, unique = struct.unpack_from("IIQ", os.read(fuse, 1 << 20))
    return kind, unique
kind, unique = read()
assert kind == 26  # FUSE_INIT
body = struct.pack("IIIIHHII32x", 7, 31, 65536, 0, 12, 9, 65536, 1)
os.write(fuse, struct.pack("IiQ", 16 + len(body), 0, unique) + body)
def hold():
    while True:
        read()
threading.Thread(target=hold).start()
os.stat("/run/gpumem-images/0/something")
"""


@pytest.fixture
def mounting(caller: Caller) -> Caller:
    """One who has images mounted."""
    caller.open_fuse()
    caller.images = True
    return caller


@pytest.fixture
def hanging(mounting: Caller) -> Caller:
    """One whose images are served by a program that hangs so that nobody can end it."""
    mounting.file("hang.img", "hsqs")
    mounting.file("libexec/apptainer/bin/squashfuse_ll", HANGS).chmod(0o755)
    return mounting


@pytest.mark.skipif(not shutil.which("squashfuse"), reason="squashfuse is not installed here")
@pytest.mark.skipif(not shutil.which("mksquashfs"), reason="squashfs-tools are not installed here")
def test_what_is_in_an_image_can_be_read_and_run(mounting: Caller) -> None:
    content = mounting.file("content/program", "#!/bin/sh\necho ran\n").parent
    (content / "program").chmod(0o755)
    image = mounting.work / "an image"
    subprocess.run(["mksquashfs", content, image, "-quiet"], check=True, capture_output=True)
    outcome = mounting.contain(
        ASK
        + """ask 'an image'; "$place/program"; ask 'an image'; echo x > "$place/new"
        unshare --user --map-current-user --mount sh -c "$place/program"; kill -9 -1; exit 0""",
    )
    assert outcome["tail"].split("\n")[:3] == ["/run/gpumem-images/0", "ran", "/run/gpumem-images/0"]
    assert "new: Read-only file system" in outcome["tail"]
    assert "gpumem" not in Path("/proc/mounts").read_text()


def test_a_server_that_hangs_holds_nobody(hanging: Caller, marker: str) -> None:
    outcome = hanging.contain(
        ASK
        + f"""ask hang.img; stat $place/file {marker} &
        until [ "$(cat /proc/$!/comm)" = stat ]; do sleep 0.1; done; sleep 0.3; kill -0 $! && echo hangs""",
    )
    assert (outcome["end"], outcome["tail"].split()) == ("exit", ["/run/gpumem-images/0", "hangs"])
    assert running(marker) + running(str(hanging.work / "libexec")) == []


def test_a_script_that_hangs_with_it_is_stopped(hanging: Caller, marker: str) -> None:
    outcome = hanging.contain(ASK + f"ask hang.img; stat $place/file {marker}", wall_s=4.0)
    assert outcome["end"] == "timeout"
    assert outcome["wall_s"] < 15.0
    assert running(marker) + running(str(hanging.work / "libexec")) == []


def test_none_is_left_when_the_caller_is_killed(hanging: Caller, marker: str) -> None:
    server = str(hanging.work / "libexec")
    with hanging.started(ASK + f"ask hang.img; stat $place/file {marker}") as driver:
        wait_until(lambda: bool(running(marker) and running(server)))
        driver.kill()
    wait_until(lambda: not running(marker) + running(server))


@pytest.mark.parametrize(
    "attack",
    [
        "cat /run/gpumem-images/requests & for i in $(seq 300); do printf 'reply\\nhang.img\\nx\\n' > "
        "/run/gpumem-images/requests; done; kill %1",
        "head -c 300000 /dev/urandom > /run/gpumem-images/requests",
        "head -c 300000 /dev/zero | tr '\\0' x > /run/gpumem-images/requests",
        "for i in $(seq 300); do printf '/dev/null\\n%s\\nx\\n' $i; done > /run/gpumem-images/requests",
        "ask hang.img; printf 'reply\\n/run/gpumem-images/0/image\\nx\\n' > /run/gpumem-images/requests; sleep 0.3",
        "printf '/proc/1/mem\\n/proc/1/mem\\n/\\n\\n\\n\\n\\n' > /run/gpumem-images/requests",
    ],
)
def test_whoever_asks_nonsense_harms_nobody(hanging: Caller, attack: str) -> None:
    outcome = hanging.contain(ASK + f"{attack}; exit 3")
    assert (outcome["end"], outcome["code"]) == ("exit", 3)
    assert outcome["wall_s"] < 15


def test_mounts_stay_where_they_are_and_fuse_is_not_seen(hanging: Caller) -> None:
    """Else a mount could be hidden from the one that cuts it off at the end.

    System calls, as programs look at the image first and would wait for it.
    """
    hanging.file(
        "attempts.py",
        """
import ctypes, os, sys
place = sys.argv[1].encode()
libc = ctypes.CDLL(None)
detach, move = 2, 0x2000
os.chdir("/run/gpumem-images")
attempts = {
    "umount": lambda: not libc.umount2(place, 0),
    "umount --lazy": lambda: not libc.umount2(place, detach),
    "mount --move": lambda: not libc.mount(place, b"1", None, move, None),
    "rmdir": lambda: os.rmdir("1") is None,
    "mkdir": lambda: os.mkdir("new") is None,
    "rename it": lambda: os.rename("0", "moved") is None,
    "rename the folder": lambda: os.rename("/run/gpumem-images", "/run/moved") is None,
    "rename run": lambda: os.rename("/run", "/moved") is None,
}
for name, attempt in attempts.items():
    try:
        print(name, "works" if attempt() else "fails")
    except OSError:
        print(name, "fails")
""",
    )
    outcome = hanging.contain(
        ASK
        + """ask hang.img; python3 attempts.py "$place"
        unshare --user --map-current-user --keep-caps --mount python3 attempts.py "$place" | head -2
        ls /dev | grep fuse; exit 0""",
    )
    told = outcome["tail"].split("\n")
    assert told[0] == "/run/gpumem-images/0"
    assert len(told) > 9 and all(line.endswith((" fails", " permitted")) for line in told[1:-1])


def test_who_serves_an_image_holds_nothing_else(hanging: Caller) -> None:
    """It may be looked into, here for as long as one likes: what it holds would be there for all."""
    hanging.file(
        "look.py",
        """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        folder = f"/proc/{pid}/fd"
        files = {int(name): os.path.basename(os.readlink(f"{folder}/{name}")) for name in os.listdir(folder)}
    except OSError:
        continue
    if "fuse" in files.values():
        print(*sorted({files[number] for number in files if number > 2}))
""",
    )
    outcome = hanging.contain(
        """mkfifo image; printf '%s\\n' "$PWD/reply" "$PWD/image" x > /run/gpumem-images/requests
        for i in $(seq 50); do sleep 0.1; found=$(python3 look.py); [ -z "$found" ] || break; done; echo $found"""
    )
    assert outcome["tail"] == "fuse null\n"


def test_without_dev_fuse_it_is_told_why(hanging: Caller) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can hide /dev/fuse")
    hanging.prefix = hanging.after('mount --bind /dev/null /dev/fuse; exec "$@"', "sh")
    assert hanging.contain(ASK + "ask hang.img")["tail"].startswith("no mount: ")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no image of a known format"),
        (b"\0" * 32 + image_files.SIF_MAGIC, "holds no file system"),
        (b"\0" * 32 + image_files.SIF_MAGIC + b"\xff" * 4000, "holds no file system"),
    ],
)
def test_what_is_no_image(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "image"
    file.write_bytes(content.ljust(200, b"\0") if content else content)
    with pytest.raises(image_files.NoImage, match=why):
        image_files.file_system(str(file))


def sif(system: int, role: int) -> bytes:
    """An image with one partition at byte 4096."""
    descriptor = image_files.SIF_DESCRIPTOR.pack(
        image_files.SIF_PARTITION, True, 1, 0, 0, 4096, 10, 10, 0, 0, 0, 0, b"", system, role
    )
    head = (b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + image_files.SIF_MAGIC).ljust(88, b"\0")
    return (head + image_files.SIF_DESCRIPTORS.pack(1, 200)).ljust(200, b"\0") + descriptor


def test_where_the_file_system_of_an_image_lies(tmp_path: Path) -> None:
    file = tmp_path / "image"
    file.write_bytes(sif(1, image_files.SIF_PRIMARY))
    assert image_files.file_system(str(file)) == ("squashfs", 4096)
    file.write_bytes(sif(5, image_files.SIF_PRIMARY))
    with pytest.raises(image_files.NoImage, match="encrypted"):
        image_files.file_system(str(file))
    file.write_bytes(sif(1, 4))
    with pytest.raises(image_files.NoImage, match="holds no file system"):
        image_files.file_system(str(file))
    file.write_bytes(bytes(image_files.EXT_MAGIC_AT) + image_files.EXT_MAGIC)
    assert image_files.file_system(str(file)) == ("ext", 0)
