#pragma once

#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/stream.h"

#include <cstdint>

namespace palimpsest::kernels::cuda {

inline constexpr int64_t kCounterBytes = kMostPanelsInSegments * sizeof(unsigned);

/// Returns the counters of is_last_block (reduce.cuh) for work on `stream` of the current device:
/// kMostPanelsInSegments of them, 0 between launches.
///
/// Each stream has counters of its own, because its launches run one after the other. A CUDA graph has others
/// for each stream that it was captured on: a replay may run on any stream, beside the stream's own work and
/// beside other graphs. They come back when the graph and all that was instantiated from it are destroyed.
///
/// The memory is this library's, from cudaMalloc, and is never freed. Were it libtorch's, it would stay alive
/// in the pool that is current at the first call: torch.compile(mode="reduce-overhead") refuses that, and a
/// CUDA graph or a torch.cuda.MemPool would use the same bytes for its tensors. An allocation is made once
/// per device and 32 streams or graphs. It is legal while any thread captures, because the thread says so
/// (cudaThreadExchangeStreamCaptureMode), and is not recorded: the memory is zeroed on a stream of its own.
///
/// Throws std::runtime_error if the device has no memory left.
unsigned* counters_of(Stream stream);

/// Makes counters that an interrupted launch may have left at any value usable again: zeroes them in the
/// order of the stream. If that fails, the stream gets others and these are never used again.
void reset_counters(Stream stream, unsigned* counters) noexcept;

}  // namespace palimpsest::kernels::cuda
