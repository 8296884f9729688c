"""Puts one command into namespaces of its own: nothing it writes stays, nothing it starts survives.

A program of its own (standard library only), started by `sandbox.py` as `python -I -S confine.py FD`. It
reads an order as JSON from stdin and reports on file descriptor FD, one JSON object a line: `{"init": pid}`
(as seen from outside), `{"ready": [notes]}`, `{"status": wait status}`; or `{"error": why there is no
containment}`, `{"not_started": why the command could not be executed}`.

Three processes: this one leaves for new namespaces and waits; its child is PID 1 of the new PID namespace,
builds the file system and reaps; the command is a child of that. When PID 1 goes, the kernel ends the rest.
The first one also mounts image files for the command, if it is told how (see `mounter.py`).
"""

# Plain system calls on plain paths, as the manual pages have them.
# ruff: noqa: PTH101, PTH102, PTH103, PTH110, PTH112, PTH116, PTH123, PTH211

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import platform
import re
import resource
import signal
import socket
import stat
import struct
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

# <sched.h>, <sys/mount.h>, <linux/mount.h>, <sys/prctl.h>, <linux/capability.h>
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_UNBINDABLE, MS_PRIVATE = 16384, 1 << 17, 1 << 18
MNT_DETACH = 2
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
READ_ONLY = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
CAPABILITY_VERSION_3 = 0x20080522
SYS_KEYCTL, KEYCTL_JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}, 1
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1

DEVICES = ("null", "zero", "full", "random", "urandom")
KERNEL_SWITCHES = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
NAME_SERVICE_SOCKETS = ("/var/lib/sss/pipes/nss",)
PRELOAD = "ld.so.preload"
DEFAULT_PATH = ("/usr/local/bin", "/usr/bin")  # both are on it, wherever
MIRRORED_FOLDERS, MIRROR_SECONDS = 2000, 0.3

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [
    ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p,
]  # fmt: skip
_libc.syscall.argtypes = [
    ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint, ctypes.c_char_p, ctypes.c_size_t,
]  # fmt: skip
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


class CannotConfine(Exception):
    """The containment cannot be built here; the text says at what it failed."""


def main() -> NoReturn:
    """Takes the order and stays until the command and all it started are gone."""
    reports = int(sys.argv[1])
    os.set_inheritable(reports, False)
    order = json.load(sys.stdin)
    try:
        _leave_for_new_namespaces(order["parent"])
        _run_init(order, reports)
    except CannotConfine as error:
        report(reports, error=str(error))
        os._exit(1)
    os._exit(0)


def _leave_for_new_namespaces(parent: int) -> None:
    """Unshares, keeps the user's own number inside, and goes when `parent` goes."""
    uid, gid = os.getuid(), os.getgid()
    others = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    try:
        _check(_libc.unshare(CLONE_NEWUSER | others), "user namespaces")
    except CannotConfine as error:
        if uid != 0:
            raise CannotConfine(f"{error} (this user may not make user namespaces)") from None
        _check(_libc.unshare(others), "namespaces")
    else:
        maps = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
        for name, text in maps.items():
            with _named(name):
                Path(f"/proc/self/{name}").write_text(text, encoding="ascii")
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def _run_init(order: dict[str, Any], reports: int) -> None:
    """Starts PID 1 of the new PID namespace and waits for its end; SIGTERM ends it at once."""
    alive, held = os.pipe()
    built, building = os.pipe()
    images = _mounter(order) if order["images"] else None
    init = os.fork()
    if init == 0:
        os.close(held)
        die_with_parent()
        if not os.read(alive, 1):  # the parent went before its death could be noticed
            os._exit(1)
        _init(order, reports, building)

    def stop(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(init, signal.SIGKILL)

    signal.signal(signal.SIGTERM, stop)
    if images:
        die_with_parent(signal.SIGTERM)  # there is something to be done before
    report(reports, init=init)
    os.close(building)
    os.write(held, b".")
    if images and os.read(built, 1):
        images.serve(until=built)  # until PID 1 ends, and its end of the pipe is closed
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()  # PID 1, and what serves images: the namespace is gone when all of it is reaped


def _mounter(order: dict[str, Any]) -> Any:
    """Who mounts images here; it has to be made while the root is that of the host."""
    sys.path.insert(0, str(Path(__file__).parent.parent))  # started by path, under -I
    from estimator import mounter

    return mounter.Mounter(order["environment"].get("PATH", os.defpath), lambda: give_up_rights(order))


def _init(order: dict[str, Any], reports: int, building: int) -> NoReturn:
    """PID 1: builds the place, starts the command, reaps whatever ends, goes when the command ends."""
    os.umask(0o022)
    try:
        new_session_keyring()
        notes = _build_root(order)
        _loopback_up()
        with contextlib.suppress(OSError):
            socket.sethostname("localhost")  # so that scripts which meet at $(hostname) meet themselves
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    except CannotConfine as error:
        report(reports, error=str(error))
        os._exit(1)
    os.write(building, b".")
    report(reports, ready=notes)
    command = os.fork()
    if command == 0:
        execute(order, reports)
    for output in (1, 2):
        os.close(output)
    while True:
        pid, status = os.wait()
        if pid == command:
            report(reports, status=status)
            os._exit(0)


# --- the file system ---


def _build_root(order: dict[str, Any]) -> list[str]:
    """The host's files, read-only; writes into `discard` go to memory, only those into `out` stay."""
    base = order["root"]
    sockets, places = _listening_sockets(), _mount_points(order["discard"])
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, f"size={order['scratch_bytes']},mode=0700")
    _mount(None, base, None, MS_UNBINDABLE)  # else the copy of the tree below would hold itself
    new = f"{base}/new"
    os.mkdir(new)
    _mount("/", new, None, MS_BIND | MS_REC)
    _mount(None, base, None, MS_PRIVATE)  # but overlayfs wants to clone it
    _set_attributes(new, READ_ONLY)
    notes = []
    written: dict[str, bool] = {}  # place: may be written into; outer ones first
    for place, mounted in places:
        outer = next((above for above in reversed(written) if place.startswith(f"{above}/")), None)
        if outer and written[outer] and not mounted:
            continue
        try:
            _overlay(
                place, f"{base}/{len(written)}", new + place, [order["mirror"], *(path for path, _ in places)]
            )
            written[place] = True
        except (CannotConfine, OSError):
            _mount(place, new + place, None, MS_BIND | MS_REC)
            _set_attributes(new + place, READ_ONLY)
            written[place] = False
            notes.append(f"writing into {place} failed in the dry run: it cannot be overlaid")
    _proc(f"{new}/proc")
    _dev(f"{new}/dev", order["scratch_bytes"])
    _mount("tmpfs", f"{new}/run", "tmpfs", MS_NOSUID | MS_NODEV, "size=16m,mode=0755")
    if order["images"]:
        _places_of_images(new)
    for path in sockets:
        _hide_socket(new + path)
    for number, path in order["held"].items():
        with contextlib.suppress(OSError):  # not there, or more than the limit on open files
            _hold(new + path, int(number))
    if order["added"]:
        with contextlib.suppress(CannotConfine, OSError):
            _add_programs(order["added"], f"{base}/programs", new)
    for path, stand_in in order["covers"].items():
        if os.path.exists(new + path):
            _mount(stand_in, new + path, None, MS_BIND)
            _set_attributes(new + path, READ_ONLY)
    for path, attributes in ((order["files"], READ_ONLY), (order["out"], READ_ONLY & ~MOUNT_ATTR_RDONLY)):
        if path:
            os.makedirs(new + path, exist_ok=True)
            _mount(path, new + path, None, MS_BIND)
            _set_attributes(new + path, attributes)
    if order["preload"]:
        notes += _preload(order, f"{base}/preload", f"{new}/etc")
    os.chdir(new)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "umount of the old root")
    os.chdir("/")
    return notes


def _hold(program: str, number: int) -> None:
    """Has the command inherit `program`, to execute it by proc_pid_fd(5) though it is covered."""
    found = os.open(program, os.O_PATH)
    os.dup2(found, number)  # survives exec
    os.close(found)


def _preload(order: dict[str, Any], store: str, etc: str) -> list[str]:
    """Has every program load a library: by /etc/ld.so.preload, which no environment variable can undo.

    Where /etc cannot be overlaid, LD_PRELOAD has to do, which a script may lose. See ld.so(8).
    """
    library = order["preload"]
    os.mkdir(store)
    text = ""
    with contextlib.suppress(OSError):
        text = Path("/etc/ld.so.preload").read_text(encoding="utf-8", errors="surrogateescape")
    path = f"{store}/{PRELOAD}"
    Path(path).write_text(f"{library}\n{text}", encoding="utf-8", errors="surrogateescape")
    try:
        if re.search(r"[\s:]", library):
            raise CannotConfine(f"{library}: the linker cannot read such a name")
        if not os.path.exists(f"{etc}/{PRELOAD}"):
            _add(f"{store}/etc", "/etc", etc, {PRELOAD: None})
        _mount(path, f"{etc}/{PRELOAD}", None, MS_BIND)
        _set_attributes(etc, READ_ONLY)
    except (CannotConfine, OSError) as error:
        preload_by_variable(order)
        return [f"a script that changes LD_PRELOAD cannot be traced: {error}"]
    return []


def preload_by_variable(order: dict[str, Any]) -> None:
    """The weaker way, for those who do not keep it from their programs."""
    own = order["environment"].get("LD_PRELOAD")
    order["environment"]["LD_PRELOAD"] = ":".join(filter(None, (order["preload"], own)))


def _add_programs(programs: list[str], store: str, new: str) -> None:
    """Has programs found that the host lacks, also by a login shell, which sets PATH anew."""
    place = next(folder for folder in DEFAULT_PATH if os.path.isdir(folder))
    _add(store, place, new + place, {Path(program).name: program for program in programs})
    _set_attributes(new + place, READ_ONLY)


def _add(store: str, place: str, target: str, links: dict[str, str | None]) -> None:
    """Mounts over `target` what is in `place`, and these links, or empty files; read-only."""
    added, lower = f"{store}/added", f"{store}/lower"
    for folder in (store, added, lower):
        os.mkdir(folder)
    for name, source in links.items():
        if source is None:
            Path(f"{added}/{name}").touch()
        else:
            os.symlink(source, f"{added}/{name}")
    _mount(place, lower, None, MS_BIND)
    _mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, f"lowerdir={added}:{lower}")
    for path in sorted(_mounted()):  # overlayfs does not look into these
        if path.startswith(f"{place}/"):
            _mount(path, target + path[len(place) :], None, MS_BIND)


def _mounted() -> set[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return {_unescape(line.split()[4]) for line in file}


def _mount_points(places: list[str]) -> list[tuple[str, bool]]:
    """`places` and the mount points below them, outer ones first; with each, whether it is a mount point."""
    found = {os.path.realpath(place) for place in places}
    mounted = _mounted()
    found |= {point for point in mounted if any(point.startswith(f"{place}/") for place in found)}
    kept = ("/proc/", "/sys/", "/dev/", "/run/")
    usable = [
        path for path in found if path != "/" and os.path.isdir(path) and not f"{path}/".startswith(kept)
    ]
    return [(path, path in mounted) for path in sorted(usable, key=lambda path: (path.count("/"), path))]


def _overlay(place: str, store: str, target: str, wanted: list[str]) -> None:
    """Mounts over `target` what is in `place`, with changes kept in memory under `store`.

    Overlayfs copies a folder up, owner and all, when something in it changes, and an owner or group that the
    user namespace does not know cannot be copied (EOVERFLOW). So the way to the `wanted` folders, and below
    the first of them the folders of other groups (those of a shared project), are made beforehand.
    """
    lower, upper, work = (f"{store}/{name}" for name in ("lower", "upper", "work"))
    for folder in (store, lower, upper, work):
        os.mkdir(folder)
    _mount(place, lower, None, MS_BIND | MS_REC)  # a plain name: overlayfs gives ":" and "," a meaning
    os.chmod(upper, _mode_for_us(place))
    inner = [path[len(place) :] for path in wanted if f"{path}/".startswith(f"{place}/")]
    for folder in inner:
        _mirror(place, upper, folder)
    if f"{wanted[0]}/".startswith(f"{place}/"):
        _mirror_shared_folders(place, upper, inner[0])
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    try:
        _mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, f"{options},userxattr")
    except CannotConfine:  # Linux before 5.11, where only the superuser comes as far as this
        _mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options)


def _mode_for_us(folder: str) -> int:
    """The mode of `folder` for a copy that we own: the owner may do what we may do there."""
    ours = sum(right for right in (os.R_OK, os.W_OK, os.X_OK) if os.access(folder, right))
    return stat.S_IMODE(os.stat(folder).st_mode) & ~0o700 | ours << 6


def _mirror_shared_folders(place: str, upper: str, start: str) -> None:
    """Makes the folders below `place`/`start` that belong to others in `upper`, as far as time allows."""
    ours = os.getuid(), os.getgid()
    deadline = time.monotonic() + MIRROR_SECONDS
    waiting, seen = [start], 0
    while waiting and seen < MIRRORED_FOLDERS and time.monotonic() < deadline:
        here = waiting.pop(0)
        with contextlib.suppress(OSError):  # it is closed to us, or was removed since it was listed
            about = os.stat(place + here)
            if (about.st_uid, about.st_gid) != ours:
                _mirror(place, upper, here)
            with os.scandir(place + here) as entries:
                inner = [f"{here}/{entry.name}" for entry in entries if entry.is_dir(follow_symlinks=False)]
            seen += len(inner)
            waiting += inner


def _mirror(place: str, upper: str, folder: str) -> None:
    """Makes `folder` (and those above it) in `upper`."""
    made = ""
    for name in folder.strip("/").split("/"):
        made = f"{made}/{name}"
        if name and not os.path.isdir(upper + made):
            mode = _mode_for_us(place + made)
            os.mkdir(upper + made)
            os.chmod(upper + made, mode)


def _proc(target: str) -> None:
    """A /proc of the new PID namespace whose switches of the kernel cannot be turned, not even by uid 0."""
    _mount("proc", target, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in KERNEL_SWITCHES:
        path = f"{target}/{name}"
        if os.path.exists(path):
            _mount(path, path, None, MS_BIND)
            _mount(None, path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _dev(target: str, scratch_bytes: int) -> None:
    """A /dev without a single device of the machine: no GPU, no disk, no terminal."""
    _mount("tmpfs", target, "tmpfs", MS_NOSUID, "size=64k,mode=0755")
    for name in DEVICES:
        Path(f"{target}/{name}").touch()
        _mount(f"/dev/{name}", f"{target}/{name}", None, MS_BIND)
    for name, link in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{link}", f"{target}/{name}")
    for folder in ("shm", "pts"):
        os.mkdir(f"{target}/{folder}")
    _mount("tmpfs", f"{target}/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"size={scratch_bytes},mode=1777")
    _mount("devpts", f"{target}/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    os.symlink("pts/ptmx", f"{target}/ptmx")


def _places_of_images(new: str) -> None:
    """Where images will be mounted: a folder that nothing inside can change."""
    from estimator import mounter

    place = new + mounter.PLACE
    os.mkdir(place)
    _mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
    mounter.prepare(place)
    _set_attributes(place, READ_ONLY)


def _listening_sockets() -> list[str]:
    """Paths of the sockets that somebody on this host listens on."""
    with contextlib.suppress(OSError):
        text = Path("/proc/net/unix").read_text(encoding="utf-8", errors="surrogateescape")
        return sorted(set(re.findall(r" (/.*)$", text, re.MULTILINE)) - set(NAME_SERVICE_SOCKETS))
    return []


def _hide_socket(path: str) -> None:
    """A server of the host (a session bus, a terminal multiplexer) would do things for us outside."""
    if _is_socket(path):
        try:
            _mount("/dev/null", path, None, MS_BIND)
        except CannotConfine:
            if _is_socket(path):  # else the server has just ended
                raise


def _is_socket(path: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    return False


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


# --- the command ---


def execute(order: dict[str, Any], reports: int) -> NoReturn:
    """Gives up every right, takes the limits, becomes the command."""
    try:
        give_up_rights(order)
        os.chdir(order["cwd"])
        os.execvpe(order["command"][0], order["command"], order["environment"])  # noqa: S606
    except (OSError, ValueError, CannotConfine) as error:
        report(reports, not_started=str(error))
    os._exit(127)


def give_up_rights(order: dict[str, Any]) -> None:
    """Leaves a process without any right, within the limits, with the signals of a fresh program.

    Raises:
        OSError, ValueError, CannotConfine: something of it failed.
    """
    os.setsid()
    for name, value in order["rlimits"].items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        above = value + (name == "RLIMIT_CPU")  # SIGXCPU comes first and says what it is, SIGKILL later
        limits = (value, above) if hard == resource.RLIM_INFINITY else (min(value, hard), min(above, hard))
        resource.setrlimit(number, limits)
    _drop_rights()
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.umask(order["umask"])
    # Python ignores some, `nohup` and a shell's background others: what is ignored stays so after exec.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)


def _drop_rights() -> None:
    """No capability now or after exec, and no program that would give one back."""
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    capability = 0
    while _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    # EINVAL: past the last one. EPERM: without namespaces an ordinary user has none, and can get none.
    if ctypes.get_errno() not in (errno.EINVAL, errno.EPERM):
        raise CannotConfine(f"dropping capabilities: {os.strerror(ctypes.get_errno())}")
    no_new_rights()
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, bytes(24)), "capset")


def no_new_rights() -> None:
    """From now on no program that is executed has more rights than this one (set-user-ID and the like)."""
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def new_session_keyring() -> None:
    """Leaves the keys of the login session behind (keyrings(7)): they could be read and revoked."""
    call = SYS_KEYCTL.get(platform.machine())
    if call is None or _libc.syscall(call, KEYCTL_JOIN_SESSION_KEYRING, None, 0, None, 0) >= 0:
        return
    if ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):  # else there are no keys here to be reached
        _check(-1, "a session keyring")


def _loopback_up() -> None:
    with _named("loopback"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(some, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(some, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


# --- small things ---


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """The kernel sends this process a signal when the thread that started it ends."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, by, 0, 0, 0), "prctl")


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    result = _libc.mount(
        None if source is None else os.fsencode(source), os.fsencode(target),
        None if kind is None else kind.encode(), flags, os.fsencode(options) or None,
    )  # fmt: skip
    _check(result, f"mount of {kind or 'a bind'} on {target}")


def _set_attributes(tree: str, attributes: int) -> None:
    """`mount_setattr(2)` on every mount of a tree at once (Linux 5.12)."""
    wanted = struct.pack("QQQQ", attributes, 0, 0, 0)
    result = _libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(tree), AT_RECURSIVE, wanted, len(wanted))
    _check(result, "mount_setattr (Linux 5.12 or newer is needed)")


def _check(result: int, what: str) -> None:
    if result < 0:
        raise CannotConfine(f"{what}: {os.strerror(ctypes.get_errno())}")


@contextlib.contextmanager
def _named(what: str) -> Any:
    """Turns an `OSError` inside into `CannotConfine`."""
    try:
        yield
    except OSError as error:
        raise CannotConfine(f"{what}: {error.strerror}") from None


def report(reports: int, **fields: Any) -> None:
    """Tells `sandbox.py` something, as one line of JSON on the descriptor `reports`."""
    os.write(reports, json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    main()
