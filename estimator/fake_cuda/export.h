// How a function of a CUDA library is exported from this library.
#pragma once

#define API extern "C" __attribute__((visibility("default")))

// A call whose only effect is on data that nobody will read: it succeeds.
#define NO_OP(name) \
  API int name() { return 0; }

// The same function for the four element types of the BLAS: S, D, C, Z.
#define FOR_SDCZ(macro, prefix, suffix) \
  macro(prefix##S##suffix) macro(prefix##D##suffix) macro(prefix##C##suffix) macro(prefix##Z##suffix)
#define FOR_SD(macro, prefix, suffix) macro(prefix##S##suffix) macro(prefix##D##suffix)
#define FOR_CZ(macro, prefix, suffix) macro(prefix##C##suffix) macro(prefix##Z##suffix)
