"""PyTorch's own allocator, which does what it is told on standard input: a JSON line a session, in and out.

Runs in any interpreter that has a torch for CUDA (Python 3.9, torch 2.4 and newer), on the fake CUDA device.
"""

import ctypes
import json
import os
import sys

MIB = 1024**2
ANSWERS = os.dup(1)  # nobody else may write there
os.dup2(2, 1)

import torch  # noqa: E402

FAKE = ctypes.CDLL(os.environ["FUZZ_LIBRARY"])
TOTAL, CONTEXT = int(os.environ["FUZZ_TOTAL"]), int(os.environ["FUZZ_CONTEXT"])
STATS = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")
COUNTS = ("allocation", "active", "segment", "inactive_split", "inactive_split_bytes")
COUNTERS = ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free", "num_sync_all_streams")
C = torch._C


def reserve(size):
    """The address of reserved addresses that are given back at once; None: there are not so many in one piece."""
    out = ctypes.c_uint64()
    if FAKE.cuMemAddressReserve(ctypes.byref(out), ctypes.c_size_t(size), 0, ctypes.c_uint64(0), 0) != 0:
        return None
    FAKE.cuMemAddressFree(out, ctypes.c_size_t(size))
    return out.value


def end_pool(pool):
    end = getattr(C, "_cuda_endAllocateToPool", None) or C._cuda_endAllocateCurrentStreamToPool
    end(0, pool)


class Session:
    def __init__(self, order):
        set_settings(order["reset"])
        set_settings(order["conf"])
        C._cuda_setMemoryFraction(1.0, 0)
        self.tensors, self.pools, self.underway, self.uses = {}, {}, [], []
        self.ballast = ctypes.c_uint64()
        assert (
            FAKE.cudaMalloc(ctypes.byref(self.ballast), ctypes.c_size_t(TOTAL - CONTEXT - order["capacity"]))
            == 0
        )
        memory = ctypes.c_uint64()
        assert FAKE.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(2 * MIB)) == 0
        FAKE.cudaFree(memory)
        self.windows = [(VIRTUAL, order["virtual"]), (memory.value, order["memory"])]
        C._cuda_resetAccumulatedMemoryStats(0)
        C._cuda_resetPeakMemoryStats(0)

    def address(self, pointer):
        for first, shown in self.windows:
            if pointer >= first:
                return pointer - first + shown
        return -1

    def pool(self, number):
        if number not in self.pools:
            self.pools[number] = (
                C._cuda_MemPool_id() if hasattr(C, "_cuda_MemPool_id") else C._graph_pool_handle()
            )
        return self.pools[number]

    def do(self, what, *values):
        """Does one thing; the address of what was allocated, or what else there is to tell."""
        if what == "malloc":
            handle, size, stream = values
            stream = STREAMS[stream]
            C._cuda_setStream(stream.stream_id, stream.device_index, stream.device_type)
            try:
                tensor = torch.empty(size, dtype=torch.uint8, device=DEVICE)
            except torch.cuda.OutOfMemoryError:
                return "out of memory"
            self.tensors[handle] = tensor
            return self.address(tensor.data_ptr())
        if what == "free":
            self.tensors.pop(values[0], None)
        elif what == "record":
            if values[0] in self.tensors:
                self.tensors[values[0]].record_stream(STREAMS[values[1]])
        elif what in ("hold", "let_go"):
            FAKE.gpumem_hold_stream(ctypes.c_void_p(STREAMS[values[0]].cuda_stream), int(what == "hold"))
        elif what == "empty_cache":
            C._cuda_emptyCache()
        elif what == "fraction":
            C._cuda_setMemoryFraction(values[0], 0)
        elif what == "begin":
            C._cuda_beginAllocateToPool(0, self.pool(values[0]))
            self.underway.append(values[0])
            self.uses.append(values[0])
        elif what == "end":
            end_pool(self.pool(values[0]))
            self.underway.remove(values[0])
        elif what == "release_pool":
            C._cuda_releasePool(0, self.pool(values[0]))
            self.uses.remove(values[0])
            if values[0] not in self.uses:
                del self.pools[values[0]]
        elif what == "snapshot":
            return self.snapshot()
        else:
            raise ValueError(what)
        return None

    def snapshot(self):
        """[address, bytes, requested, state] of each block, segment after segment."""
        segments = []
        for segment in C._cuda_memorySnapshot(*SNAPSHOT_ARGUMENTS)["segments"]:
            segments.append(
                [
                    self.address(segment["address"]),
                    segment["segment_type"] == "small",
                    [
                        [b["size"], b["requested_size"] if b["state"] != "inactive" else 0, b["state"]]
                        for b in segment["blocks"]
                    ],
                ]
            )
        return sorted(segments)

    def observe(self):
        stats = C._cuda_memoryStats(0)
        seen = []
        for name in STATS:
            both = stats[name]["all"]
            seen += (both["current"], both["peak"])
        seen += [stats[name]["all"]["current"] for name in COUNTS]
        seen += [stats[name] for name in COUNTERS]
        used = ctypes.c_uint64()
        FAKE.gpumem_usage(0, ctypes.byref(used), None)
        seen.append(used.value - CONTEXT - BALLAST)
        return seen

    def close(self):
        self.tensors.clear()
        for pool in self.underway:
            end_pool(self.pool(pool))
        for pool in self.uses:
            C._cuda_releasePool(0, self.pool(pool))
        for stream in STREAMS:
            FAKE.gpumem_hold_stream(ctypes.c_void_p(stream.cuda_stream), 0)
        set_settings("expandable_segments:True")
        C._cuda_emptyCache()
        FAKE.cudaFree(self.ballast)
        # an expandable segment that never got memory is kept until it was used
        for _ in range(4):
            if reserve(ALL_VIRTUAL) is not None:
                break
            for stream in STREAMS:
                C._cuda_setStream(stream.stream_id, stream.device_index, stream.device_type)
                for size in (1, 30 * MIB):
                    torch.empty(size, dtype=torch.uint8, device=DEVICE)
            C._cuda_emptyCache()
        assert reserve(ALL_VIRTUAL) is not None, "addresses were left behind"
        assert C._cuda_memoryStats(0)["reserved_bytes"]["all"]["current"] == 0, "memory was left behind"


def set_settings(text):
    if hasattr(C, "_accelerator_setAllocatorSettings"):
        C._accelerator_setAllocatorSettings(text)
    else:
        C._cuda_cudaCachingAllocator_set_allocator_settings(text)


torch.cuda.init()
DEVICE = torch.device("cuda", 0)
VIRTUAL = reserve(2 * MIB)
ALL_VIRTUAL = next(size for size in range(4 << 40, 0, -(1 << 36)) if reserve(size) is not None)
STREAMS = [torch.cuda.default_stream(0), *(torch.cuda.Stream(0) for _ in range(3))]
try:
    SNAPSHOT_ARGUMENTS = ()
    C._cuda_memorySnapshot()
except TypeError:
    SNAPSHOT_ARGUMENTS = (None,)
    C._cuda_memorySnapshot(None)


def answer(value):
    data = json.dumps(value, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(ANSWERS, data) :]


answer({"torch": torch.__version__, "cuda": torch.version.cuda})
for line in sys.stdin:
    order = json.loads(line)
    BALLAST = TOTAL - CONTEXT - order["capacity"]
    answers = []
    error = session = None
    try:
        session = Session(order)
        for command in order["commands"]:
            answers.append([session.do(*command), *session.observe()])
    except Exception as failure:
        error = str(failure)
    answer({"answers": answers, "error": error})
    left = False
    if session is not None:
        try:
            session.close()
        except Exception:
            left = True
    answer({"left": left})
    if left:
        break
os._exit(0)
