#include "palimpsest/kernels/cuda/exponent_histogram.h"

#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/device/reduce.cuh"
#include "palimpsest/kernels/cuda/device/vector16.cuh"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace palimpsest::kernels::cuda {
namespace {

// Neighbours often have the same exponent, and lanes that add to the same word wait for one another. With 16
// tables at most two lanes of a warp meet; they take 18 KB of shared memory.
constexpr int kTables = 16;
constexpr int kLoads = 4;  // loads that a thread has under way
// A block counts in 32 bits, which its share of any tensor in memory cannot exceed.
constexpr int64_t kMostBlocks = 1024;
// Vectors per thread, so that to clear and to add up the tables takes little time in comparison.
constexpr int64_t kLeastVectorsPerThread = 16;

// Bins follow from the fields of f32. It holds every bf16 and f16 exactly, subnormal f16 as normal numbers.
constexpr int kMantissaBits = 23, kSpecialExponent = 255;
constexpr int kFirstNormalBin = bin_of_exponent(-126);
static_assert(kZeroBin == 0 && bin_of_exponent(kLowestExponent) == 1);

__device__ __forceinline__ uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

__device__ __forceinline__ int exponent_field(uint32_t bits) {
  return static_cast<int>(bits >> kMantissaBits & kSpecialExponent);
}

__device__ __forceinline__ int bin_of(float value) {
  const uint32_t bits = bits_of(value), mantissa = bits & ((1u << kMantissaBits) - 1);
  const int exponent = exponent_field(bits);
  if (exponent == kSpecialExponent) return mantissa != 0 ? kNaNBin : kInfinityBin;
  if (exponent != 0) return kFirstNormalBin - 1 + exponent;
  // A subnormal number is `mantissa` times the smallest one, and f32 holds that integer exactly.
  return mantissa == 0 ? kZeroBin : exponent_field(bits_of(static_cast<float>(mantissa))) - 127 + 1;
}

/// x consists of `head` single values, aligned vectors, and `tail` single values. Grid: at most kMostBlocks
/// blocks of kThreads threads, which step through the vectors together. Shared: 18 KB of tables. Registers: at
/// most 50; four blocks run per multiprocessor.
template <class S>
__global__ void __launch_bounds__(kThreads, 4)
    exponent_histogram_kernel(const S* x, int head, int64_t vectors, int tail, unsigned long long* counts) {
  constexpr int V = kLanes<S>;
  PALIMPSEST_SHARED(tables, unsigned[kExponentBins][kTables]);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kExponentBins * kTables; i += kThreads) tables[i / kTables][i % kTables] = 0;
  __syncthreads();
  const auto add = [&](float value) { atomicAdd(&tables[bin_of(value)][thread % kTables], 1u); };

  const int64_t threads = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + thread; i < vectors; i += kLoads * threads) {
    Stored<S, V> in[kLoads];
    PALIMPSEST_UNROLL
    for (int u = 0; u < kLoads; ++u)
      if (i + u * threads < vectors) in[u].load(x + head + (i + u * threads) * V);
    PALIMPSEST_UNROLL
    for (int u = 0; u < kLoads; ++u) {
      if (i + u * threads >= vectors) continue;
      PALIMPSEST_UNROLL
      for (int k = 0; k < V; ++k) add(in[u].value(k));
    }
  }
  if (blockIdx.x == 0) {
    const int behind = thread - static_cast<int>(kWarp);  // the second warp, so that both ends load at once
    if (thread < head) add(widen(x[thread]));
    if (behind >= 0 && behind < tail) add(widen(x[head + vectors * V + behind]));
  }

  __syncthreads();
  for (int bin = thread; bin < kExponentBins; bin += kThreads) {
    unsigned long long sum = 0;
    for (int table = 0; table < kTables; ++table) sum += tables[bin][table];
    if (sum != 0) atomicAdd(counts + bin, sum);
  }
}

template <class S>
void count(const S* x, int64_t n, int64_t* counts, Stream stream) {
  constexpr int V = kLanes<S>;
  const auto off = static_cast<int64_t>(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(S));
  const int64_t head = std::min<int64_t>(n, off == 0 ? 0 : V - off), vectors = (n - head) / V;
  const int64_t blocks = std::clamp<int64_t>(vectors / (kThreads * kLeastVectorsPerThread), 1, kMostBlocks);
  launch("exponent_histogram", {.blocks = blocks, .threads = kThreads}, stream, exponent_histogram_kernel<S>,
         x, static_cast<int>(head), vectors, static_cast<int>((n - head) % V),
         reinterpret_cast<unsigned long long*>(counts));
}

}  // namespace

void exponent_histogram(DType dtype, const void* x, int64_t n, int64_t* counts, Stream stream) {
  if (dtype == DType::f64)
    throw std::invalid_argument("[exponent_histogram] dtype must be f32, f16 or bf16, got f64");
  if (n == 0) return;
  dispatch_float(dtype, [&]<class S>() {
    if constexpr (sizeof(S) < 8) count(static_cast<const S*>(x), n, counts, stream);
  });
}

}  // namespace palimpsest::kernels::cuda
