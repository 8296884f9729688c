// How much workspace cuSOLVER asks for: rules fitted to answers that others have published.
#pragma once

#include <cstdint>

namespace gpumem {

// All in elements of the matrix's type, for an n x n or m x n matrix. Where values are asked for without vectors, the
// same is taken.

uint64_t eigen_workspace(int64_t n, bool complex);                         // syevd, heevd
uint64_t eigen_batched_workspace(int64_t n, int64_t batch, bool complex);  // XsyevBatched
uint64_t jacobi_eigen_workspace(int64_t n, int64_t batch, bool complex);   // syevj, heevj; syevjBatched, heevjBatched
uint64_t jacobi_svd_workspace(int64_t m, int64_t n);                       // gesvdj
uint64_t qr_workspace(int64_t n);                                          // geqrf
uint64_t make_q_workspace(int64_t m);                                      // orgqr, ungqr
uint64_t apply_q_workspace(int64_t rows, int64_t reflectors);              // ormqr, unmqr

}  // namespace gpumem
