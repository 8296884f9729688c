"""A real process that "uses" GPU memory: it publishes its usage as one on a pretend device does.

Usage: gpu_user.py NODE_DIR; then on stdin, one line each, answered by one line on stdout:
    hold UUID BYTES    holds so much from now on
    fork UUID BYTES    a forked child holds so much; answers its pid
    orphan UUID BYTES  the same by a grandchild in a session of its own, whose parent has ended
    end                ends in order
"""

import os
import struct
import sys
import time

UUID_BYTES, DEVICES = 64, 16


class Published:
    def __init__(self, node):
        pid = os.getpid()
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        self.path = f"{node}/procs/{pid}-{ticks}"
        self.head = (b"GPUMEM01", pid, ticks, int(time.time() * 1e6))
        self.used, self.peak, self.end_us = {}, {}, 0

    def hold(self, uuid, used):
        self.used[uuid] = used
        self.peak[uuid] = max(used, self.peak.get(uuid, 0))
        self.write()

    def end(self):
        self.end_us = int(time.time() * 1e6)
        self.write()

    def write(self):
        magic, pid, ticks, start_us = self.head
        data = struct.pack("<8sIIQQQ", magic, pid, len(self.used), ticks, start_us, self.end_us)
        for uuid, used in self.used.items():
            data += struct.pack(f"<{UUID_BYTES}sQQ", uuid.encode(), used, self.peak[uuid])
        data = data.ljust(40 + DEVICES * (UUID_BYTES + 16), b"\0")
        beside = f"{self.path}.new"
        with open(os.open(beside, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644), "wb") as file:
            file.write(data)
        os.rename(beside, self.path)


def child(node, uuid, used):
    pid = os.fork()
    if pid == 0:
        Published(node).hold(uuid, used)
        time.sleep(60)
        os._exit(0)
    time.sleep(0.05)
    return pid


def orphan(node, uuid, used):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        os.write(writing, str(child(node, uuid, used)).encode())
        os._exit(0)
    os.wait()
    return os.read(reading, 20).decode()


def main(node):
    published = Published(node)
    print("ready", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "end":
            published.end()
            break
        uuid, used = arguments[0], int(arguments[1])
        if command == "hold":
            answer = published.hold(uuid, used)
        else:
            answer = (child if command == "fork" else orphan)(node, uuid, used)
        print(answer, flush=True)


main(sys.argv[1])
