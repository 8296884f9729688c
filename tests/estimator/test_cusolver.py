"""Workspaces of cuSOLVER: what others have published of them, and what PyTorch then allocates."""

from __future__ import annotations

import ctypes

import pytest

from tests.estimator.test_fake_cuda import LIB, needs_torch, run_torch

MIB = 2**20
NULL = ctypes.c_void_p()
SINGLE, DOUBLE, COMPLEX = 0, 1, 5  # cudaDataType: float, double, double complex


def lwork(routine: str, *arguments: object) -> int:
    """What `routine`_bufferSize answers, in elements; `None` stands for the answer, the handle is left out."""
    answer = ctypes.c_int()
    library = ctypes.CDLL(str(LIB / "libgpumem_cuda.so"))
    given = [ctypes.byref(answer) if argument is None else argument for argument in arguments]
    assert getattr(library, f"cusolverDn{routine}_bufferSize")(NULL, *given) == 0
    return answer.value


def syevd(routine: str, n: int) -> int:
    return lwork(routine, 1, 0, n, NULL, n, NULL, None)


def syevj(routine: str, n: int, *batch: int) -> int:
    return lwork(routine, 1, 0, n, NULL, n, NULL, None, NULL, *batch)


def gesvdj(m: int, n: int) -> int:
    return lwork("Sgesvdj", 1, 1, m, n, NULL, m, NULL, NULL, m, NULL, n, None, NULL)


def eigen_bytes(routine: str, n: int, kind: int, *batch: int) -> int:
    answer, on_host = ctypes.c_size_t(), ctypes.c_size_t(1)
    library = ctypes.CDLL(str(LIB / "libgpumem_cuda.so"))
    sizes = [ctypes.c_int64(size) for size in (n, n, *batch)]
    pointers = (ctypes.byref(answer), ctypes.byref(on_host))
    query = getattr(library, f"cusolverDn{routine}_bufferSize")
    assert (
        query(NULL, NULL, 1, 0, sizes[0], kind, NULL, sizes[1], kind, NULL, kind, *pointers, *sizes[2:]) == 0
    )
    assert on_host.value == 0
    return answer.value


def test_eigenvalues_by_divide_and_conquer_take_what_is_published():
    assert syevd("Dsyevd", 10_000) == 2_410_452_488 // 8  # JuliaGPU/CUDA.jl#2427
    assert syevd("Ssyevd", 15_000) == 2_707_806_276 // 4  # JuliaGPU/CUDA.jl#2413
    largest = 26_733  # 26,732 in jax-ml/jax#23413
    assert syevd("Dsyevd", largest) < 2**31 - 1 == syevd("Dsyevd", largest + 1)
    n = 9152
    assert syevd("Zheevd", n) == pytest.approx(4 * n * n, rel=0.005)  # an A100, n from 3328 to 18304
    assert eigen_bytes("Xsyevd", 10_000, DOUBLE) == 2_410_452_488
    assert eigen_bytes("Xsyevd", n, COMPLEX) == 16 * syevd("Zheevd", n)


@pytest.mark.parametrize(
    ("n", "kind", "published", "within"),
    [
        (3, SINGLE, 270e3, 0.03),  # mujocolab/mjlab#754: 16,384 in 4,452 MB
        (6, SINGLE, 268e3, 0.02),  # 4,096 in 1,099 MB
        (54, COMPLEX, 1.85e6, 0.3),  # too low: what it is made of is not known
    ],
)
def test_batches_of_eigenvalues_take_at_most_what_is_published(n, kind, published, within):
    each = eigen_bytes("XsyevBatched", n, kind, 1000) / 1000
    assert (1 - within) * published < each < published


def test_eigenvalues_by_jacobi_take_what_is_published():
    assert syevj("Ssyevj", 8) == syevj("Dsyevj", 8) == 2125  # jax-ml/jax, export_back_compat_test_data
    published = {1: 2077, 2: 3126, 4: 5224, 64: 68_164, 256: 269_572}  # cupy/cupy#7261
    assert {batch: syevj("CheevjBatched", 4, batch) for batch in published} == published


def test_singular_values_by_jacobi_take_what_is_published():
    assert gesvdj(20_000, 20_000) == 3_211_456_640 // 4  # JuliaGPU/CUDA.jl#1880
    assert gesvdj(20_500, 20_000) == gesvdj(20_000, 20_500) == 4_811_456_640 // 4  # JuliaGPU/CUDA.jl#598


def test_factors_of_qr_take_what_is_published():
    small = (3, 3, NULL, 3)
    assert lwork("Sgeqrf", *small, None) == pytest.approx(196_608, rel=0.001)
    assert lwork("Sorgqr", 3, *small, NULL, None) == pytest.approx(33_056, rel=0.005)
    assert lwork("Sormqr", 0, 1, 5000, 8, 4000, NULL, 5000, NULL, NULL, 5000, None) == 2 * 5000 * 4000


def test_a_negative_size_takes_no_more_than_none():
    assert syevd("Dsyevd", -5) == syevd("Dsyevd", 0)


@needs_torch
def test_pytorch_allocates_the_workspaces_and_they_are_told():
    report = run_torch("""
def extra(call):
    torch.cuda.reset_peak_memory_stats()
    before, events = torch.cuda.memory_allocated(), len(fake.events())
    call()
    told = [e.size for e in fake.events()[events:] if e.kind == device.SOLVER_WORKSPACE]
    return [torch.cuda.max_memory_allocated() - before, max(told, default=0)]
n = 2048
a = torch.empty(n, n, device="cuda")
for name, arguments in (("eigh", ()), ("svd", ()), ("qr", ()), ("lstsq", (a,)), ("cholesky", ()), ("inv", ())):
    report[name] = extra(lambda: getattr(torch.linalg, name)(a, *arguments))
""")
    assert report["unknown"] == []
    assert report["invented"] == ["cusolver workspace", "cusolver workspace of unknown size"]
    matrix = 2048 * 2048 * 4
    least = {"eigh": 3 * matrix, "svd": 2 * matrix, "qr": 1 * MIB, "lstsq": 2 * matrix}
    for name, workspace in least.items():
        most, told = report[name]
        assert workspace <= told < workspace + 8 * MIB
        assert most >= told + matrix  # the result is held beside it
    assert report["cholesky"][1] == report["inv"][1] == 0
