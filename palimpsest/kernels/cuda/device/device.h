#pragma once

// The words that kernels are written in, for the compiler at hand: nvcc, or a C++ compiler and the emulator
// of the tests, which executes the same sources on the CPU. Beyond plain CUDA C++:
//   PALIMPSEST_SHARED(name, type);          a shared variable, e.g. PALIMPSEST_SHARED(partial, float[32]);
//   PALIMPSEST_DYNAMIC_SHARED(name);        the launch's shared bytes: unsigned char*, a multiple of 16
//   load16(p), store16(p, value)            16 bytes of global memory at once; p a multiple of 16
//   widened, narrowed, narrowed_pair        16-bit storage to f32 and back, rounded to nearest even
//   cluster_rank/size/sync, in_cluster_block   thread-block clusters and their shared memory
// Kernels use full warp masks and barriers that all threads of a block come to, spin on nothing, and have no
// inline assembly of their own.
#ifdef __CUDACC__
#include "palimpsest/kernels/cuda/device/device_nvcc.h"
#else
#include "tests/support/cuda_emulator/device.h"
#endif
