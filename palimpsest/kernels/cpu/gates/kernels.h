#pragma once

#include "palimpsest/kernels/cpu/simd/block.h"
#include "palimpsest/kernels/gates.h"

#include <cstdint>

/// The functions that an instruction set provides for gates.cpp: single-threaded sweeps over some channels of
/// one image. Each set compiles kernels.cpp into its own namespace and provides one table.
namespace palimpsest::kernels::cpu::gates {

/// Rows are pixels; columns are at most kMaxColumns channels, and at least Kernels::lanes. Pointers begin at the
/// first value of the block, and at its first channel.
struct Part {
  Block block;
  Activation activation;
  double activation_param;
};

struct Kernels {
  int64_t lanes;  ///< channels in a vector
  void (*means)(const Part& part, const float* y, float* means);
  void (*forward)(const Part& part, const float* y, const float* gate, float* product);
  void (*reduce)(const Part& part, const float* y, const float* gate, const float* dproduct, float* dgate,
                 float* product);
  void (*apply)(const Part& part, const float* y, const float* gate, const float* dmean,
                const float* dproduct, float* dy);
};

}  // namespace palimpsest::kernels::cpu::gates
