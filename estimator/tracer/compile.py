"""`torch.compile` and Triton without machine code: kernels that would do nothing need not be compiled.

Inductor runs as ever (its graph passes, its fusion, its wrapper code with every `empty_strided_cuda`, reuse
and `del`); only the last stage is answered here: Triton is asked for a kernel and gives one that returns at
once. So the buffers are the real ones, and neither ptxas, nor a C compiler, nor Triton's driver is needed.

Where Inductor chooses by timing, every candidate takes the same time, so the first one wins, always; the
memory that timing takes (copies of arguments, a buffer to flush the L2 cache) is taken as ever. A choice
that changes buffers (padding of matrix products, GEMM templates), and a graph that could not be compiled and
runs eagerly, are told by `assumptions`.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import inspect
import os
import re
import sys
from typing import Any, Callable, Dict, List, Set, Tuple

from .torch_import import when_module_loads

MILLISECONDS = 1.0  # what every timing reads
SHARED_MEMORY = {7: 98304, 8: 101376, 9: 232448, 10: 232448, 12: 101376}  # bytes a block may ask for, by CC
SHARED_MEMORY_OF = {(7, 5): 65536, (8, 0): 166912, (8, 7): 166912}  # CUDA programming guide, table of CCs

# read by Inductor when it is imported: no pool of compiling processes, nothing kept from or for other runs
ENVIRONMENT = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    "TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER": "0",
}

PADDING = "padding of matrix products by torch.compile"
EAGER = "the buffers of a graph that torch.compile could not compile"
TEMPLATES = "matrix product kernels by torch.compile (max-autotune)"
_assumed: Set[str] = set()


def assumptions() -> List[str]:
    """What may differ on hardware: chosen there by timing, here not; or not compiled."""
    return sorted(_assumed)


def without_kernels() -> None:
    """Puts the answers in the place of Triton's and Inductor's compilers, in whatever is imported of them."""
    os.environ.update(ENVIRONMENT)
    when_module_loads("triton.compiler.compiler", _answer_triton)
    when_module_loads("triton.backends", _answer_driver)
    for name in ("triton.compiler.compiler", "triton.runtime.cache", "torch._inductor.codecache"):
        when_module_loads(name, _without_fingerprints)
    when_module_loads("triton.testing", _constant_time("do_bench", "do_bench_cudagraph"))
    when_module_loads("torch._inductor.config", _configure)
    when_module_loads("torch._inductor.async_compile", _answer_inductor)
    when_module_loads("torch._inductor.compile_fx", _fall_back)
    when_module_loads("torch._inductor.runtime.benchmarking", _constant_benchmarks)
    when_module_loads("torch._inductor.fx_passes.pad_mm", _pad_products)
    when_module_loads("torch._inductor.select_algorithm", _tell_templates)
    when_module_loads("torch._subclasses.fake_tensor", _copy_to_fakes)


# --- Triton ---


def _answer_triton(module: Any) -> None:
    """`triton.compile` gives a kernel at once; everybody imports it from this module."""
    compiled: Any = type("CompiledKernel", (_SilentKernel, module.CompiledKernel), {})
    real = module.compile

    @functools.wraps(real)
    def compile(src: Any, target: Any = None, options: Any = None, *rest: Any, **more: Any) -> Any:
        if target is None:
            target = sys.modules["triton.runtime"].driver.active.get_current_target()
        if getattr(target, "backend", "cuda") != "cuda" or not hasattr(src, "fn"):
            return real(src, target, options, *rest, **more)
        return compiled(src, target, _options(module, src, target, options))

    module.compile = compile


def _options(module: Any, src: Any, target: Any, options: Any) -> Dict[str, Any]:
    """All options of a compilation with their defaults, as the back end reads them."""
    given = dict(options or {})
    try:
        own = src.parse_options() if hasattr(src, "parse_options") else {}
        return dict(vars(module.make_backend(target).parse_options(dict(given, **own))))
    except Exception:  # the defaults below do
        return given


class _SilentKernel:
    """As much of Triton's `CompiledKernel` as its launchers use; launching it does nothing."""

    def __init__(self, src: Any, target: Any, options: Dict[str, Any]) -> None:
        function = src.fn
        self.src = src
        self.name = getattr(function, "__name__", "kernel")
        about = (
            self.name,
            getattr(function, "cache_key", ""),
            src.signature,
            sorted(map(str, options.items())),
        )
        self.hash = hashlib.sha256(repr(about).encode()).hexdigest()
        fields = {
            "num_warps": 4, "num_ctas": 1, "num_stages": 3, "cluster_dims": (1, 1, 1), "tmem_size": None,
            "launch_cooperative_grid": False, "launch_pdl": False, "tensordesc_meta": None,
            **options,
            "name": self.name, "hash": self.hash, "target": target, "shared": 0,
            "global_scratch_size": 0, "global_scratch_align": 1,
            "profile_scratch_size": 0, "profile_scratch_align": 1,
        }  # fmt: skip
        self.metadata = collections.namedtuple("KernelMetadata", sorted(fields))(**fields)
        self.packed_metadata = self.metadata
        self.metadata_group: Dict[str, Any] = {}
        self.asm = {"cubin": b"", "ptx": "", "llir": "", "ttgir": "", "ttir": ""}
        self.kernel = b""
        self.module = self.function = 1
        self.n_regs, self.n_spills, self.n_max_threads = 32, 0, 1024

    def __del__(self) -> None:
        pass

    def _init_handles(self) -> None:
        pass

    def launch_metadata(self, *arguments: Any) -> None:
        return None

    def run(self, *arguments: Any, **options: Any) -> None:
        pass

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.run


def _answer_driver(module: Any) -> None:
    """Triton builds its bridge to libcuda with a C compiler; nothing of it is needed here."""
    for backend in module.backends.values():  # some versions load them from outside of sys.modules
        parts = backend.driver.__init__.__globals__
        if "CudaUtils" in parts:
            parts["CudaUtils"] = _DriverUtils


class _DriverUtils:
    """What Triton asks the CUDA driver about a device."""

    def __init__(self, *arguments: Any) -> None:
        pass

    @staticmethod
    def get_device_properties(device: int = 0) -> Dict[str, int]:
        import torch

        properties = torch.cuda.get_device_properties(device)
        major, minor = properties.major, properties.minor
        return {
            "max_shared_mem": SHARED_MEMORY_OF.get((major, minor), SHARED_MEMORY.get(major, 101376)),
            "max_num_regs": 65536,
            "multiprocessor_count": properties.multi_processor_count,
            "warpSize": 32,
            "sm_clock_rate": 1_410_000,
            "mem_clock_rate": 1_593_000,
            "mem_bus_width": 5120,
        }

    @staticmethod
    def load_binary(name: str, kernel: bytes, shared: int, device: int) -> Tuple[int, int, int, int, int]:
        return 1, 1, 32, 0, 1024

    @staticmethod
    def cuOccupancyMaxActiveClusters(*arguments: Any) -> int:
        return 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: None


def _without_fingerprints(module: Any) -> None:
    """Keys of caches that are switched off: they would hash all of Triton's and torch's files."""
    for name, key in (("triton_key", "triton"), ("torch_key", b"torch")):
        if name in vars(module):
            setattr(module, name, functools.partial(_same, key))


def _same(value: Any) -> Any:
    return value


# --- Inductor ---


def _configure(config: Any) -> None:
    """What the environment says, for versions that do not ask it."""
    for name, value in (
        ("compile_threads", 1),
        ("use_static_cuda_launcher", False),
        ("use_static_triton_launcher", False),
        ("force_disable_caches", True),
        ("fx_graph_cache", False),
        ("autotune_local_cache", False),
    ):
        if hasattr(config, name):
            setattr(config, name, value)


def _answer_inductor(module: Any) -> None:
    """Kernels for the CPU (a compiled optimizer's step, a loader's transform) need no C++ compiler either."""
    compiler = module.AsyncCompile
    for name, silent in (
        ("cpp", lambda self, source, *rest: _SilentCpuKernel(re.findall(r"[\w:]+[*]", source))),
        ("cpp_pybinding", lambda self, types, source, *rest: _SilentCpuKernel(types)),
        ("warm_pool", classmethod(lambda cls: None)),
        ("use_process_pool", classmethod(lambda cls: False)),
        ("wakeup", classmethod(lambda cls: None)),
    ):
        if hasattr(compiler, name):
            setattr(compiler, name, silent)


def _fall_back(module: Any) -> None:
    """A graph that Inductor cannot compile here runs as it is."""
    real = module.compile_fx

    @functools.wraps(real)
    def compile_fx(graph: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return real(graph, *arguments, **options)
        except Exception as error:
            if not callable(graph) or _is_a_signal(error):
                raise
            _assumed.add(EAGER)
            sys.stderr.write("gpumem: torch.compile failed, its graph runs eagerly: %r\n" % (error,))
            return graph

    module.compile_fx = compile_fx


def _is_a_signal(error: BaseException) -> bool:
    """Dynamo raises exceptions of its own to begin anew or to leave a frame alone."""
    exceptions = sys.modules["torch._dynamo.exc"]
    failure = getattr(exceptions, "BackendCompilerFailed", ())
    return isinstance(error, exceptions.TorchDynamoException) and not isinstance(error, failure)


class _SilentCpuKernel:
    """A kernel of Inductor's for the CPU: what it would write is set to zero."""

    def __init__(self, types: List[str]) -> None:
        self._written = [i for i, kind in enumerate(types) if "*" in kind and not kind.startswith("const")]

    def __call__(self, *arguments: Any) -> None:
        for i in self._written:
            if i < len(arguments) and hasattr(arguments[i], "zero_"):
                arguments[i].zero_()


# --- Dynamo ---


def _copy_to_fakes(module: Any) -> None:
    """Modules are copied for Dynamo in a mode that knows `clone` by the C function, not by ours before it."""
    import torch

    mode = module.FakeCopyMode
    real = mode.__torch_function__

    @functools.wraps(real)
    def __torch_function__(self: Any, func: Any, *arguments: Any, **options: Any) -> Any:
        if func is torch.Tensor.clone:
            func = torch._C.TensorBase.clone
        return real(self, func, *arguments, **options)

    mode.__torch_function__ = __torch_function__


# --- timing ---


def _constant_time(*names: str) -> Callable[[Any], None]:
    """The functions run as briefly as they can, for the memory that they take, and tell a constant time."""

    def change(owner: Any) -> None:
        for name in names:
            if hasattr(owner, name):
                setattr(owner, name, _timed_constant(getattr(owner, name)))

    return change


SHORTEST = {
    "warmup": 1,
    "rep": 1,
    "max_benchmark_duration": 1,
    "memory_warmup_iters": 1,
    "benchmark_iters": 1,
}


def _timed_constant(function: Any) -> Any:
    known = inspect.signature(function).parameters
    least = {name: value for name, value in SHORTEST.items() if name in known}
    if any(kind.kind is inspect.Parameter.VAR_KEYWORD for kind in known.values()):
        least = {name: SHORTEST[name] for name in ("warmup", "rep")}

    @functools.wraps(function)
    def timed(*arguments: Any, **options: Any) -> Any:
        return _constant(function(*arguments, **dict(options, **least)))

    return timed


def _constant(times: Any) -> Any:
    if isinstance(times, (list, tuple)):
        return type(times)(_constant(one) for one in times)
    return MILLISECONDS if isinstance(times, float) else times


def _constant_benchmarks(module: Any) -> None:
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            for name in ("benchmark_gpu", "benchmark_many_gpu", "benchmark_cpu"):
                if name in vars(kind):
                    setattr(kind, name, _timed_constant(vars(kind)[name]))


def _pad_products(module: Any) -> None:
    """A product of unaligned matrices is padded, which is faster on most GPUs and takes more memory."""
    remember = module.set_cached_should_pad

    @functools.wraps(remember)
    def told(*arguments: Any, **options: Any) -> Any:
        _assumed.add(PADDING)
        return remember(*arguments, **options)

    module.set_cached_should_pad = told
    for name in ("is_padded_faster", "should_pad"):  # newer versions, older ones
        decide = getattr(module, name, None)
        if decide is not None and "pad_time" in inspect.signature(decide).parameters:
            setattr(module, name, _padded(decide))


def _padded(decide: Any) -> Any:
    @functools.wraps(decide)
    def padded(key: Any, ori_time: float, pad_time: float) -> Any:
        return decide(key, 2 * MILLISECONDS, MILLISECONDS)

    return padded


def _tell_templates(module: Any) -> None:
    selector = module.AlgorithmSelectorCache
    tell = selector.__dict__["make_benchmark_fn"]
    function = getattr(tell, "__func__", tell)

    @functools.wraps(function)
    def told(*arguments: Any, **options: Any) -> Any:
        _assumed.add(TEMPLATES)
        return function(*arguments, **options)

    selector.make_benchmark_fn = type(tell)(told) if isinstance(tell, (classmethod, staticmethod)) else told
