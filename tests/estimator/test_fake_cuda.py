"""The fake CUDA device and the stand-in NVML, through their C ABIs and under a real PyTorch."""

import ctypes
import importlib.util
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pynvml
import pytest

REPOSITORY = Path(__file__).parents[2]
LIB = REPOSITORY / "estimator" / "fake_cuda" / "lib"
MIB = 1 << 20
GIB = 1 << 30
CONTEXT = 400 * MIB
UUIDS = ("GPU-00000000-1111-2222-3333-444444444444", "GPU-55555555-6666-7777-8888-999999999999")

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONFIGURATION, NO_DEVICE = 0, 1, 2, 9, 100
INPUTS, BLAS_WORKSPACE, READ_BACK = 1, 2, 4


# ---- the library by itself ----


class Event(ctypes.Structure):
    _fields_ = [
        ("interval", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
    ]


class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


class Cuda:
    """One instance of the library, with as many devices as are asked for."""

    def __init__(self, path: Path, devices: int = 1, total: int = 8 * GIB, enforce: bool = True):
        self.lib = ctypes.CDLL(str(path))
        for index in range(devices):
            self.lib.gpumem_add_device(
                b"Test GPU", UUIDS[index].encode(), ctypes.c_uint64(total), ctypes.c_uint64(CONTEXT), 8, 0, 108, index
            )  # fmt: skip
        self.lib.gpumem_set_limit(int(enforce))

    def malloc(self, size: int) -> int:
        """The address; 0 on failure."""
        address = ctypes.c_uint64(1)
        status = self.lib.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size))
        assert status == (SUCCESS if address.value else OUT_OF_MEMORY)
        return address.value

    def free(self, address: int) -> int:
        return self.lib.cudaFree(ctypes.c_uint64(address))

    def usage(self, ordinal: int = 0) -> tuple[int, int]:
        used, peak = ctypes.c_uint64(), ctypes.c_uint64()
        self.lib.gpumem_usage(ordinal, ctypes.byref(used), ctypes.byref(peak))
        return used.value, peak.value

    def free_memory(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert self.lib.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == SUCCESS
        return free.value

    def events(self) -> list[tuple[int, int, int, int]]:
        count = self.lib.gpumem_events(None, ctypes.c_size_t(0))
        buffer = (Event * count)()
        self.lib.gpumem_events(buffer, ctypes.c_size_t(count))
        return [(e.interval, e.kind, e.address, e.bytes) for e in buffer]

    def names(self, function: str) -> list[str]:
        buffer = ctypes.create_string_buffer(10_000)
        size = getattr(self.lib, function)(buffer, ctypes.c_size_t(len(buffer)))
        assert size == len(buffer.value)
        return buffer.value.decode().split()

    def copy(self, to: int, source: int, size: int) -> int:
        return self.lib.cudaMemcpy(ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size), 4)


@pytest.fixture
def library(tmp_path):
    """A copy: the dynamic linker takes it for another library, with a state of its own."""
    return Path(shutil.copy(LIB / "libgpumem_cuda.so", tmp_path))


@pytest.fixture
def cuda(library):
    return Cuda(library)


def test_memory_is_handed_out_in_pages_of_2_mib_first_fit(cuda):
    a, b, c = cuda.malloc(1), cuda.malloc(5 * MIB), cuda.malloc(2 * MIB)
    assert (b - a, c - b) == (2 * MIB, 6 * MIB)
    assert cuda.usage() == (CONTEXT + 10 * MIB, CONTEXT + 10 * MIB)
    assert cuda.free(b) == SUCCESS
    assert cuda.malloc(2 * MIB) == b
    assert cuda.malloc(4 * MIB + 1) == c + 2 * MIB  # the hole of 4 MiB is too small
    assert cuda.malloc(4 * MIB) == b + 2 * MIB
    assert cuda.usage() == (CONTEXT + 16 * MIB, CONTEXT + 16 * MIB)


def test_holes_grow_together(cuda):
    blocks = [cuda.malloc(2 * MIB) for _ in range(4)]
    for index in (0, 2, 1):
        cuda.free(blocks[index])
    assert cuda.malloc(6 * MIB) == blocks[0]


def test_free_takes_only_what_was_handed_out(cuda):
    address = cuda.malloc(4 * MIB)
    assert cuda.free(0) == SUCCESS
    assert cuda.free(address + 512) == INVALID_VALUE
    assert cuda.free(address) == SUCCESS
    assert cuda.free(address) == INVALID_VALUE
    assert cuda.lib.cudaGetLastError() == INVALID_VALUE
    assert cuda.lib.cudaGetLastError() == SUCCESS
    assert cuda.usage() == (CONTEXT, CONTEXT + 4 * MIB)


def test_first_use_makes_the_context(cuda):
    count = ctypes.c_int()
    assert cuda.lib.cudaGetDeviceCount(ctypes.byref(count)) == SUCCESS
    assert (count.value, cuda.usage()) == (1, (0, 0))
    assert cuda.free_memory() == 8 * GIB - CONTEXT
    assert cuda.usage() == (CONTEXT, CONTEXT)


def test_a_node_enforces_its_limit(cuda):
    room = 8 * GIB - CONTEXT
    assert cuda.malloc(room + 1) == 0
    assert cuda.lib.cudaGetLastError() == OUT_OF_MEMORY
    assert cuda.malloc(room)
    assert cuda.free_memory() == 0
    assert cuda.malloc(1) == 0
    assert cuda.malloc(2**64 - 1) == 0


def test_a_traced_run_has_no_limit(library):
    cuda = Cuda(library, enforce=False)
    assert cuda.malloc(100 * GIB)
    assert cuda.usage()[0] == CONTEXT + 100 * GIB
    assert cuda.free_memory() == 0


def test_without_devices_there_is_no_device(library):
    cuda = Cuda(library, devices=0)
    count = ctypes.c_int(7)
    assert cuda.lib.cudaGetDeviceCount(ctypes.byref(count)) == NO_DEVICE
    assert count.value == 0
    assert cuda.lib.cudaSetDevice(0) == NO_DEVICE
    assert cuda.lib.cuInit(0) == NO_DEVICE


def test_devices_are_counted_apart(library):
    cuda = Cuda(library, devices=2)
    assert cuda.lib.cudaSetDevice(1) == SUCCESS
    address = cuda.malloc(GIB)
    assert (cuda.usage(0), cuda.usage(1)) == ((0, 0), (CONTEXT + GIB, CONTEXT + GIB))
    attributes = (ctypes.c_int * 22)()
    assert cuda.lib.cudaPointerGetAttributes(attributes, ctypes.c_uint64(address)) == SUCCESS
    assert list(attributes[:2]) == [2, 1]  # device memory, of device 1


def test_events_tell_intervals_addresses_and_sizes(cuda):
    device, host = cuda.malloc(MIB), ctypes.create_string_buffer(b"x" * 64)
    cuda.copy(device, ctypes.addressof(host), 64)
    cuda.lib.gpumem_mark()
    cuda.copy(device, device + 512, 64)  # on the device: not told
    cuda.copy(ctypes.addressof(host), device + 8, 32)
    assert host.raw == b"\0" * 32 + b"x" * 32 + b"\0"
    handle = ctypes.c_void_p()
    assert cuda.lib.cublasCreate_v2(ctypes.byref(handle)) == SUCCESS
    cuda.lib.cublasSetWorkspace_v2(handle, ctypes.c_uint64(device), ctypes.c_size_t(4096))
    assert cuda.events() == [
        (0, INPUTS, device, 64),
        (1, READ_BACK, device + 8, 32),
        (1, BLAS_WORKSPACE, device, 4096),
    ]


def test_reading_a_lot_back_zeroes_all_of_it(cuda):
    device, size = cuda.malloc(8 * MIB), 3 * MIB + 123
    host = ctypes.create_string_buffer(b"x" * size, size)
    cuda.copy(ctypes.addressof(host) + 7, device, size - 11)
    assert host.raw == b"x" * 7 + b"\0" * (size - 11) + b"x" * 4


def test_unknown_and_invented_are_named_once(cuda):
    for name in (b"ncclFoo", b"cuBar", b"ncclFoo"):
        assert cuda.lib.gpumem_unknown_call(name) == 0
    assert cuda.names("gpumem_unknown_names") == ["cuBar", "ncclFoo"]
    size = ctypes.c_size_t()
    cuda.lib.cufftGetSize(1, ctypes.byref(size))
    assert cuda.names("gpumem_invented_names") == ["cufft", "workspace"]


def test_mapped_memory_counts_while_it_exists(cuda):
    reserved, handle = ctypes.c_uint64(), ctypes.c_uint64()
    properties = struct.pack("<iiiiQ8x", 1, 0, 1, 0, 0)
    lib, size = cuda.lib, ctypes.c_size_t(20 * MIB)
    assert lib.cuMemAddressReserve(ctypes.byref(reserved), ctypes.c_size_t(90 * GIB), 0, 0, 0) == SUCCESS
    assert cuda.usage()[0] == CONTEXT
    assert lib.cuMemCreate(ctypes.byref(handle), size, properties, 0) == SUCCESS
    assert lib.cuMemMap(reserved, size, 0, handle, 0) == SUCCESS
    assert lib.cuMemRelease(handle) == SUCCESS
    assert cuda.usage()[0] == CONTEXT + 20 * MIB  # the mapping holds it
    assert lib.cuMemUnmap(reserved, size) == SUCCESS
    assert cuda.usage()[0] == CONTEXT
    assert lib.cuMemAddressFree(reserved, ctypes.c_size_t(90 * GIB)) == SUCCESS
    assert lib.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(9 * GIB), properties, 0) == OUT_OF_MEMORY


def test_pools_keep_up_to_their_threshold(cuda):
    pool, address = ctypes.c_void_p(), ctypes.c_uint64()
    threshold = ctypes.c_uint64(8 * MIB)
    cuda.lib.cudaDeviceGetDefaultMemPool(ctypes.byref(pool), 0)
    cuda.lib.cudaMemPoolSetAttribute(pool, 4, ctypes.byref(threshold))
    assert cuda.lib.cudaMallocAsync(ctypes.byref(address), ctypes.c_size_t(19 * MIB), None) == SUCCESS
    assert cuda.usage()[0] == CONTEXT + 20 * MIB
    assert cuda.lib.cudaFreeAsync(address, None) == SUCCESS
    assert cuda.usage()[0] == CONTEXT + 8 * MIB
    assert cuda.lib.cudaMemPoolTrimTo(pool, ctypes.c_size_t(0)) == SUCCESS
    assert cuda.usage()[0] == CONTEXT


@pytest.mark.parametrize(
    ("grid", "block", "shared", "status"),
    [
        ((1, 1, 1), (1024, 1, 1), 163 * 1024, SUCCESS),
        ((2**31 - 1, 65535, 65535), (16, 16, 4), 0, SUCCESS),
        ((0, 1, 1), (32, 1, 1), 0, INVALID_CONFIGURATION),
        ((1, 65536, 1), (32, 1, 1), 0, INVALID_CONFIGURATION),
        ((1, 1, 1), (32, 33, 1), 0, INVALID_CONFIGURATION),
        ((1, 1, 1), (1, 1, 65), 0, INVALID_CONFIGURATION),
        ((1, 1, 1), (32, 1, 1), 164 * 1024, INVALID_VALUE),
    ],
)
def test_launches_are_checked(cuda, grid, block, shared, status):
    launch = cuda.lib.cudaLaunchKernel
    launch.argtypes = [ctypes.c_void_p, Dim3, Dim3, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    assert launch(1, Dim3(*grid), Dim3(*block), None, shared, None) == status


@pytest.mark.parametrize(("version", "sm_count_at", "size"), [(12040, 388, 1032), (13000, 384, 1008)])
def test_properties_lie_where_each_cuda_has_them(cuda, version, sm_count_at, size):
    cuda.lib.gpumem_set_cuda_version(version)
    out = ctypes.create_string_buffer(b"\xff" * 1040, 1040)
    assert cuda.lib.cudaGetDeviceProperties_v2(out, 0) == SUCCESS
    assert out.value == b"Test GPU"
    assert out.raw[256:272] == bytes.fromhex(UUIDS[0][4:].replace("-", ""))
    assert struct.unpack_from("<Q", out.raw, 288) == (8 * GIB,)
    assert struct.unpack_from("<i", out.raw, sm_count_at) == (108,)
    assert struct.unpack_from("<ii", out.raw, 360) == (8, 0)
    assert out.raw[size:] == b"\xff" * (1040 - size)


def test_conversations_from_many_threads(cuda):
    script = f"""
import ctypes, sys, threading
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_fake_cuda import Cuda, CONTEXT, Path
cuda = Cuda(Path({cuda.lib._name!r}))
def work():
    for _ in range(2000):
        assert cuda.free(cuda.malloc(3 << 20)) == 0
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
assert cuda.usage()[0] == CONTEXT, cuda.usage()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


# ---- what a process publishes ----

HEADER = struct.Struct("<8sIIQQQ")
ENTRY = struct.Struct("<64sQQ")


def read_usage(path: Path):
    data = path.read_bytes()
    assert len(data) == HEADER.size + 16 * ENTRY.size
    magic, pid, devices, ticks, start, end = HEADER.unpack_from(data)
    assert magic == b"GPUMEM01"
    entries = {}
    for index in range(devices):
        uuid, used, peak = ENTRY.unpack_from(data, HEADER.size + index * ENTRY.size)
        entries[uuid.rstrip(b"\0").decode()] = (used, peak)
    return {"pid": pid, "ticks": ticks, "start": start, "end": end, "devices": entries}


def write_usage(node: Path, pid: int, ticks: int, entries, start=1_700_000_000_000_000, end=0):
    data = HEADER.pack(b"GPUMEM01", pid, len(entries), ticks, start, end)
    data += b"".join(ENTRY.pack(uuid.encode(), used, peak) for uuid, (used, peak) in entries.items())
    (node / "procs" / f"{pid}-{ticks}").write_bytes(data.ljust(HEADER.size + 16 * ENTRY.size, b"\0"))


def start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])


@pytest.fixture
def node(tmp_path):
    folder = tmp_path / "node"
    (folder / "procs").mkdir(parents=True)
    (folder / "procs").chmod(0o1777)
    devices = [
        {"index": i, "uuid": uuid, "name": "NVIDIA A100 80GB PCIe", "memory_bytes": 80 * GIB, "minor": i + 2}
        for i, uuid in enumerate(UUIDS)
    ]
    (folder / "devices.json").write_text(json.dumps(devices, indent=1))
    return folder


def test_use_is_published_from_the_first_touch_on(cuda, node):
    assert cuda.lib.gpumem_publish(str(node).encode()) == 0
    assert list((node / "procs").iterdir()) == []
    address = cuda.malloc(GIB)
    cuda.free(address)
    (path,) = (node / "procs").iterdir()
    assert path.name == f"{os.getpid()}-{start_ticks(os.getpid())}"
    assert path.stat().st_mode & 0o777 == 0o644
    usage = read_usage(path)
    assert (usage["pid"], usage["end"]) == (os.getpid(), 0)
    assert abs(usage["start"] / 1e6 - time.time()) < 5
    assert usage["devices"] == {UUIDS[0]: (CONTEXT, CONTEXT + GIB)}


def test_publishing_needs_a_node(cuda, tmp_path):
    assert cuda.lib.gpumem_publish(str(tmp_path).encode()) != 0


def test_a_link_laid_in_the_way_is_not_followed(cuda, node, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (node / "procs" / f"{os.getpid()}-{start_ticks(os.getpid())}").symlink_to(victim)
    cuda.lib.gpumem_publish(str(node).encode())
    assert cuda.malloc(MIB)
    assert victim.read_bytes() == b"mine"


def in_child(function) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            function()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def test_forked_children_publish_only_their_own_use(cuda, node):
    cuda.lib.gpumem_publish(str(node).encode())
    cuda.malloc(GIB)

    def uses_nothing():
        assert len(list((node / "procs").iterdir())) == 1

    def uses_some():
        cuda.malloc(2 * MIB)
        assert cuda.usage() == (CONTEXT + 2 * MIB, CONTEXT + 2 * MIB)

    in_child(uses_nothing)
    in_child(uses_some)
    usages = {u["pid"]: u["devices"][UUIDS[0]] for u in map(read_usage, (node / "procs").iterdir())}
    assert usages.pop(os.getpid()) == (CONTEXT + GIB, CONTEXT + GIB)
    assert list(usages.values()) == [(CONTEXT + 2 * MIB, CONTEXT + 2 * MIB)]


def test_processes_share_the_memory_of_a_node(cuda, node):
    write_usage(node, os.getppid(), start_ticks(os.getppid()), {UUIDS[0]: (3 * GIB, 3 * GIB)})
    write_usage(node, 999_999_999, 1, {UUIDS[0]: (4 * GIB, 4 * GIB)})  # has ended
    write_usage(node, os.getppid(), 12345, {UUIDS[0]: (4 * GIB, 4 * GIB)})  # an older process of that number
    (node / "procs" / "1-1").write_bytes(b"rubbish")
    cuda.lib.gpumem_publish(str(node).encode())
    assert cuda.free_memory() == 5 * GIB - CONTEXT
    assert cuda.malloc(5 * GIB) == 0
    assert cuda.malloc(4 * GIB)


def test_the_end_is_written_at_exit(library, node):
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_fake_cuda import Cuda, Path
cuda = Cuda(Path({str(library)!r})); cuda.lib.gpumem_publish({str(node).encode()!r}); cuda.malloc(1 << 30)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
    usage = read_usage(*(node / "procs").iterdir())
    assert usage["end"] >= usage["start"] > 0
    assert usage["devices"] == {UUIDS[0]: (0, CONTEXT + GIB)}


# ---- the stand-in NVML, through the real client library ----


@pytest.fixture
def nvml(node, monkeypatch):
    monkeypatch.setenv("GPUMEM_FAKE_NODE", str(node))
    ctypes.CDLL(str(LIB / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)  # found by its SONAME from now on
    pynvml.nvmlInit()
    yield pynvml
    monkeypatch.delenv("GPUMEM_FAKE_NVML_FAULT", raising=False)
    pynvml.nvmlShutdown()


def test_devices_of_a_node(nvml):
    assert nvml.nvmlDeviceGetCount() == 2
    handle = nvml.nvmlDeviceGetHandleByUUID(UUIDS[1])
    assert nvml.nvmlDeviceGetUUID(handle) == UUIDS[1]
    assert nvml.nvmlDeviceGetName(handle) == "NVIDIA A100 80GB PCIe"
    assert (nvml.nvmlDeviceGetIndex(handle), nvml.nvmlDeviceGetMinorNumber(handle)) == (1, 3)
    assert nvml.nvmlDeviceGetPciInfo(handle).busId == "00000000:02:00.0"
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByPciBusId("00000000:02:00.0")) == UUIDS[1]
    assert nvml.nvmlSystemGetDriverVersion()
    for wrong in (
        lambda: nvml.nvmlDeviceGetHandleByIndex(2),
        lambda: nvml.nvmlDeviceGetHandleByUUID("GPU-0"),
        lambda: nvml.nvmlDeviceGetMigMode(handle),
    ):
        with pytest.raises(
            (nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotFound, nvml.NVMLError_NotSupported)
        ):
            wrong()


def test_running_processes_and_memory(nvml, node):
    me = os.getpid()
    write_usage(node, me, start_ticks(me), {UUIDS[0]: (2 * GIB, 3 * GIB), UUIDS[1]: (0, 0)})
    write_usage(node, 999_999_999, 1, {UUIDS[0]: (GIB, GIB)})
    first, second = map(nvml.nvmlDeviceGetHandleByIndex, range(2))
    for function in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetComputeRunningProcesses_v2):
        assert [(p.pid, p.usedGpuMemory) for p in function(first)] == [(me, 2 * GIB)]
        assert function(second) == []
    assert nvml.nvmlDeviceGetGraphicsRunningProcesses(first) == []
    for version in (None, nvml.nvmlMemory_v2):
        memory = nvml.nvmlDeviceGetMemoryInfo(first, version)
        assert (memory.total, memory.used, memory.free) == (80 * GIB, 2 * GIB, 78 * GIB)


def test_accounting(nvml, node):
    me = os.getpid()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetAccountingMode(handle) == 0
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetAccountingPids(handle)
    nvml.nvmlDeviceSetAccountingMode(handle, 1)
    assert nvml.nvmlDeviceGetAccountingMode(handle) == 1
    assert nvml.nvmlDeviceGetAccountingPids(handle) == []
    start = 1_700_000_000_000_000
    write_usage(node, 999_999_998, 1, {UUIDS[0]: (0, 5 * GIB)}, start, start + 2_500_000)
    write_usage(node, 999_999_999, 1, {UUIDS[0]: (GIB, 6 * GIB)}, start + 1)
    write_usage(node, me, start_ticks(me), {UUIDS[0]: (GIB, 7 * GIB)}, start + 2)
    write_usage(node, 5, 5, {UUIDS[1]: (GIB, GIB)})
    assert nvml.nvmlDeviceGetAccountingPids(handle) == [999_999_998, 999_999_999, me]
    found = {
        pid: nvml.nvmlDeviceGetAccountingStats(handle, pid)
        for pid in nvml.nvmlDeviceGetAccountingPids(handle)
    }
    told = {p: (s.maxMemoryUsage, s.isRunning, s.startTime - start, s.time) for p, s in found.items()}
    assert told == {
        999_999_998: (5 * GIB, 0, 0, 2500),
        999_999_999: (6 * GIB, 0, 1, 0),
        me: (7 * GIB, 1, 2, 0),
    }
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetAccountingStats(handle, 4)
    assert nvml.nvmlDeviceGetAccountingBufferSize(handle) >= 1000


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_accounting_is_for_administrators(nvml, node):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    for folder in (node, *node.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o055)
    (node / "accounting").write_text("0\n")

    def as_nobody():
        os.setuid(65534)
        assert nvml.nvmlDeviceGetAccountingMode(handle) == 0
        with pytest.raises(nvml.NVMLError_NoPermission):
            nvml.nvmlDeviceSetAccountingMode(handle, 1)

    in_child(as_nobody)


def test_faults(nvml, monkeypatch):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    monkeypatch.setenv("GPUMEM_FAKE_NVML_FAULT", "gpu_lost")
    assert nvml.nvmlDeviceGetCount() == 2
    for call in (
        nvml.nvmlDeviceGetMemoryInfo,
        nvml.nvmlDeviceGetComputeRunningProcesses,
        nvml.nvmlDeviceGetUUID,
    ):
        with pytest.raises(nvml.NVMLError_GpuIsLost):
            call(handle)
    with pytest.raises(nvml.NVMLError_GpuIsLost):
        nvml.nvmlDeviceGetHandleByIndex(0)
    monkeypatch.setenv("GPUMEM_FAKE_NVML_FAULT", "uninitialized")
    with pytest.raises(nvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetCount()


# ---- under PyTorch ----

# What PyTorch asks for and is not there: calls for several GPUs and for files, which no estimate follows.
LEFT_OUT = re.compile(r"nvshmem|cuFile")
TORCH = importlib.util.find_spec("torch")
needs_torch = pytest.mark.skipif(TORCH is None, reason="PyTorch is not installed")


@needs_torch
def test_nothing_that_pytorch_needs_is_left_to_a_placeholder():
    from estimator.tracer import elf, facades

    folder = str(Path(TORCH.origin).parent)
    exports = elf.read_library(str(LIB / "libgpumem_cuda.so"), exports=True).exports
    missing = facades.placeholders(facades.libraries_of(folder), exports)
    names = {name for symbols in missing.values() for name in symbols if not name.startswith("gpumem_facade")}
    assert {name for name in names if not LEFT_OUT.match(name)} == set()


GPUS = {
    "H100": ("NVIDIA H100", [9, 0], 132),
    "A100": ("NVIDIA A100", [8, 0], 108),
    "B200": ("NVIDIA B200", [10, 0], 148),
}
NO_CUDNN, BROKEN_CUDNN = ("", 0), (__file__, 92400)  # a library that cannot be loaded
RUN = """
import json, os, sys
sys.path.insert(0, {repository!r})
from estimator.tracer import device, facades
folder = {torch_folder!r}
stand_ins = facades.Facades({library!r})
stand_ins.load_for_torch(folder)
fake = device.FakeDevice(stand_ins.device)
gpus = {gpus!r}
devices = [{{"name": n, "uuid": u, "memory_bytes": 80 << 30, "context_bytes": 400 << 20, "compute_capability": c,
             "sm_count": s, "index": i}} for i, ((n, c, s), u) in enumerate(zip(gpus, {uuids!r}))]
if {cudnn}: device.cudnn_of = lambda folder: {cudnn}
fake.configure({{"enforce_limit": True, "devices": devices, "node_dir": None}}, folder)
import torch, torch.nn.functional as F
report = {{}}
def done():
    report["unknown"], report["invented"] = fake.unknown_calls(), fake.invented()
    print(json.dumps(report)); sys.stdout.flush(); os._exit(0)
"""


# A linear layer: its tensors to the byte, and one cuBLAS workspace for each thread that multiplies.
LINEAR = """
layer, x = torch.nn.Linear(1024, 1024, device="cuda"), torch.empty(64, 1024, device="cuda")
before = torch.cuda.memory_allocated()
y = layer(x)
forward = torch.cuda.memory_allocated()
y.sum().backward()
report["linear"] = [before, forward - before, torch.cuda.memory_allocated() - forward]
report["workspaces"] = sorted({e.size for e in fake.events() if e.kind == device.BLAS_WORKSPACE})
del layer, x, y
"""


def check_linear(report, workspace: int):
    weights, activation = 1024 * 1024 * 4 + 4096, 64 * 1024 * 4
    before, forward, backward = report["linear"]
    assert before == weights + activation
    assert forward - activation - workspace in (0, MIB)  # cuBLASLt has its own, from the allocator too
    assert backward == weights + workspace  # gradients, and the workspace of the other thread
    assert workspace in report["workspaces"]


def run_torch(body: str, first: str = "H100", cudnn: tuple[str, int] | None = None, **environment: str):
    script = RUN.format(
        cudnn=cudnn,
        repository=str(REPOSITORY),
        torch_folder=str(Path(TORCH.origin).parent),
        library=str(LIB / "libgpumem_cuda.so"),
        uuids=UUIDS,
        gpus=[GPUS[first], GPUS["H100" if first == "A100" else "A100"]],
    )
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script + body + "\ndone()"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


@needs_torch
def test_training_takes_the_bytes_that_hardware_takes():
    report = run_torch(
        """
report["properties"] = [(p.name, p.major, p.multi_processor_count, p.total_memory)
                        for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))]
def step_and_measure(step):
    torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
    for _ in range(3): step()
    return [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
import torchvision
torch.backends.cudnn.allow_tf32 = False  # no tensor cores, no workspaces
def resnet():
    model = torchvision.models.resnet50().cuda()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, target = torch.empty(64, 3, 224, 224, device="cuda"), torch.zeros(64, dtype=torch.long, device="cuda")
    def step():
        F.cross_entropy(model(x), target).backward(); sgd.step(); sgd.zero_grad()
    report["resnet50"] = step_and_measure(step)
    scaler = torch.amp.GradScaler("cuda")
    def mixed():
        with torch.autocast("cuda", dtype=torch.float16): loss = F.cross_entropy(model(x), target)
        scaler.scale(loss).backward(); scaler.step(sgd); scaler.update(); sgd.zero_grad()
    report["resnet50 amp"] = step_and_measure(mixed)
resnet()
torch._C._cuda_clearCublasWorkspaces()
"""
        + LINEAR,
        cudnn=NO_CUDNN,
    )
    assert report["unknown"] == []
    assert report["invented"] == ["cudnn convolution workspace"]
    assert report["properties"] == [["NVIDIA H100", 9, 132, 80 * GIB], ["NVIDIA A100", 8, 108, 80 * GIB]]
    check_linear(report, workspace=33_554_432)  # PyTorch's own choice on 9.0
    assert report["resnet50"][0] == pytest.approx(5589.8 * MIB, rel=1e-4)
    assert report["resnet50"][1] == 6312 * MIB
    assert report["resnet50 amp"][0] < 0.6 * report["resnet50"][0]


@needs_torch
@pytest.mark.parametrize("cudnn", [NO_CUDNN, BROKEN_CUDNN], ids=["none", "broken"])
def test_without_a_cudnn_workspaces_of_convolutions_are_copies_with_the_channels_last(cudnn):
    """Image and result are 4 x 64 x 64 x 64 floats; the filter 64 x 64 x 3 x 3."""
    report = run_torch(
        """
def workspaces(x, kernel=3, groups=1, outputs=64):
    w = torch.empty(outputs, x.shape[1] // groups, kernel, kernel, device="cuda", dtype=x.dtype)
    if x.stride(1) == 1: w = w.contiguous(memory_format=torch.channels_last)
    options = ([1, 1], [kernel // 2] * 2, [1, 1], False, [0, 0], groups)
    def extra(call):
        torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats()
        kept = call()
        return torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    y = torch.ops.aten.convolution(x, w, None, *options)
    def backward(*mask):
        return torch.ops.aten.convolution_backward(y, x, w, None, *options, list(mask))
    return [extra(lambda: torch.ops.aten.convolution(x, w, None, *options)),
            extra(lambda: backward(True, False, False)), extra(lambda: backward(False, True, False))]
def images(channels, edge, dtype=torch.float32):
    return torch.empty(4, channels, edge, edge, device="cuda", dtype=dtype)
report["large"] = workspaces(images(64, 64))
report["half"] = workspaces(images(64, 64, torch.float16))
report["middle"] = workspaces(images(64, 32))
report["small"] = workspaces(images(64, 16))
report["point"] = workspaces(images(64, 64), kernel=1)
report["groups"] = workspaces(images(64, 64), groups=2)
report["colours"] = workspaces(images(3, 64))
report["last"] = workspaces(images(64, 64).contiguous(memory_format=torch.channels_last))
report["double"] = workspaces(images(64, 64, torch.float64))
report["largest"] = fake.largest_convolution()
torch.backends.cudnn.allow_tf32 = False
report["no tf32"] = workspaces(images(64, 64))
""",
        first="A100",
        cudnn=cudnn,
    )
    image, filters = 4 * 64 * 64 * 64 * 4, 64 * 64 * 3 * 3 * 4
    assert report["large"] == [2 * image + filters, 0, 2 * image]
    assert report["half"] == [size // 2 for size in report["large"]]
    assert report["middle"] == [0, 0, 2 * image // 4]
    none = [0, 0, 0]
    for case in ("small", "point", "groups", "colours", "last", "double", "no tf32"):
        assert report[case] == none, case
    assert report["largest"] == 2 * (2 * image + filters)  # in double precision


@needs_torch
@pytest.mark.parametrize(
    ("size", "copies"),
    [(1024, 1), (1016, 1), (1009, 8)],  # 8 x 127 has small primes, 1009 is one
)
def test_a_fourier_transform_has_the_most_that_its_documentation_allows(size, copies):
    batch = 4096
    report = run_torch(
        f"""
x = torch.empty({batch}, {size}, dtype=torch.complex64, device="cuda")
before = torch.cuda.memory_allocated(); torch.cuda.reset_peak_memory_stats()
y = torch.fft.fft(x)
report["extra"] = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
"""
    )
    assert report["extra"] == pytest.approx(copies * batch * size * 8, abs=2 * MIB)
    assert report["invented"] == ["cufft workspace"]


@needs_torch
def test_recurrent_networks_keep_what_was_published():
    """github.com/pytorch/pytorch/issues/2895: sizes of the reserve space; length times batch follows from them."""
    report = run_torch(
        """
def kept(kind):
    net, x = kind(123, 320, 4).cuda(), torch.empty(1000, 25, 123, device="cuda")
    before = torch.cuda.memory_allocated()
    y, _ = net(x)
    return torch.cuda.memory_allocated() - before - y.numel() * 4
report["lstm"], report["gru"] = kept(torch.nn.LSTM), kept(torch.nn.GRU)
"""
    )
    assert report["lstm"] == pytest.approx(736_000_000, rel=0.005)
    assert report["gru"] == pytest.approx(864_000_000, rel=0.005)


@needs_torch
def test_attention_recurrence_and_everything_that_answers_sizes():
    report = run_torch(
        LINEAR
        + """
from torch.nn.attention import SDPBackend, sdpa_kernel
for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH,
                SDPBackend.CUDNN_ATTENTION):
    torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
    with sdpa_kernel(backend):
        q, k, v = (torch.empty(2, 8, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                   for _ in range(3))
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    report[backend.name] = torch.cuda.max_memory_allocated()
report["rnn"] = []
for kind, options in ((torch.nn.LSTM, {}), (torch.nn.LSTM, {"proj_size": 16}), (torch.nn.GRU, {}), (torch.nn.RNN, {}),
                      (torch.nn.GRU, {"bidirectional": True, "dropout": 0.1})):
    net = kind(64, 48, 3, **options).cuda()
    net(torch.empty(10, 4, 64, device="cuda"))[0].sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    flat = net._flat_weights[0].untyped_storage().nbytes()
    report["rnn"].append(flat == sum(p.numel() * 4 for p in net.parameters()))
square = torch.empty(3, 32, 32, device="cuda")
for name in ("svd", "inv", "cholesky", "qr", "eigh", "lu_factor", "eigvals"):
    getattr(torch.linalg, name)(square); getattr(torch.linalg, name)(square[0])
torch.fft.rfft(square)
torch.sparse.mm(torch.eye(10, device="cuda").to_sparse(), torch.empty(10, 4, device="cuda"))
torch.special.i1(square)  # compiled at run time
stream = torch.cuda.Stream()
with torch.cuda.stream(stream): square + 1
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record(); end.record()
assert start.elapsed_time(end) > 0
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): square * 2
graph.replay()
torch.ones(1000).pin_memory().to("cuda", non_blocking=True)
with torch.profiler.profile(): square + 1
report["oom"] = False
try: torch.empty(81 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError: report["oom"] = True
""",
        first="A100",
    )
    assert report["unknown"] == []
    check_linear(report, workspace=8_519_680)  # PyTorch's own choice on 8.0
    assert report["MATH"] > 2 * report["FLASH_ATTENTION"]
    assert report["rnn"] == [True] * 5
    assert report["oom"] is True
    assert {"cudnn recurrent workspace", "cufft workspace", "cusolver workspace"} <= set(report["invented"])


@needs_torch
@pytest.mark.parametrize("backend", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_other_ways_to_allocate(backend):
    report = run_torch(
        """
x = torch.empty(100 << 20, device="cuda")
report["allocated"] = torch.cuda.memory_allocated()
report["used"] = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
del x
torch.cuda.empty_cache()
report["after"] = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
""",
        PYTORCH_CUDA_ALLOC_CONF=backend,
    )
    assert report["unknown"] == []
    assert report["allocated"] == 400 * MIB
    assert (report["used"], report["after"]) == (800 * MIB, 400 * MIB)
