#pragma once

/// Marks functions that host and device code share. They are always inlined on the host: the CPU kernels are
/// compiled once per instruction set, and the linker would pick one out-of-line copy for all of them.
#ifdef __CUDACC__
#define PALIMPSEST_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define PALIMPSEST_HOST_DEVICE inline __attribute__((always_inline))
#endif
