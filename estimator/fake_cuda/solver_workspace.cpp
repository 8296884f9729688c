// cuSOLVER tells a workspace's size only on a GPU, and its documentation has no formula. What is known:
//
// routine         matrices              elements               where
// syevd           10000, double         301,306,561            JuliaGPU/CUDA.jl#2427 (2,410,452,488 bytes)
// syevd           15000, single         676,951,569            JuliaGPU/CUDA.jl#2413 (2,707,806,276 bytes)
// syevd           36, single, double    39,001                 jax-ml/jax, export_back_compat_test_data, cuda_eigh
// syevd           26,732, double        the largest < 2^31     jax-ml/jax#23413
// heevd           3328 to 18304, double 4 n^2                  jackmcarthur/lorrax, distrib_la (A100)
// XsyevBatched    3 x 3, single         67,500 for each        torchbp ("270 kB"), mujocolab/mjlab#754 (4,452 MB)
// XsyevBatched    6 x 6, single         67,000 for each        "FL Hybrid Eigendecomposition" (4,096 in 1,099 MB)
// XsyevBatched    54 x 54, Z            115,600 for each       SunnyGeneigBench (1.85 MB; RTX 5070 Ti)
// syevj           8, single, double     2,125                  jax-ml/jax, as above
// heevjBatched    4 x 4                 1,028 + 1,049 batch    cupy/cupy#7261
// gesvdj          20000 x 20000, single 802,864,160            JuliaGPU/CUDA.jl#1880 (3,211,456,640 bytes)
// gesvdj          20000 x 20500, single 1,202,864,160          JuliaGPU/CUDA.jl#598 (4,811,456,640 bytes)
// geqrf           3 x 3, single         196,608                jax-ml/jax, as above, cuda_qr
// orgqr           3 x 3, single         33,056                 the same
// orgqr           2^24 rows             2^31, overflows        JuliaGPU/CUDA.jl#3258
// ormqr           m x n                 about 2 m n            QuantumKitHub/MatrixAlgebraKit.jl#267
//
// The rules give the numbers of syevd from 10000 on, of syevj, of heevjBatched and of gesvdj to the element. Of
// XsyevBatched the constant fits; that a large matrix takes there what it takes in syevd is an assumption.
#include "solver_workspace.h"

#include <algorithm>

namespace gpumem {
namespace {

// A size that a caller may have got wrong.
uint64_t size(int64_t n) { return static_cast<uint64_t>(std::max<int64_t>(n, 0)); }

// What grows with the matrix in the reduction to tridiagonal form and the solution by divide and conquer.
uint64_t divide_and_conquer(uint64_t n, bool complex) {
  const uint64_t padded = (n + 15) / 16 * 16;
  return (complex ? 4 : 3) * n * n + 128 * n + padded;
}

}  // namespace

uint64_t eigen_workspace(int64_t n, bool complex) { return divide_and_conquer(size(n), complex) + 16561; }

uint64_t eigen_batched_workspace(int64_t n, int64_t batch, bool complex) {
  return size(batch) * (divide_and_conquer(size(n), complex) + 65536);
}

uint64_t jacobi_eigen_workspace(int64_t n, int64_t batch, bool complex) {
  const uint64_t side = size(n), each = side * side + (complex ? 2 : 1) * side + 1;
  return 1028 + size(batch) * (each + 1024);
}

uint64_t jacobi_svd_workspace(int64_t m, int64_t n) {
  const uint64_t least = size(std::min(m, n));
  return (m == n ? 2 : 3) * least * least + 143 * least + 4160;
}

// Only one size is published; LAPACK's geqrf needs n at least.
uint64_t qr_workspace(int64_t n) { return 196608 + size(n); }

uint64_t make_q_workspace(int64_t m) { return 128 * size(m) + 32768; }

uint64_t apply_q_workspace(int64_t rows, int64_t reflectors) { return 2 * size(rows) * size(reflectors); }

}  // namespace gpumem
