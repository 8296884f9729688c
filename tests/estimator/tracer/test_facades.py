"""Which libraries are stood in for, what they hold, and that programs which want more get it."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "estimator" / "fake_cuda" / "lib" / "libgpumem_cuda.so"
TORCH = os.path.dirname(importlib.util.find_spec("torch").origin)


def test_every_cuda_library_of_the_installed_torch_gets_a_facade(facades):
    found = facades.placeholders(facades.libraries_of(TORCH), ())
    families = {soname.split(".")[0] for soname in found}
    assert families >= {"libcudart", "libcublas", "libcublasLt", "libcudnn", "libnccl", "libcusolver"}
    assert "cudaMalloc" in next(symbols for name, symbols in found.items() if name.startswith("libcudart"))
    assert "ncclCommInitRank" in found["libnccl.so.2"]


def test_what_the_device_implements_is_no_placeholder(facades):
    found = facades.placeholders(facades.libraries_of(TORCH), ("cudaMalloc",))
    assert not any("cudaMalloc" in symbols for symbols in found.values())


def test_a_torch_without_cuda_is_named(facades, tmp_path):
    (tmp_path / "lib").mkdir()
    with pytest.raises(facades.NoCudaTorch, match="without CUDA"):
        facades.libraries_of(str(tmp_path))


def build(folder: Path, name: str, source: str, *options: str) -> Path:
    """A shared library with that SONAME."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-x",
        "c",
        "-",
        "-x",
        "none",
        f"-Wl,-soname,{name}",
        "-o",
        path,
        *options,
    ]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def build_against(folder: Path, name: str, source: str, cuda: dict[str, list[str]], *options: str) -> Path:
    """A library that is linked to CUDA libraries (SONAME -> functions) of which there is no trace any more."""
    stubs = []
    for soname, functions in cuda.items():
        script = folder / f"{soname}.map"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f"{soname} {{ global: {' '.join(f'{one};' for one in functions)} }};")
        bodies = "".join(f"int {one}(void) {{ return 77; }}\n" for one in functions)
        stubs.append(build(folder / "stubs", soname, bodies, f"-Wl,--version-script={script}"))
    made = build(folder, name, source, *map(str, stubs), *options)
    for stub in stubs:
        stub.unlink()
    return made


def run_with_facades(torch: Path, program: str) -> str:
    """What `program` prints where `f` are the facades for that torch and `device` the fake device."""
    setup = f"""
import ctypes, importlib.util, sys
spec = importlib.util.spec_from_file_location(
    "_gpumem_tracer", {str(ROOT / "estimator/tracer/__init__.py")!r},
    submodule_search_locations=[{str(ROOT / "estimator/tracer")!r}])
sys.modules["_gpumem_tracer"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from _gpumem_tracer import device, facades
f = facades.Facades({str(LIBRARY)!r})
f.load_for_torch({str(torch)!r})
f.watch()
device = device.FakeDevice(f.device)
f.device.gpumem_add_device(b"NVIDIA A100", b"GPU-0", 1 << 36, 0, 8, 0, 108, 0)
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", setup + program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


USES_CUDA_14 = """
int cudaMalloc(void **, unsigned long); int cudaThatIsNew(int); int cublasThatIsNew(void);
int allocate(void) { void *p = 0; int status = cudaMalloc(&p, 1 << 20); return status * 1000 + (p != 0); }
int call_new(void) { return cudaThatIsNew(3) + cublasThatIsNew(); }
"""


@pytest.fixture
def torch_to_come(tmp_path):
    """The folder of a torch of the future: other SONAMEs, functions that nobody has heard of."""
    wanted = {"libcudart.so.14": ["cudaMalloc", "cudaThatIsNew"], "libcublas.so.14": ["cublasThatIsNew"]}
    build_against(tmp_path / "torch" / "lib", "libtorch_cuda.so", USES_CUDA_14, wanted)
    return tmp_path / "torch"


def test_a_torch_of_the_future_runs_and_its_unknown_calls_are_named(torch_to_come):
    said = run_with_facades(
        torch_to_come,
        f"""
torch = ctypes.CDLL({str(torch_to_come / "lib" / "libtorch_cuda.so")!r})
print(torch.allocate(), torch.call_new(), device.unknown_calls())
""",
    )
    assert said == "1 0 ['cublasThatIsNew', 'cudaThatIsNew']\n"


def test_an_extension_gets_what_it_wants_beyond_torch(torch_to_come, tmp_path):
    """Another symbol of a library that has a facade, another library, and the needs of a library beside it."""
    source = """
int cudaMalloc(void **, unsigned long); int cudaOther(void); int cufftNew(void);
int more(void) { void *p = 0; return cudaMalloc(&p, 4096) + cudaOther() + cufftNew() + (p == 0); }
"""
    wanted = {"libcudart.so.14": ["cudaMalloc", "cudaOther"], "libcufft.so.13": ["cufftNew"]}
    inner = build_against(tmp_path / "ext", "libinner.so", source, wanted)
    outer = build(tmp_path / "ext", "libouter.so", "int more(void); int f(void) { return more(); }", str(inner),
                  "-Wl,-rpath,$ORIGIN")  # fmt: skip
    program = f"print(ctypes.CDLL({str(outer)!r}).f(), device.unknown_calls())"
    assert run_with_facades(torch_to_come, program) == "0 ['cudaOther', 'cufftNew']\n"


def test_a_cuda_library_that_is_opened_by_name_or_path_is_ours(torch_to_come, tmp_path):
    real = build(tmp_path / "cuda", "libcublas.so.12", "int cublasCreate_v2(void) { return 77; }")
    program = f"""
for name in ("libcuda.so.1", "libcuda.so", "libcudart.so", {str(real)!r}):
    library = ctypes.CDLL(name)
    print(library.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1)), hasattr(library, "nothing"))
handle = ctypes.c_void_p()
print(library.cublasCreate_v2(ctypes.byref(handle)), any({str(real)!r} in line for line in open("/proc/self/maps")))
"""
    assert run_with_facades(torch_to_come, program) == "0 False\n" * 4 + "0 False\n"


def test_a_runtime_that_is_linked_statically_fails_and_is_named(torch_to_come, tmp_path):
    archive = next(Path(TORCH).parent.glob("nvidia/*/lib/libcudart_static.a"), None)
    if archive is None:
        pytest.skip("no static CUDA runtime beside this torch")
    source = """
int cudaMalloc(void **, unsigned long);
int allocate(void) { void *p = 0; return cudaMalloc(&p, 1 << 20); }
"""
    library = build(tmp_path, "libstatic.so", source, str(archive), "-ldl", "-lpthread", "-lrt")
    program = f"print(ctypes.CDLL({str(library)!r}).allocate(), *device.unknown_calls())"
    said = run_with_facades(torch_to_come, program)
    assert said == "801 cuGetExportTable (of a library with a CUDA runtime of its own)\n"


def test_a_driver_function_that_is_not_implemented_is_there_says_so_and_is_named(torch_to_come):
    program = """
driver = ctypes.CDLL("libcuda.so.1")
print(driver.cuIpcOpenMemHandle(None, None, 0), driver.cuMemPoolCreate(None, None), device.unknown_calls())
found = ctypes.c_void_p()
print(driver.cuGetProcAddress(b"cuMemPoolCreate", ctypes.byref(found), 12000, 0), found.value)
"""
    assert run_with_facades(torch_to_come, program) == (
        "801 801 ['cuIpcOpenMemHandle', 'cuMemPoolCreate']\n500 None\n"
    )


def test_the_whole_public_driver_api_is_there(facades):
    header = next(Path(TORCH).parent.glob("nvidia/*/include/cuda.h"), None)
    if header is None:
        pytest.skip("no header of the driver beside this torch")
    public = set(re.findall(r"CUresult\s+CUDAAPI\s+(cu\w+)\s*\(", header.read_text()))
    implemented = (
        importlib.import_module("_gpumem_tracer.elf").read_library(str(LIBRARY), exports=True).exports
    )
    given = {*implemented, *importlib.import_module("_gpumem_tracer.driver_api").NOT_SUPPORTED}
    assert len(public) > 300
    assert not {name for name in public - given if not name.endswith("_ptsz")}
